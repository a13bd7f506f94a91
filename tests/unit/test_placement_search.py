"""`hosim layout search` of a job: its programs share devices out, each with a layout on the ranks that it gets."""

from itertools import product

import pytest

import simulator as hosim
from simulator import catalog
from simulator.errors import ConfigError
from simulator.run.estimates import estimate
from simulator.run.grid import Cells

MODEL = "{family: llama, layers: LAYERS, hidden: 512, heads: 8, kv_heads: 8, ffn: 1024, vocabulary: 512}"
WORK = f"""
schema: hosim/workload/1
name: NAME
model: {MODEL}
phase: train
batch: 2
sequence: 512
parallel: {{ranks: all, micro_batches: 4, schedule: SCHEDULE}}
"""
JOB = """
schema: hosim/job/1
name: modules
programs:
  tower: {workload: tower.yaml, ranks: 1}
  words: {workload: words.yaml, ranks: 1}
edges:
  - {from: words, to: tower, tensors: {"mb*/L00/norm1.in.grad": "mb*/head/lm.out.grad"}, back: true}
  - {from: tower, to: words, tensors: {"mb*/head/lm.out": "mb*/embed/tokens.out"}}
counts: words
"""
BACK = JOB[JOB.index("edges:") : JOB.index("  - {from: tower")]
SCENARIO = """
schema: hosim/scenario/1
name: placed
hardware: dgx_h100
workload: ./modules.yaml
homes: {"tower.*weight": hbm}
policies: [resident]
layout: {devices: 4, replay: 100}
"""
SETTINGS = {"tower": {"LAYERS": "4", "SCHEDULE": "gpipe"}, "words": {"LAYERS": "2", "SCHEDULE": "1f1b"}}


@pytest.fixture
def scenario(tmp_path):
    for name, words in SETTINGS.items():
        text = WORK.replace("NAME", name)
        for word, value in words.items():
            text = text.replace(word, value)
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "modules.yaml").write_text(JOB)
    (tmp_path / "placed.yaml").write_text(SCENARIO)
    return tmp_path / "placed.yaml"


@pytest.mark.slow
def test_all_ways_to_share_the_devices_out_are_tried_and_none_goes_below_its_bounds(scenario):
    found = hosim.layout_search(scenario, workers=1)
    listed = found.tables["layouts"]
    assert {row["tower.ranks"] + row["words.ranks"] for row in listed} == {4}
    assert {row["tower.ranks"] for row in listed} == {1, 2, 3}
    for row, name in product(listed, ("tower", "words")):
        data, tensor, pipeline = (row[f"{name}.{degree}"] for degree in ("data", "tensor", "pipeline"))
        assert data * tensor * pipeline == row[f"{name}.ranks"]
        assert data * row[f"{name}.batch"] == 2, "a micro-batch keeps its sequences"
    able = [row for row in listed if row["status"] == "estimated"]
    assert len(found.rows) == len(able) == 10, "each that can be is replayed"
    for row in found.rows:
        assert row["status"] == "ok"
        assert row["step_ns"] >= row["least_step_ns"]
        assert row["peak_hbm_bytes"] >= row["least_peak_hbm_bytes"]
    rules = {row["rule"] for row in listed if row["status"] == "failed"}
    assert "tower: tensor divides heads, ffn, vocabulary" in rules, "it says of which program"


def test_what_the_document_states_besides_is_kept(scenario):
    """Copies become replicas; optimizer states stay sharded where there are replicas."""
    path = scenario.with_name("modules.yaml")
    path.write_text(path.read_text().replace("tower.yaml, ranks: 1", "tower.yaml, ranks: 2"))
    words = scenario.with_name("words.yaml")
    words.write_text(words.read_text().replace("micro", "data: 2, zero_stage: 1, micro"))
    path.write_text(path.read_text().replace("words.yaml, ranks: 1", "words.yaml, ranks: 2"))
    over = {"programs.tower.workload.batch": [2, 4]}
    listed = hosim.layout_search(scenario, workers=1, replay=1, over=over).tables["layouts"]
    assert {(row["tower.data"], row["tower.batch"]) for row in listed} == {(1, 4), (2, 2)}
    assert {row["words.data"] * row["words.batch"] for row in listed} == {4}
    assert {(row["words.data"] > 1, row["words.zero_stage"]) for row in listed} == {(True, 1), (False, 0)}


@pytest.mark.slow
def test_the_longer_module_gets_more_ranks_than_in_like_stages(scenario):
    tower = scenario.with_name("tower.yaml")
    tower.write_text(tower.read_text().replace("layers: 4", "layers: 8"))
    found = hosim.layout_search(scenario, workers=1, replay=3)
    best, layout = found.rows[0], {"tower": 3, "words": 1}
    assert {name: best[f"{name}.ranks"] for name in layout} == layout
    alike = {f"workload.programs.{name}.ranks": 2 for name in layout}
    tensor = {f"workload.programs.{name}.workload.parallel.tensor": 2 for name in layout}
    stages = hosim.run(scenario, set=alike | tensor)["resident"].summary
    assert best["step_ns"] < 0.9 * stages["step_ns"]


def test_a_row_of_the_search_is_that_of_the_layout_alone(scenario):
    found = hosim.layout_search(scenario, workers=1, replay=1, over={"programs.tower.ranks": [2]})
    (row,) = found.rows
    keys = {"ranks": "ranks", "batch": "workload.batch"}
    keys |= {degree: f"workload.parallel.{degree}" for degree in ("data", "tensor", "pipeline", "sequence")}
    placed = {
        f"workload.programs.{name}.{path}": row[f"{name}.{key}"]
        for name, (key, path) in product(("tower", "words"), keys.items())
    }
    alone = hosim.run(scenario, set=placed)["resident"].summary
    figures = ("step_ns", "peak_hbm_bytes", "tokens_per_s")
    assert [alone[key] for key in figures] == [row[key] for key in figures]


def test_placements_that_are_too_many_are_not_listed_first(scenario):
    """There are millions of them on so many devices."""
    with pytest.raises(ConfigError, match="at most 50,000 layouts are estimated, found 50,001 or more"):
        hosim.layout_search(scenario, devices=2048, workers=1)


def test_the_estimate_of_a_job_is_the_way_of_its_data_and_its_bound_that_of_the_longest_program(scenario):
    loaded = catalog.resolve(scenario)
    both, estimated = estimate(loaded, can_move=False), {}
    estimate(loaded, can_move=False, estimated=estimated)
    alone = {name.partition(" ")[0]: times for name, times in estimated.items()}
    assert both.least_step_ns == max(times.alone.least_step_ns for times in alone.values())
    tower, words = alone["tower"], alone["words"].work_ns // 4
    backward_ns = 4 * tower.backward_ns  # of GPipe it begins with the gradient that comes last
    there_ns = max(4 * tower.forward_ns + words, tower.forward_ns + 4 * words)
    assert both.step_ns == there_ns + backward_ns + tower.end_ns
    (row,) = Cells(None, with_bounds=False)(loaded, ())
    assert row["step_ns"] == pytest.approx(both.step_ns, rel=0.15)


TURNED = JOB[JOB.index("  - {from: words") : JOB.index("counts")]
BYTES = "  - {from: tower, to: words, bytes: 1 MB}\n"
NEXT = "  - {from: words, to: tower, bytes: 400 MB}\n"


@pytest.mark.parametrize(
    ("edges", "layers"),
    [
        (BYTES, "2"),  # nothing comes back: the one is a round further than the other
        pytest.param(TURNED, "2", marks=pytest.mark.slow),  # backward waits for the last gradient
        pytest.param(BYTES.replace("1 MB", "1 MB, stale: 2"), "4", marks=pytest.mark.slow),
        pytest.param(BYTES + NEXT, "2", marks=pytest.mark.slow),  # one after the other
        pytest.param(BYTES + NEXT, "4", marks=pytest.mark.slow),
        pytest.param(TURNED, "4", marks=pytest.mark.slow),
    ],
)
def test_estimates_of_placements_are_those_of_replays_whatever_the_edges(scenario, edges, layers):
    """Where data of a round never comes back, programs do not wait for one another; where it does, they do."""
    job, words = scenario.with_name("modules.yaml"), scenario.with_name("words.yaml")
    job.write_text(JOB[: JOB.index("edges:")] + "edges:\n" + edges + "counts: words\nsteps: 6\n")
    words.write_text(words.read_text().replace("layers: 2", f"layers: {layers}"))
    data = {f"programs.{name}.workload.parallel.data": [1] for name in SETTINGS}
    rows = hosim.layout_search(scenario, workers=1, over={"programs.tower.ranks": [2], **data}).rows
    assert len(rows) == 4
    for row in rows:
        assert -0.15 < row["estimated_step_ns"] / row["step_ns"] - 1 < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("layers", ["2", "8"])
def test_stages_of_a_tower_under_1f1b_wait_for_the_gradient_of_each_micro_batch(scenario, layers):
    """Its last stage has one under way at a time: until the words have sent the gradient back, it makes no other."""
    tower, words = (scenario.with_name(f"{name}.yaml") for name in ("tower", "words"))
    tower.write_text(tower.read_text().replace("gpipe", "1f1b"))
    words.write_text(words.read_text().replace("layers: 2", f"layers: {layers}"))
    over = {f"programs.{name}.workload.parallel.data": [1] for name in SETTINGS}
    over |= {"programs.tower.ranks": [2, 3], "programs.words.workload.parallel.pipeline": [1]}
    rows = hosim.layout_search(scenario, workers=1, over=over).rows
    assert {row["tower.pipeline"] for row in rows} == {1, 2, 3}
    for row in rows:
        assert -0.03 < row["estimated_step_ns"] / row["step_ns"] - 1 < 0.01


@pytest.mark.slow
def test_a_program_that_is_ahead_and_waits_now_and_then_is_not_the_slowest(scenario):
    """Nothing comes back, so that the words, which are behind, keep their pace however far the tower may be ahead."""
    layouts = {"tower": ("ranks: all, pipeline: 2,", "layers: 4"), "words": ("ranks: all, tensor: 2,", "layers: 4")}
    for name, (ranks, layers) in layouts.items():
        path = scenario.with_name(f"{name}.yaml")
        path.write_text(path.read_text().replace("ranks: all,", ranks).replace("layers: 2", layers))
    scenario.write_text(scenario.read_text().replace("layout:", "# "))
    job = JOB[: JOB.index("edges:")].replace("ranks: 1", "ranks: 2")
    edge = BYTES.replace("1 MB", "1 MB, stale: 2")
    scenario.with_name("modules.yaml").write_text(f"{job}edges:\n{edge}counts: words\nsteps: 13\n")
    (row,) = hosim.run(scenario).values()
    assert row.summary["slowest_rank"] >= 2, "a rank of the words"
    assert row.summary["step_ns"] == pytest.approx(row.summary["least_step_ns"], rel=0.005), "no warning"
    assert row.ranks["step_ns"].max() > 1.1 * row.summary["step_ns"], "a step of the tower takes longer now and then"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("devices: 4", "devices: 4, global_batch: 8"), "the programs of a job state their batches, found 8"),
        (("devices: 4", "devices: 1"), "some degrees multiply to the devices, found none to 1"),
        (
            ("{workload: words.yaml, ranks: 1}\n" + BACK, "{workload: words.yaml, ranks: tower}\nedges:\n"),
            "ranks of its own",
        ),
        (("edges:", "  tool: {delay: 1 ms, ranks: 1}\nedges:"), "decoders that train, found tool is a delay;"),
        (
            ("words.yaml, ranks", "words.yaml, set: {phase: prefill, parallel.micro_batches: 1}, ranks"),
            "all programs are decoders that train, found words has phase: prefill; leave",
        ),
    ],
)
def test_questions_that_have_no_answer(scenario, change, message):
    for path in (scenario, scenario.with_name("modules.yaml")):
        path.write_text(path.read_text().replace(*change))
    with pytest.raises(ConfigError, match=message):
        hosim.layout_search(scenario, workers=1, replay=1)


def test_a_home_of_no_tensor_is_told_where_a_layout_is_replayed(scenario):
    scenario.write_text(scenario.read_text().replace("tower.*weight", "tour.*weight"))
    (row,) = hosim.layout_search(scenario, workers=1, replay=1).rows
    assert "names that some tensor has" in row["notes"]

"""Jobs of different programs as documents: every command takes them, and what cannot be is told in one message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from folding import folded

import simulator as hosim
from simulator import catalog
from simulator.cli import main
from simulator.errors import ConfigError
from simulator.run.sliders import WhatIf

pytestmark = pytest.mark.usefixtures("pictures_are_blank")

MODEL = "{layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 128, vocabulary: 256, tied_embeddings: false}"
WORK = f"""\
schema: hosim/workload/1
name: answers
model: {MODEL}
phase: decode
sequence: 32
new_tokens: 2
assumed: {{model: a toy, sequence: a toy, new_tokens: a toy}}
"""
JOB = f"""\
schema: hosim/job/1
name: loop
programs:
  act: {{workload: answers.yaml, set: {{batch: 4}}, ranks: 2}}
  tool: {{delay: 1 us, ranks: act}}
  train:
    workload: {{model: {MODEL}, batch: 2, sequence: 34, parallel: {{ranks: all, data: 2, zero_stage: 1}}}}
    ranks: 2
edges:
  - {{from: tool, to: train, bytes: 1 kB}}
  - {{from: train, to: act, weights: true}}
counts: train
"""
STORY = """\
schema: hosim/scenario/1
name: story
hardware: dgx_h100
workload: loop.yaml
homes: {optimizer_state: free}
policies: [resident, static]
sweep: {workload.programs.act.ranks: [2, 4]}
expect:
  - {row: resident, column: ranks, equals: 4}
"""


@pytest.fixture
def story(tmp_path) -> Path:
    """A scenario with a job, and what it names, in a folder."""
    for name, text in (("answers", WORK), ("loop", JOB), ("story", STORY)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path / "story.yaml"


def told(capsys, *arguments: object) -> str:
    """What a command prints, if it ends well."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert ended.value.code == 0, captured.err
    return captured.out


def test_a_run_gives_the_same_again_from_what_it_wrote(story, capsys, tmp_path):
    out = tmp_path / "out"
    told(capsys, "run", story, "--out", out)
    summary = json.loads((out / "summary.json").read_text())
    inputs = {entry["kind"]: entry for entry in summary["provenance"]["inputs"]}
    assert {"workload", "workload act"} <= inputs.keys(), "the digest of each workload that the job names"
    assert {"batch", "sequence"} <= {each["field"] for each in summary["provenance"]["assumed"]}
    again = hosim.run(out / "scenario.yaml")
    assert {row["policy"]: row["step_ns"] for row in summary["rows"]} == {
        label: row.summary["step_ns"] for label, row in again.items()
    }
    assert summary["rows"][0]["tokens_per_s"] > 0


def test_fields_of_programs_change_and_vary_like_others(story, capsys):
    usual, more = (hosim.run(story, set=change) for change in (None, {"workload.programs.act.workload.new_tokens": 8}))
    assert more["resident"].summary["step_ns"] > usual["resident"].summary["step_ns"]
    rows = told(capsys, "sweep", story, "--grid", "workload.programs.act.ranks=1,2,4", "--policy", "resident")
    assert rows.count("resident  ") >= 3
    assert "ok" in rows


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("check STORY JOB", "job, 3 programs, 2 edges, 4 ranks"),
        ("sweep STORY --policy resident", "at ranks 6"),
        ("frontier STORY --policy resident --of workload.programs.tool.delay --such-that step<=2x", "resident"),
        ("crossover STORY --policy resident --policy static --of workload.programs.tool.delay", "static"),
        (
            "crossover STORY --policy resident --policy static --of workload.programs.train.ranks",
            "at 3 neither runs: job loop",
        ),
        ("validate STORY", "of 1 expectation none fails"),
        ("layout JOB", "4 ranks = act on 0-1, tool on 0-1, train on 2-3"),
        ("list jobs", "agentic_rl_colocated"),
        ("schema job", "programs"),
    ],
)
def test_commands(story, capsys, command, said):
    names = {"STORY": story, "JOB": story.with_name("loop.yaml")}
    assert said in told(capsys, *(names.get(word, word) for word in command.split()))


def test_a_job_has_sliders_for_its_machine_alone(story):
    ask = WhatIf(story, policy="resident")
    assert [*ask.usual] == ["bandwidth", "capacity"], "programs have sequences of their own"
    assert ask(capacity=ask.usual["capacity"] // 2)["resident"].is_ok
    with pytest.raises(
        ConfigError, match="a slider is one of the scenario, found 'sequence'; use one of bandwidth, cap"
    ):
        ask(sequence=64)


def test_the_origin_of_a_figure_is_that_of_its_workload(story):
    loaded = catalog.resolve(story)
    assert loaded.workload.origin_of("programs.act.workload.sequence") == "assumed"
    assert loaded.workload.origin_of("programs.act.workload.batch") == "assumed", "as the job says"
    assert loaded.workload.origin_of("programs.train.workload.batch") == "mine"
    changed = catalog.resolve(story, {"workload.programs.act.workload.sequence": 40})
    assert changed.workload.entry_of("programs.act.workload.sequence") == ("assumed", "changed for this run")


def test_samples_are_spread_over_the_ranks_that_there_are(story):
    text = JOB.replace("set: {batch: 4}", "samples: 12")
    for ranks, batch in ((1, 12), (2, 6), (5, 3)):
        story.with_name("loop.yaml").write_text(text.replace("ranks: 2}", f"ranks: {ranks}}}", 1))
        job = catalog.resolve(story).workload
        assert job.programs["act"].on(ranks).batch == batch


OTHER = f"""\
  other:
    workload: {{model: {MODEL}, batch: 2, sequence: 34, parallel: {{ranks: all, data: 2, zero_stage: 3}}}}
    ranks: 2
edges:
  - {{from: train, to: other, weights: true}}"""
READER = f"""\
  other: {{workload: {{model: {MODEL}, phase: prefill, sequence: 32}}, ranks: train}}
edges:
  - {{from: other, to: train, weights: true}}"""
CIRCLE = """\
schema: hosim/job/1
name: circle
programs:
  a: {delay: 10 ms, ranks: 1}
  b: {delay: 10 ms, ranks: 1}
  c: {delay: 10 ms, ranks: 1}
  d: {delay: 10 ms, ranks: 1}
edges:
  - {from: a, to: b, bytes: 1 kB}
  - {from: b, to: c, bytes: 1 kB}
  - {from: c, to: d, bytes: 1 kB}
  - {from: d, to: a, bytes: 1 kB, stale: STALE}
steps: STEPS
"""


@pytest.mark.parametrize(
    ("stale", "steps", "period", "round_ms"),
    [
        (0, 2, None, 40),
        (0, 8, None, 40),
        (1, 8, 2, 20),
        (1, 9, 2, 20),
        (2, 16, 3, 40 / 3),
        (3, 16, None, 10),
        (4, 16, None, 10),
    ],
)
def test_what_goes_once_around_stands_for_one_round_more_than_it_is_stale(tmp_path, stale, steps, period, round_ms):
    """It takes 40 ms, and no round takes less than 10 ms; rounds that alternate are told whole, if there are enough."""
    (tmp_path / "circle.yaml").write_text(CIRCLE.replace("STALE", str(stale)).replace("STEPS", str(steps)))
    results = hosim.run(hardware="cloudmatrix384_node", workload=tmp_path / "circle.yaml", policies=["resident"])
    row = results["resident"].summary
    assert row.get("period") == period
    mean_ns = row["period_ns"] / period if period else row["step_ns"]
    assert mean_ns == pytest.approx(round_ms * 1e6, rel=2e-3)
    assert not any("overlap, and may alternate" in text for text in results.sentences)


@pytest.mark.parametrize(("stale", "steps", "enough"), [(1, 2, 5), (1, 4, 5), (3, 8, 9)])
def test_rounds_that_may_alternate_need_steps_enough_to_show_it(tmp_path, stale, steps, enough):
    (tmp_path / "circle.yaml").write_text(CIRCLE.replace("STALE", str(stale)).replace("STEPS", str(steps)))
    results = hosim.run(hardware="cloudmatrix384_node", workload=tmp_path / "circle.yaml", policies=["resident"])
    assert f"set steps of the workload to {enough} or more, to see their mean." in " ".join(results.sentences)


BAD = {
    "of programs that share ranks one has all ranks of the other, found rank 1 of act": ("ranks: act", "ranks: 1-2"),
    "each rank has a program, or is idle on purpose, found none on rank 2;": ("    ranks: 2", "    ranks: 3-4"),
    "ranks are a multiple of the layout of their program, found 3, and 2": ("    ranks: 2", "    ranks: 3"),
    "an idle rank runs no program, found rank 0;": ("counts: train", "counts: train\nidle: '0'"),
    "this names a program of the job, found 'actor'": ("to: act,", "to: actor,"),
    "an edge says one of weights, tensors, bytes, found none": (", bytes: 1 kB", ""),
    "a program hands something to another one": ("to: train", "to: tool"),
    "a program is a workload or a delay": ("delay: 1 us, ", ""),
    "a workload document is a file, found no such file": ("answers.yaml", "answer.yaml"),
    "a change names a field of the workload, found 'bath'": ("batch: 4", "bath: 4"),
    "set changes a workload that is named": ("delay: 1 us", "delay: 1 us, set: {batch: 3}"),
    "weights sent are trained, found weights that act only reads": (
        "from: train, to: act",
        "from: act, to: train",
    ),
    "weights that other only reads; send them from who trains them": ("edges:", READER),
    "edges differ, found the same as edge 0": (
        "edges:",
        "edges:\n  - {from: train, to: act, weights: true, stale: 1}",
    ),
    "runs hand over tensors, in the same round, to a program behind": ("bytes: 1 kB", "bytes: 1 kB, each_run: true"),
    "with each_run one of both patterns has one *": ("bytes: 1 kB", 'tensors: {"x*": "y*"}, each_run: true'),
    "a part is of tensors, found bytes": ("bytes: 1 kB", "bytes: 1 kB, part: true"),
    "adapters stay there": ("batch: 2,", "batch: 2, lora: {rank: 4},"),
    "a receiver of weights holds them whole, found shards in other": ("edges:", OTHER),
    "ranks are a number, a list such as 0-3,6": ("ranks: act", "ranks: acts"),
    "a weight has one shape and one format on both sides, found 'embed/tokens.weight'": (
        "vocabulary: 256",
        "vocabulary: 128",
    ),
}


@pytest.mark.parametrize(("message", "change"), BAD.items())
def test_what_cannot_be_is_one_clear_message(story, message, change):
    start = JOB.rindex(change[0]) if "vocabulary" in change[0] else JOB.index(change[0])
    story.with_name("loop.yaml").write_text(JOB[:start] + JOB[start:].replace(*change, 1))
    with pytest.raises(ConfigError) as refused:
        hosim.run(story, policies=["resident"])
    assert message in str(refused.value)
    assert "loop" in str(refused.value)


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_ranks_that_hand_shards_over_may_stand_for_one_another(story, zero_stage):
    path = "workload.programs.train.workload.parallel.zero_stage"
    steps = {}
    for fold in ("auto", "never"):
        with folded(fold):
            steps[fold] = hosim.run(story, policies=["resident"], set={path: zero_stage}).summary["step_ns"]
    assert steps["auto"].tolist() == steps["never"].tolist()


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_ranks_that_get_the_same_weights_may_stand_for_one_another(story, engine):
    loop = JOB.replace("data: 2, zero_stage: 1", "data: 1").replace("    ranks: 2\nedges", "    ranks: 1\nedges")
    story.with_name("loop.yaml").write_text(loop.replace("{batch: 4}, ranks: 2", "{batch: 4}, ranks: 4"))
    steps = {}
    for fold in ("auto", "never"):
        with folded(fold):
            found = hosim.run(story, policies=["resident"], engine=engine)
        steps[fold] = found.summary["step_ns"].tolist()
        met = [op.collective for op in found["resident"].job.graph(0).ops if op.collective]
        assert {each.kind for each in met if ".to.act" in each.group} == {"broadcast"}
    assert steps["auto"] == steps["never"]


def test_programs_that_share_ranks_and_hand_nothing_on_keep_their_order(story):
    story.write_text(STORY.replace("policies: [resident, static]", "policies: [{policy: resident, order: mpmd}]"))
    with pytest.raises(ConfigError, match="how programs on a rank depend, found none between act and tool; drop order"):
        hosim.run(story)


def test_list_scheduling_orders_programs_on_a_rank_by_what_they_hand_over(story):
    """The first stage learns from each micro-batch in a program of its own: last of all, or while it would wait."""
    layer = MODEL.replace("layers: 2", "layers: 1")
    micros = "batch: 2, sequence: 34, parallel: {ranks: all, micro_batches: 4"
    story.with_name("loop.yaml").write_text(f"""\
schema: hosim/job/1
name: loop
programs:
  words: {{workload: {{model: {MODEL}, {micros}, pipeline: 2}}}}, ranks: 0-1}}
  learn: {{workload: {{model: {layer}, {micros}}}}}, ranks: 0-0}}
edges:
  - {{from: words, to: learn, tensors: {{"mb*/L00/norm1.in.grad": "mb*/embed/tokens.out"}}}}
counts: words
""")
    rows = "policies: [resident, {policy: resident, label: mpmd, order: mpmd}]"
    story.write_text(STORY[: STORY.index("sweep")].replace("policies: [resident, static]", rows))
    found = hosim.run(story)
    assert {row.status for row in found.values()} == {"ok"}
    assert found["mpmd"].summary["step_ns"] < 0.99 * found["resident"].summary["step_ns"]


def test_samples_are_of_a_model(story):
    graph = '{"schema":"hosim-graph/1"}\n{"op":"a","flops":1}\n'
    story.with_name("g.jsonl").write_text(graph)
    story.with_name("answers.yaml").write_text("schema: hosim/workload/1\nname: answers\ngraph: g.jsonl\n")
    story.with_name("loop.yaml").write_text(
        "schema: hosim/job/1\nname: loop\nprograms:\n  act: {workload: answers.yaml, ranks: 1, samples: 4}\n"
    )
    with pytest.raises(ConfigError, match="samples are of a model, found a graph"):
        hosim.run(story)


def test_idle_ranks_may_be_the_last(story):
    document = JOB.replace("counts: train", "counts: train\nidle: 4-5")
    story.with_name("loop.yaml").write_text(document)
    assert hosim.run(story, policies=["resident"]).summary["ranks"].tolist() == [6]


@pytest.mark.parametrize(("ranks", "padded"), [(2, 6), (4, 8)])
def test_what_pads_the_batches_of_samples_is_no_work(story, ranks, padded):
    document = JOB.replace("batch: 2, ", "").replace("    ranks: 2\n", f"    ranks: {ranks}\n    samples: 5\n")
    story.with_name("loop.yaml").write_text(document)
    work = catalog.resolve(story).workload
    assert work.programs["train"].on(ranks).batch * ranks == padded
    assert (work.samples, work.tokens) == (5, 5 * 34)


def test_a_program_may_leave_out_what_its_workload_states(story):
    story.with_name("loop.yaml").write_text(JOB.replace("set: {batch: 4}", "set: {batch: 4, new_tokens: null}"))
    work = catalog.resolve(story).workload.programs["act"].work
    assert (work.batch, work.new_tokens) == (4, 1), "the default"
    assert "new_tokens" not in work.assumed

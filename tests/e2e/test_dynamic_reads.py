"""Experts that are read dynamically, through the whole of a run: from the documents to the files."""

from __future__ import annotations

import json
from pathlib import Path

import documents
import pytest
from folding import folded

import simulator as hosim
from simulator.cli.check import describe
from simulator.errors import ConfigError

pytestmark = pytest.mark.usefixtures("pictures_are_blank")

EXPERTS = "kind: experts, routed: 6, top_k: 2, width: 512, shared: 1"
DENSE_FIRST = "[{stop: 1, feed_forward: {kind: dense, width: 64}}]"
JOB = documents.decoder(3, EXPERTS, DENSE_FIRST, batch=1, sequence=16, steps=4, experts="each")
STORY = """\
schema: hosim/scenario/1
name: story
hardware: box.yaml
workload: job.yaml
homes: {expert: ddr}
budget: 2 MB
seed: 4
DRAWS
policies:
  - {policy: reactive, label: on demand, options: {dynamic: on_demand}}
  - {policy: reactive, label: all}
  - {policy: hybrid, options: {prefetch: speculative}}
  - static
  - resident
"""
OPS = ["L01/decode/ffn.experts", "L02/decode/ffn.experts"]


def folder(path: Path, draws: str = "", **files: str) -> Path:
    """A folder with the documents and some files; return the scenario."""
    texts = {"box.yaml": documents.BOX, "job.yaml": JOB, "story.yaml": STORY.replace("DRAWS\n", draws), **files}
    for name, text in texts.items():
        (path / name.replace("_csv", ".csv")).write_text(text)
    return path / "story.yaml"


def experts(graph) -> list[int]:
    return [t.size_bytes for t in graph.tensors if t.kind == "expert"]


def test_only_what_is_chosen_comes_in(tmp_path: Path) -> None:
    """Each step has two layers that read two of six experts; `all` and `static` bring six."""
    results = hosim.run(folder(tmp_path, "draws: {distribution: zipf, skew: 2.0}\n"))
    assert {row.status for row in results.values()} <= {"ok", "infeasible"}
    size = experts(results["all"].graph)[0]
    assert results["static"].summary["moved_h2d_bytes"] >= 2 * 6 * size - 2_000_000
    for label in ("on demand", "hybrid"):
        spans = results[label].spans
        assert results[label].summary["moved_h2d_bytes"] <= 2 * 2 * size * (2 if label == "hybrid" else 1)
        assert len(spans[spans["kind"] == "compute"]) == 4 * len(results[label].graph.ops)
        assert results[label].summary["step_ns"] <= results["all"].summary["step_ns"]
    assert results.provenance["draws"] == {"distribution": "zipf", "skew": 2.0, "stickiness": 0.0}
    assert results.provenance["seed"] == 4


@pytest.mark.parametrize(("budget", "misses"), [("1100 kB", 4), ("1400 kB", 1), ("2 MB", 0)])
def test_what_was_chosen_and_not_hit_is_what_comes_in(tmp_path: Path, budget: str, misses: int) -> None:
    """In the last step two layers choose two experts each; on demand, each one that is not there is copied in once."""
    story = folder(tmp_path, "draws: {distribution: zipf, skew: 2.0}\n")
    story.write_text(story.read_text().replace("2 MB", budget))
    row = hosim.run(story, policies=["on demand"])["on demand"]
    assert row.summary["chosen_hit_fraction"] == 1 - misses / 4
    assert row.summary["moved_h2d_bytes"] == misses * experts(row.graph)[0]


def test_where_all_experts_stay_every_choice_is_a_hit_and_without_choices_there_is_no_rate(tmp_path: Path) -> None:
    story = folder(tmp_path)
    story.write_text(story.read_text().replace("{expert: ddr}", "{expert: hbm}").replace("2 MB", "9 MB"))
    assert hosim.run(story, policies=["resident"])["resident"].summary["chosen_hit_fraction"] == 1.0
    (tmp_path / "job.yaml").write_text(JOB.replace("experts: each", "experts: together"))
    assert "chosen_hit_fraction" not in hosim.run(story, policies=["resident"])["resident"].summary


@pytest.mark.parametrize(("budget", "moves"), [("3 MB", False), ("1500 kB", True)])
@pytest.mark.parametrize("evict", ["hot", "lru"])
def test_what_is_read_late_and_free_stays_as_far_as_there_is_room(tmp_path, budget, moves, evict) -> None:
    """Not all of it went away to be brought back: nothing moves where all fits, and a runtime is no faster."""
    story = folder(tmp_path, "draws: {distribution: zipf, skew: 2.0}\n")
    text = story.read_text().replace("{expert: ddr}", "{expert: free}").replace("2 MB", budget)
    text = text.replace("{dynamic: on_demand}", f"{{dynamic: on_demand, evict: {evict}}}")
    story.write_text(text.replace("{prefetch: speculative}", f"{{evict: {evict}}}"))
    rows = {label: row.summary for label, row in hosim.run(story, policies=["on demand", "hybrid"]).items()}
    assert (rows["hybrid"]["moved_h2d_bytes"] > 0) == moves
    assert rows["hybrid"]["step_ns"] <= rows["on demand"]["step_ns"]
    assert ("of the candidates stay in hbm" in rows["hybrid"]["notes"]) == moves


@pytest.mark.parametrize("evict", ["lru", "hot", pytest.param("lfu", marks=pytest.mark.slow)])
@pytest.mark.parametrize("budget", ["98 kB", "182 kB", "266 kB"])
@pytest.mark.parametrize("ahead", [4, pytest.param(0, marks=pytest.mark.slow)])
def test_a_runtime_does_not_block_itself_where_every_home_is_free(tmp_path, budget, ahead, evict) -> None:
    """What stays in its cache from step to step makes room for what must be back when a step ends."""
    small = EXPERTS.replace("512", "64")
    story = folder(tmp_path, "draws: {distribution: zipf}\n")
    (tmp_path / "job.yaml").write_text(documents.decoder(2, small, batch=1, sequence=16, steps=3, experts="each"))
    text = story.read_text().replace("{expert: ddr}", '{"*": free}').replace("2 MB", budget)
    options = f"{{dynamic: on_demand, evict: {evict}, look_ahead: {ahead}}}"
    story.write_text(text.replace("{dynamic: on_demand}", options))
    assert hosim.run(story, policies=["on demand"])["on demand"].status == "ok"


FAR = """\
  pool: {capacity: inf}
links:
  d2p: {source: hbm, target: pool, bandwidth: 10 GB/s}
  p2d: {source: pool, target: hbm, bandwidth: 10 GB/s}
"""


def test_what_is_read_late_and_free_lives_where_there_is_room(tmp_path) -> None:
    """Three of the experts fit in the nearest tier, the others in the next."""
    story = folder(tmp_path, "draws: {distribution: zipf}\n")
    size = 2 * 3 * 64 * 512
    box = documents.BOX.replace("ddr: {capacity: inf}", f"ddr: {{capacity: {3 * size} B}}").replace("links:\n", FAR, 1)
    (tmp_path / "box.yaml").write_text(box)
    story.write_text(story.read_text().replace("{expert: ddr}", "{expert: free}").replace("2 MB", "1 MB"))
    rows = {name: row.summary for name, row in hosim.run(story, policies=["on demand", "hybrid"]).items()}
    assert rows["hybrid"]["peak_ddr_bytes"] == 3 * size
    assert rows["hybrid"]["peak_pool_bytes"] >= size
    assert rows["hybrid"]["step_ns"] <= rows["on demand"]["step_ns"]


@pytest.mark.parametrize("evict", ["lru", "lfu"])
def test_a_runtime_does_not_block_itself_over_two_links(tmp_path, evict) -> None:
    """What came back when a step ended leaves unused in the next, in the room that copies over the other link took."""
    small = EXPERTS.replace("routed: 6", "routed: 3").replace("512", "256")
    fields = {"batch": 2, "sequence": 64, "new_tokens": 2, "steps": 2, "experts": "each"}
    story = folder(tmp_path, "draws: {distribution: zipf}\n")
    (tmp_path / "job.yaml").write_text(documents.decoder(3, small, **fields))
    box = documents.BOX.replace("ddr: {capacity: inf}", "ddr: {capacity: DDR}").replace("links:\n", FAR, 1)
    (tmp_path / "box.yaml").write_text(box.replace("DDR", "1140000 B"))
    text = story.read_text().replace("{expert: ddr}", '{"*": free}').replace("2 MB", "676768 B")
    story.write_text(text.replace("{dynamic: on_demand}", f"{{dynamic: on_demand, evict: {evict}, look_ahead: 32}}"))
    assert hosim.run(story, policies=["on demand"])["on demand"].status == "ok"


def test_hybrid_divides_no_room_where_there_is_none_to_divide(tmp_path) -> None:
    """What is awaited lies beside few ops, and not beside the largest, which takes all of the room."""
    story = folder(tmp_path)
    job = documents.decoder(1, "kind: dense, width: 64", batch=2, sequence=24, steps=2, kv="{block: 4}")
    sparse = "sparse: {compress: {block: 4, stride: 2}, select: {block: 4, top: 5}, window: 4}"
    (tmp_path / "job.yaml").write_text(job.replace("head_size: 16", f"head_size: 16, {sparse}"))
    text = story.read_text().replace("options: {prefetch: speculative}", "options: {}")
    story.write_text(text.replace("{expert: ddr}", "{kv_cache: free, weight: free}").replace("2 MB", "19 kB"))
    rows = hosim.run(story, policies=["on demand", "hybrid"])
    assert {row.status for row in rows.values()} == {"ok"}
    assert "nothing is compiled" in rows["hybrid"].summary["notes"]


def test_what_was_recorded_runs_again(tmp_path: Path) -> None:
    """The files of a run, and its plan, repeat it to the byte; other draws are told from the plan."""
    rows = "".join(f"{step},{op},{step} {step + 1}\n" for step in range(4) for op in OPS)
    story = folder(tmp_path, "draws: {file: r.csv}\n", r_csv=f"step,op,chosen\n{rows}")
    hosim.run(story, policies=["on demand"]).write(tmp_path / "out")
    again = hosim.run(tmp_path / "out" / "scenario.yaml", policies=["on demand"])
    (summary,) = json.loads((tmp_path / "out" / "summary.json").read_text())["rows"]
    assert again["on demand"].summary["step_ns"] == summary["step_ns"]
    plan = tmp_path / "out" / "on-demand" / "plan.jsonl"
    text = story.read_text().replace("  - static\n", f"  - {{policy: {plan}, label: recorded}}\n")
    story.write_text(text)
    replayed = hosim.run(story, policies=["recorded"])["recorded"]
    assert replayed.status == "ok"
    assert "fixed plans" not in replayed.summary["bounded_by"], "it knows what is chosen, so that it need not bring all"
    assert "fixed plans" in hosim.run(story, policies=["static"])["static"].summary["bounded_by"]
    assert replayed.summary["moved_h2d_bytes"] == summary["moved_h2d_bytes"]
    story.write_text(text.replace("draws: {file: r.csv}", "draws: {distribution: uniform}"))
    failed = hosim.run(story, policies=["recorded"])["recorded"].summary
    assert failed["status"] == "failed"
    assert "a tensor that an action reads is valid" in failed["notes"]


def test_a_cache_that_is_too_small_is_told_with_what_is_right(tmp_path: Path) -> None:
    wrong, tier = "1 B", "the cache in hbm"
    story = folder(tmp_path, "draws: {distribution: zipf}\n")
    row_of_it = f"  - {{policy: hybrid, label: wrong, options: {{cache: {wrong}}}}}\n  - static\n"
    story.write_text(story.read_text().replace("  - static\n", row_of_it))
    row = hosim.run(story, policies=["wrong"])["wrong"]
    assert (row.status, row.shortfall.tier) == ("infeasible", tier)
    (lever,) = row.shortfall.levers
    right = lever.split("(")[1].removesuffix(" B)").replace(",", "")
    story.write_text(story.read_text().replace(f"cache: {wrong}", f"cache: {right} B"))
    assert hosim.run(story, policies=["wrong"])["wrong"].status == "ok"


def test_an_amount_that_is_more_than_the_shortage_says_for_whom(tmp_path: Path) -> None:
    """No op has room in nothing; of dynamic reads it needs what is chosen, and `static` all that may be."""
    story = folder(tmp_path, "draws: {distribution: zipf}\n")
    story.write_text(story.read_text().replace("2 MB", "0 B"))
    short = hosim.run(story, policies=["static"])["static"].shortfall
    assert short.rooms[0]["hbm"] > short.short_bytes
    assert short.levers[0].endswith("B) for static to run")


def test_a_uniform_distribution_has_no_skew(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a skew is of the distribution zipf, found skew with uniform; write"):
        hosim.run(folder(tmp_path, "draws: {skew: 2.0}\n"))


@pytest.mark.slow
def test_conditions_are_tried_with_the_draws(tmp_path: Path) -> None:
    """A plan for nominal times, and a runtime that handles dynamic reads, under other conditions."""
    story = folder(tmp_path, "draws: {distribution: zipf}\n")
    rows = {"policies": ["hybrid", "on demand"], "plans": "once", "cache": False}
    found = [hosim.sweep(story, {"links.*.bandwidth": ["1x", "0.5x"]}, **rows)]
    found.append(hosim.sweep(story, jitter=[0.05, 0.2], draws=2, **rows))
    assert {row["status"] for sweep in found for row in sweep.rows} == {"ok"}


def test_a_recorded_plan_is_checked_with_the_draws(tmp_path: Path) -> None:
    story = folder(tmp_path)
    hosim.run(story, policies=["hybrid"]).write(tmp_path / "out")
    assert "homes for story" in describe(str(tmp_path / "out" / "hybrid" / "plan.jsonl"), str(story))


BAD = {
    "no such file": ("draws: {file: gone.csv}\n", "", "story.yaml:8, draws.file"),
    "other columns": ("draws: {file: r.csv}\n", "a,b\n", "the first line names layer,expert,share or step,op,chosen"),
    "another model": ("draws: {file: r.csv}\n", "layer,expert,share\n0,0,1\n", "there is a layer for each op"),
    "too many experts": (
        "draws: {file: r.csv}\n",
        "layer,expert,share\n1,6,1\n2,0,1\n",
        "experts 0 to 5 of layer 1 have a share, at least 2 of them above 0, found 1 up to expert 6",
    ),
    "choices of another model": (
        "draws: {file: r.csv}\n",
        "step,op,chosen\n"
        + "".join(f"{step},{op},0 1\n" for step in range(4) for op in (*OPS, "L09/experts", "L09/x")),
        "each op in the file is one of the graph with dynamic reads, found 'L09/experts'; take the file of",
    ),
    "two origins": ("draws: {file: r.csv, skew: 2.0}\n", "", "draws come from a file or from a distribution"),
    "an unknown distribution": ("draws: {distribution: zip}\n", "", "draws.distribution"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_draws_are_one_message(tmp_path: Path, name: str) -> None:
    draws, text, message = BAD[name]
    with pytest.raises(ConfigError) as caught:
        hosim.run(folder(tmp_path, draws, r_csv=text))
    assert message in str(caught.value)


GRAPH_OF_BOTH = """
{"schema":"hosim-graph/1","name":"g","steps":4}
{"tensor":"e0","size_bytes":1000000,"kind":"expert","persistent":true}
{"tensor":"e1","size_bytes":1000000,"kind":"expert","persistent":true}
{"tensor":"x","size_bytes":1000,"kind":"input","persistent":true}
{"tensor":"r","size_bytes":1000}
{"op":"route","reads":["x"],"writes":["r"],"duration_ns":1000}
{"op":"moe","reads":["r","e0","e1"],"duration_ns":9000,"dynamic":{"revealed_by":"route","candidates":["e0","e1"]}}
{"op":"both","reads":["e1"],"duration_ns":5000}
"""


@pytest.mark.parametrize("draws", ["{file: r.csv}", "{distribution: zipf}", "{stickiness: 0.5}"])
def test_draws_for_what_draws_nothing_are_refused(tmp_path: Path, draws: str) -> None:
    story = folder(tmp_path, f"draws: {draws}\n", r_csv="layer,expert,share\n0,0,1\n")
    (tmp_path / "job.yaml").write_text(JOB.replace("experts: each\n", ""))
    with pytest.raises(
        ConfigError, match=r"story.yaml:8, draws: draws are for ops with dynamic reads, found none in the graph"
    ):
        hosim.run(story)


def test_what_one_op_reads_late_and_another_for_certain_is_refused_by_hybrid_alone(tmp_path):
    (tmp_path / "g.jsonl").write_text(GRAPH_OF_BOTH.lstrip())
    (tmp_path / "w.yaml").write_text("schema: hosim/workload/1\nname: g\ngraph: g.jsonl\n")
    (tmp_path / "s.yaml").write_text(
        "schema: hosim/scenario/1\nname: s\nhardware: h100_sxm\nworkload: w.yaml\nhomes: {expert: ddr}\n"
        "policies: [hybrid, {policy: reactive, options: {dynamic: on_demand}}, static]\n"
    )
    rows = hosim.run(tmp_path / "s.yaml")
    assert {label: row.status for label, row in rows.items()} == {"hybrid": "refused", "reactive": "ok", "static": "ok"}
    assert "'e1' by 'both'" in rows["hybrid"].summary["notes"]


def of_three(path: Path, draws: str = "", **files: str) -> Path:
    """The same on three ranks of a node, each with the whole model, which share what comes in from DDR."""
    box = documents.BOX.replace(
        "assumed:\n",
        "topology: {devices_per_node: 3}\n"
        "buses: {pool: {links: [h2d], bandwidth: 50 GB/s, scope: node}}\n"
        "assumed:\n  topology: a toy\n  buses: a toy\n",
    )
    job = JOB.replace("steps: 4", "steps: 4\nreplicas: 3").replace("steps: a toy", "steps: a toy, replicas: a toy")
    story = STORY.replace("DRAWS\n", draws).replace("  - resident\n", "")
    return folder(path, **{"box.yaml": box, "job.yaml": job, "story.yaml": story, **files})


def copied(results, label: str, rank: int) -> set[str]:
    spans = results[label].spans
    return set(spans[(spans["kind"] == "transfer") & (spans["rank"] == rank)]["name"])


def test_each_rank_brings_what_it_draws_and_all_have_the_same_hot_experts(tmp_path: Path) -> None:
    results = hosim.run(of_three(tmp_path, "draws: {distribution: zipf, skew: 2.0}\n"))
    assert {row.status for row in results.values()} == {"ok"}
    task = results["on demand"].case.tasks[0]
    names = [tensor.name for tensor in task.graph.tensors]
    for rank in range(3):
        draws = task.draws(rank)
        chosen = {names[t] for op in draws.chosen_flags for step in range(4) for t in draws.chosen(op, step)}
        assert copied(results, "on demand", rank) == chosen
    assert len({frozenset(copied(results, "on demand", rank)) for rank in range(3)}) > 1
    for op, shares in task.problem.popularity.items():
        hottest = shares.index(max(shares))
        assert all(task.draws(rank).chosen_flags[op][:, hottest].any() for rank in range(3))


def test_ranks_that_read_their_choices_from_a_file_stand_for_one_another(tmp_path: Path) -> None:
    rows = "".join(f"{step},{op},{step} {step + 1}\n" for step in range(4) for op in OPS)
    found = {}
    for fold in ("never", "always"):
        with folded(fold):
            found[fold] = hosim.run(of_three(tmp_path, "draws: {file: r.csv}\n", r_csv=f"step,op,chosen\n{rows}"))
    for label, row in found["always"].items():
        whole = found["never"][label]
        assert (whole.trace.stands_in, row.trace.stands_in) == ((0, 1, 2), (0, 0, 0))
        assert row.summary == whole.summary, "what is remarked counts all ranks, too"


def test_ranks_that_draw_for_themselves_are_not_folded(tmp_path: Path) -> None:
    why = "ranks 0 and 1 run the same, but each draws the choices of its dynamic reads"
    with folded("always"), pytest.raises(ConfigError, match=why):
        hosim.run(of_three(tmp_path))
    results = hosim.run(of_three(tmp_path), policies=["hybrid"])
    assert results["hybrid"].trace.stands_in == (0, 1, 2)

"""Edges of a job, one short story each, with exact timelines: 1 byte takes 1 ns from rank to rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rank_stories import cluster, perform, spans, team

from simulator.builders.joined import build_programs
from simulator.catalog.text import compose
from simulator.errors import ConfigError
from simulator.graph import DelaySpread, Graph, Job
from simulator.workload.job import JobDocument

MAKE = team("x 40", "make: -> x, 10 ns", groups={})
USE = team("y 40 input, z 8", "other: -> z, 5 ns", "use: y z ->, 20 ns", groups={})


def job(programs: dict[str, tuple[Graph, str | int]], edges: list[dict[str, Any]], runs: int = 1, **more: Any) -> Job:
    """The job of these graphs on their ranks, as a document of its own would make it; `runs` are of the first."""
    about = {name: {"workload": {"graph": name}, "ranks": ranks} for name, (_, ranks) in programs.items()}
    about[next(iter(programs))]["runs"] = runs
    document = JobDocument.model_validate({"name": "j", "programs": about, "edges": edges, "steps": 1, **more})
    return build_programs(document, lambda work: (_of_all(programs[str(work.graph)][0]), {}))


def _of_all(graph: Graph) -> Job:
    """The job of a graph on all ranks that its groups name."""
    return Job.of(
        graph, 1 + max((rank for group in graph.groups for ranks in group.members for rank in ranks), default=0)
    )


def timeline(job: Job, home: str = "") -> list[str]:
    """What runs when, if each op is issued in program order, and each group of ranks has a stream."""
    programs = []
    for graph in map(job.graph, range(job.ranks)):
        streams = {name: 1 + i for i, name in enumerate(dict.fromkeys(group.name for group in graph.groups))}
        on = [streams[op.collective.group] if op.collective else 0 for op in graph.ops]
        programs.append((graph, "; ".join(f"compute {op.name} {s}" for op, s in zip(graph.ops, on, strict=True))))
    hardware = cluster(max(2, job.ranks), hbm="1000 B")
    return spans(perform(hardware, programs, home), programs, hardware)


def test_a_tensor_is_sent_once_written_and_received_before_it_is_read():
    made = job({"a": (MAKE, 1), "b": (USE, 1)}, [{"from": "a", "to": "b", "tensors": {"x": "y"}}])
    assert [op.name for op in made.graph(1).ops] == ["b.other", "a.to.b/y/recv.0", "b.use"]
    assert timeline(made) == [
        "0: 0-10 a.make", "0: 10-50 a.to.b/y/send.0",
        "1: 0-5 b.other", "1: 10-50 a.to.b/y/recv.0", "1: 50-70 b.use",
    ]  # fmt: skip


def test_on_the_same_rank_it_is_one_tensor():
    made = job({"a": (MAKE, 1), "b": (USE, "a")}, [{"from": "a", "to": "b", "tensors": {"x": "y"}}])
    assert [tensor.name for tensor in made.graphs[0].tensors] == ["a.x", "b.z"]
    assert timeline(made) == ["0: 0-10 a.make", "0: 10-15 b.other", "0: 15-35 b.use"]


ROLLOUT = team("w 20 persistent, s 10", "gen: w -> s, 30 ns", groups={})
TRAIN = team("s 10 input persistent, w 20 persistent", "train: s w -> w, 40 ns", groups={})
HOME = "rollout.w hbm, train.w hbm, train.s hbm, train.s.1 hbm"


def loop(stale: int = 0, steps: int = 2, **ranks: int | str) -> Job:
    """The loop of reinforcement learning: samples to the trainer, weights back."""
    samples = {"from": "rollout", "to": "train", "tensors": {"s": "s"}, "stale": stale}
    weights = {"from": "train", "to": "rollout", "tensors": {"w": "w"}}
    programs = {"rollout": (ROLLOUT, ranks.get("rollout", 1)), "train": (TRAIN, ranks.get("train", 1))}
    return job(programs, [samples, weights], steps=steps)


def test_on_policy_either_program_waits_for_the_other():
    """The trainer reads samples of the same round, and rollout weights of the round before."""
    assert timeline(loop(), HOME) == [
        "0: 0-30 rollout.gen", "0: 30-40 rollout.to.train/s/send.0", "0: 80-100 train.to.rollout/w/recv.0",
        "0: 100-130 rollout.gen", "0: 130-140 rollout.to.train/s/send.0", "0: 180-200 train.to.rollout/w/recv.0",
        "1: 30-40 rollout.to.train/s/recv.0", "1: 40-80 train.train", "1: 80-100 train.to.rollout/w/send.0",
        "1: 130-140 rollout.to.train/s/recv.0", "1: 140-180 train.train", "1: 180-200 train.to.rollout/w/send.0",
    ]  # fmt: skip


def test_one_round_stale_both_work_at_once():
    """In round n the trainer reads the samples of round n - 1: it receives those of round n once it is done."""
    assert timeline(loop(stale=1), HOME) == [
        "0: 0-30 rollout.gen", "0: 40-50 rollout.to.train/s/send.0", "0: 40-60 train.to.rollout/w/recv.0",
        "0: 60-90 rollout.gen", "0: 100-110 rollout.to.train/s/send.0", "0: 100-120 train.to.rollout/w/recv.0",
        "1: 0-40 train.train", "1: 40-50 rollout.to.train/s/recv.0", "1: 40-60 train.to.rollout/w/send.0",
        "1: 60-100 train.train", "1: 100-110 rollout.to.train/s/recv.0", "1: 100-120 train.to.rollout/w/send.0",
    ]  # fmt: skip


def test_more_rounds_wait_in_buffers_which_take_turns_and_copy_nothing():
    """Rollout takes 100: the trainer, two rounds stale, has what it needs for two rounds, and waits in the third."""
    slow = team("s 10", "gen: -> s, 100 ns", groups={})
    edges = [{"from": "rollout", "to": "train", "tensors": {"s": "s"}, "stale": 2}]
    made = job({"rollout": (slow, 1), "train": (TRAIN, 1)}, edges, steps=3)
    assert [tensor.name for tensor in made.graph(1).tensors] == ["train.s", "train.w", "train.s.1"]
    trained = [line for line in timeline(made, HOME) if "train.train" in line]
    assert trained == ["1: 0-40 train.train", "1: 40-80 train.train", "1: 110-150 train.train"]
    assert made.graph(1).ops[1].name == "rollout.to.train/s/turn.1"


def test_on_the_same_rank_what_is_of_the_round_before_is_copied():
    """The copy reads and writes 20 bytes of a memory of 1 byte per ns."""
    assert timeline(loop(train="rollout"), HOME) == [
        "0: 0-30 rollout.gen", "0: 30-70 train.train", "0: 70-110 train.to.rollout/w/copy",
        "0: 110-140 rollout.gen", "0: 140-180 train.train", "0: 180-220 train.to.rollout/w/copy",
    ]  # fmt: skip


def test_bytes_go_from_the_last_op_of_one_program_to_the_first_of_the_other():
    tool = team("t 1", "call: -> t, 7 ns", groups={})
    made = job({"a": (MAKE, 2), "b": (tool, 1)}, [{"from": "a", "to": "b", "bytes": "30 B"}])
    assert timeline(made) == [
        "0: 0-10 a.make", "0: 10-25 a.to.b/bytes/send.0", "1: 0-10 a.make", "1: 25-40 a.to.b/bytes/send.1",
        "2: 10-25 a.to.b/bytes/recv.0", "2: 25-40 a.to.b/bytes/recv.1", "2: 40-47 b.call",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("size", "ranks", "sent"),
    [
        (40, (2, 1), {(0, 2)}),  # both hold it: one sends
        (20, (2, 1), {(0, 2), (1, 2)}),  # halves
        (40, (1, 2), {(0, 1), (0, 2)}),  # both get it
        (80, (1, 2), {(0, 1), (0, 2)}),  # half each
        (40, (2, 2), {(0, 2), (1, 3)}),
    ],
)
def test_ranks_correspond_in_order_with_all_or_with_equal_parts(size, ranks, sent):
    make = team(f"x {size}", "make: -> x, 10 ns", groups={})
    made = job({"a": (make, ranks[0]), "b": (USE, ranks[1])}, [{"from": "a", "to": "b", "tensors": {"x": "y"}}])
    met = {(pair, op.collective.size_bytes) for g in made.graphs for op in g.ops if op.collective
           for group in g.groups if group.name == op.collective.group for pair in group.members}  # fmt: skip
    assert met == {(pair, min(size, 40)) for pair in sent}
    timeline(made)


def test_a_program_that_runs_twice_hands_over_what_its_last_run_wrote():
    about = {"a": {"workload": {"graph": "a"}, "ranks": 1, "runs": 2}, "b": {"workload": {"graph": "b"}, "ranks": 1}}
    edges = [{"from": "a", "to": "b", "tensors": {"x": "y"}}]
    document = JobDocument.model_validate({"name": "j", "programs": about, "edges": edges, "steps": 1})
    made = build_programs(document, lambda work: (Job.of({"a": MAKE, "b": USE}[str(work.graph)]), {}))
    assert [op.name for op in made.graph(0).ops] == ["a.0.make", "a.1.make", "a.to.b/y/send.0"]
    assert timeline(made)[-1] == "1: 60-80 b.use"


def test_idle_ranks_and_delays_have_graphs_of_their_own():
    programs: dict[str, Any] = {"a": {"delay": "5 ns", "ranks": "0"}, "b": {"delay": "5 ns", "ranks": "2"}}
    programs["b"]["spread"] = {"distribution": "exponential"}
    document = {"name": "j", "programs": programs, "idle": "1", "steps": 1}
    made = build_programs(JobDocument.model_validate(document), lambda _: (Job.of(MAKE), {}))
    assert made.labels == ("a", "idle", "b")
    assert made.graph(2).ops[0].spread == DelaySpread("exponential")
    programs["b"].pop("spread")
    made = build_programs(JobDocument.model_validate(document), lambda _: (Job.of(MAKE), {}))
    assert timeline(made) == ["0: 0-5 a.wait", "1: 0-0 wait", "2: 0-5 b.wait"]


BAD_EDGES = {
    "tensors: {nope: y}": "a tensor that is handed over is one of a, found 'nope'",
    "tensors: {x: nope}": "a tensor of b that is handed over has a producer in a, found 'nope'",
    "weights: true": "a program gets weights from one that has the same model, found 'b', which a does not have",
}


@pytest.mark.parametrize(("edge", "message"), BAD_EDGES.items())
def test_what_cannot_be_handed_over_is_refused(edge, message):
    about = compose(edge, "edge").data
    with pytest.raises(ConfigError) as refused:
        job({"a": (MAKE, 1), "b": (USE, 1)}, [{"from": "a", "to": "b", **about}])
    assert message in str(refused.value)


def test_unlike_sizes_and_ranks_are_refused():
    make = team("x 30", "make: -> x, 10 ns", groups={})
    edges = [{"from": "a", "to": "b", "tensors": {"x": "y"}}]
    with pytest.raises(ConfigError, match="'x' of 30 B on 1 and 'y' of 40 B on 1 ranks"):
        job({"a": (make, 1), "b": (USE, 1)}, edges)
    with pytest.raises(ConfigError, match="one number is a multiple of the other, found 2 with 'x' and 3 with 'y'"):
        job({"a": (MAKE, 2), "b": (USE, 3)}, edges)
    with pytest.raises(ConfigError, match="a tensor handed over is written, found 'y', which no op of b writes"):
        job({"b": (USE, 1), "a": (MAKE, 1)}, [{"from": "b", "to": "a", "tensors": {"y": "x"}}])


ENCODE = team("v 40, g 40, u 8", "see: -> v, 10 ns", "grade: -> g, 5 ns", "learn: g -> u, 10 ns", groups={})
SPEAK = team("e 16, h 40", "embed: -> e, 5 ns", "answer: e -> h, 20 ns", groups={})
FORTH = {"from": "a", "to": "b", "tensors": {"v": "e"}}
BACK = {"from": "b", "to": "a", "tensors": {"h": "g"}, "back": True}


def test_the_op_that_writes_a_tensor_takes_up_what_is_handed_to_it():
    made = job({"a": (ENCODE, 1), "b": (SPEAK, 1)}, [FORTH])
    taken = made.graph(1).tensors[made.graph(1).ops[1].reads[0]]
    assert (taken.name, taken.size_bytes) == ("b.a.to.b.e", 40), "as large as what is sent"
    assert timeline(made)[-3:] == ["1: 10-50 a.to.b/a.to.b.e/recv.0", "1: 50-55 b.embed", "1: 55-75 b.answer"]


def test_gradients_go_back_in_the_same_round():
    made = job({"a": (ENCODE, 1), "b": (SPEAK, 1)}, [FORTH, BACK])
    assert timeline(made) == [
        "0: 0-10 a.see", "0: 10-50 a.to.b/a.to.b.e/send.0",
        "0: 75-115 b.to.a/b.to.a.g/recv.0", "0: 115-120 a.grade", "0: 120-130 a.learn",
        "1: 10-50 a.to.b/a.to.b.e/recv.0", "1: 50-55 b.embed", "1: 55-75 b.answer", "1: 75-115 b.to.a/b.to.a.g/send.0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "edge"), [(1, BACK | {"stale": 1}), ("a", BACK), (1, FORTH | {"back": True}), (1, {"bytes": "8 B"})]
)
def test_only_tensors_go_back_at_once_to_a_program_before_on_other_ranks(ranks, edge):
    edge = edge if "tensors" in edge else {**BACK, "tensors": {}} | edge
    with pytest.raises(ValueError, match="only tensors go back, in the same round, to a program before on other"):
        job({"a": (ENCODE, 1), "b": (SPEAK, ranks)}, [edge])


def test_what_a_program_may_read_in_place_stays_so_unless_another_writes_it():
    reads = replace(
        team("w 20 persistent, v 20 persistent", "use: w v ->, 5 ns", groups={}), in_place=frozenset({0, 1})
    )
    writes = team("w 20 persistent", "train: w -> w, 5 ns", groups={})
    programs = {"a": (writes, 1), "b": (reads, "a")}
    made = job(programs, [{"from": "a", "to": "b", "tensors": {"w": "w"}}]).graphs[0]
    assert [made.tensors[t].name for t in made.in_place] == ["b.v"]


TOWER = team("i 1 persistent, x 10", "see: i -> x, 30 ns", groups={})
WORDS = team(
    "w 5 persistent, e0 10, e1 10",
    "embed0: w -> e0, 5 ns", "use0: e0 ->, 20 ns", "embed1: w -> e1, 5 ns", "use1: e1 ->, 20 ns", groups={},
)  # fmt: skip
SEEN = [{"from": "t", "to": "l", "tensors": {"x": "e*"}, "each_run": True}]
HOMES = "t.i hbm, l.w hbm"


def test_each_copy_hands_a_tensor_over_from_its_rank_to_the_one_that_embeds_them():
    """Rank 1 sees the second image while rank 0 sees the first."""
    assert timeline(job({"t": (TOWER, 2), "l": (WORDS, "0")}, SEEN), HOMES) == [
        "0: 0-30 t.see", "0: 30-35 l.embed0", "0: 30-40 t.to.l/t.to.l.e1/recv.0", "0: 35-55 l.use0",
        "0: 55-60 l.embed1", "0: 60-80 l.use1",
        "1: 0-30 t.see", "1: 30-40 t.to.l/t.to.l.e1/send.0",
    ]  # fmt: skip


def test_runs_of_the_rank_that_embeds_wait_until_it_does():
    assert timeline(job({"t": (TOWER, 1), "l": (WORDS, "t")}, SEEN, runs=2), HOMES) == [
        "0: 0-30 t.0.see", "0: 30-35 l.embed0", "0: 35-55 l.use0",
        "0: 55-85 t.1.see", "0: 85-90 l.embed1", "0: 90-110 l.use1",
    ]  # fmt: skip


def test_the_copies_take_the_tensors_in_turn_run_by_run():
    """Four of them: rank 0 sees the first and the third, rank 1 the second and, already before, the last."""
    four = ["e0", "e1", "e2", "e3"]
    ops = [f"{name}: w -> {name}, 5 ns" for name in four]
    words = team("w 5 persistent, " + ", ".join(f"{name} 10" for name in four), *ops, groups={})
    made = job({"t": (TOWER, 2), "l": (words, "0")}, SEEN, runs=2)
    first = [op.name for op in made.graph(0).ops]
    assert [name for name in first if "to.l" not in name] == ["t.0.see", "l.e0", "l.e1", "t.1.see", "l.e2", "l.e3"]
    reads = {op.name: [made.graph(0).tensors[t].name for t in op.reads] for op in made.graph(0).ops}
    taken = {name: next(t for t in reads[f"l.{name}"] if t != "l.w") for name in four}
    assert taken == {"e0": "t.0.x", "e1": "l.t.to.l.e1", "e2": "t.1.x", "e3": "l.t.to.l.e3"}
    sent = [made.graph(1).tensors[t].name for op in made.graph(1).ops if op.collective for t in op.reads]
    assert sent == ["t.0.x", "t.1.x"]
    assert timeline(made, HOMES)[-1] == "1: 75-85 t.to.l/t.to.l.e3/send.0"


def test_runs_of_a_copy_that_has_other_ranks_too_wait_for_nobody():
    """Else its other rank would wait for this one while this one waits for what comes of it."""
    meet = {"all": ((0, 1),)}
    pair = team("i 1 persistent, x 10", "see: i -> x, 30 ns", "sum: x -> x, all_reduce all 10", groups=meet)
    made = job({"t": (pair, 2), "l": (WORDS, "0")}, SEEN, runs=2)
    ops = [op.name for op in made.graph(0).ops if "to.l" not in op.name]
    assert ops[:4] == ["t.0.see", "t.0.sum", "t.1.see", "t.1.sum"]
    assert timeline(made, HOMES)[-1].startswith("1: ")


def test_runs_that_hand_over_more_than_one_edge_wait_for_nobody():
    """Else who stands before the one that they wait for would read what nobody has written."""
    between = team("y 10 input, z 8", "other: -> z, 5 ns", "use: y z ->, 20 ns", groups={})
    programs = {"t": (TOWER, 1), "b": (between, "t"), "l": (WORDS, "t")}
    made = job(programs, [*SEEN, {"from": "t", "to": "b", "tensors": {"x": "y"}}], runs=2)
    assert [op.name for op in made.graph(0).ops][:4] == ["t.0.see", "t.1.see", "b.other", "b.use"]


def test_copies_of_ranks_that_all_take_what_each_makes_run_beside_one_another():
    meet = {"all": ((0, 1),)}
    words = team("w 5 persistent, z 8, e0 20, e1 20", "other: -> z, 5 ns", "e0: w -> e0, 5 ns",
                 "sum: e0 -> e0, all_reduce all 10", "e1: w -> e1, 5 ns", groups=meet)  # fmt: skip
    made = job({"t": (TOWER, 2), "l": (words, "t")}, SEEN)
    assert next(op.name for op in made.graph(1).ops) == "t.see"
    assert "1: 0-30 t.see" in timeline(made, HOMES)


GRADES = team("w 5 persistent, g0 12, g1 12", "back0: w -> g0, 20 ns", "back1: w -> g1, 20 ns", groups={})
LEARN = team("g 10 input", "learn: g ->, 30 ns", groups={})
GRADED = {"from": "l", "to": "t", "tensors": {"g*": "g"}, "part": True, "each_run": True}


def test_each_copy_gets_a_part_of_the_tensor_that_is_its_own():
    """As the gradients of what each rank encoded come back to it from the first stage."""
    made = job({"l": (GRADES, 1), "t": (LEARN, "0-1")}, [GRADED])
    assert timeline(made, "l.w hbm") == [
        "0: 0-20 l.back0", "0: 20-40 l.back1", "0: 40-60 l.to.t/g/copy", "0: 40-50 l.to.t/g/send.0", "0: 60-90 t.learn",
        "1: 40-50 l.to.t/g/recv.0", "1: 50-80 t.learn",
    ]  # fmt: skip


def test_as_many_copies_as_tensors():
    with pytest.raises(ConfigError, match=r"found 1 runs of 3 copies of t, and 2 tensors 'g\*' of l"):
        job({"l": (GRADES, 1), "t": (LEARN, "0-2")}, [GRADED])


def test_copies_that_have_no_such_tensor():
    with pytest.raises(
        ConfigError, match="a receiver reads the tensor before writing it, found 'none', which is not in t"
    ):
        job({"l": (GRADES, 1), "t": (LEARN, "0-1")}, [GRADED | {"tensors": {"g*": "none"}}])


@pytest.mark.parametrize(
    ("learn", "part", "message"),
    [
        ("g 10 input", False, "one size on both sides.* or say part: true"),
        ("g 12 input", True, "a part of a tensor is smaller, and on as many ranks, found 'g0' of 12 B.*remove part"),
    ],
)
def test_a_part_is_said_to_be_one_and_smaller(learn, part, message):
    taught = team(learn, "learn: g ->, 30 ns", groups={})
    with pytest.raises(ConfigError, match=message):
        job({"l": (GRADES, 1), "t": (taught, "0-1")}, [GRADED | {"part": part}])


def test_as_many_runs_of_all_copies_as_tensors():
    for ranks, runs in ((2, 2), (1, 1), (3, 1)):
        with pytest.raises(ConfigError, match=rf"found {runs} runs of {ranks} copies of t, and 2 tensors 'e\*' of l"):
            job({"t": (TOWER, ranks), "l": (WORDS, "0")}, SEEN, runs=runs)

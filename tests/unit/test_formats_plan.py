"""``hosim-plan/1``: round trips, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import formats
from simulator.errors import ConfigError
from simulator.formats import graph_jsonl, plan_jsonl
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, SYNC, Actions, Code, Plan, View

TIERS = ("hbm", "dram", "ssd")


def example(module: object) -> str:
    """The file in the docstring of a format's module."""
    return dedent(str(module.__doc__).split("::\n\n")[1].split("\n\n")[0]) + "\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """The documented example of a graph; tensors x, w, h and y, ops fwd/up and fwd/gelu."""
    return graph_jsonl.read(written(tmp_path_factory.mktemp("graph") / "g.jsonl", example(graph_jsonl)))


def test_the_documented_example(tmp_path: Path, graph: Graph) -> None:
    path = written(tmp_path / "p.jsonl", example(plan_jsonl))
    plan = plan_jsonl.read(path, graph, ("hbm", "dram"))
    assert (plan.policy, plan.repeats, plan.tiers) == ("mine", 1, ("hbm", "dram"))
    assert plan.home == (0, 1, NOWHERE, NOWHERE)
    assert list(plan.actions)[:5] == [
        (COPY, 1, 1, 0),
        (SYNC, 1, 0, 0),
        (COMPUTE, 0, 0, 0),
        (DETACH, 0, 0, 0),
        (DETACH, 1, 0, 0),
    ]
    plan_jsonl.write(plan, graph, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_text() == example(plan_jsonl)
    assert formats.check(path) == "plan of 'mine': 8 actions, 1 of them copies; 2 homes"


def test_tier_ids_are_those_of_the_machine_that_reads(tmp_path: Path, graph: Graph) -> None:
    plan = plan_jsonl.read(written(tmp_path / "p.jsonl", example(plan_jsonl)), graph, ("dram", "ssd", "hbm"))
    assert plan.tiers == ("dram", "ssd", "hbm")
    assert plan.home[:2] == (2, 0)
    assert next(iter(plan.actions)) == (COPY, 1, 0, 2)


def test_a_header_may_be_bare(tmp_path: Path, graph: Graph) -> None:
    path = written(tmp_path / "mine.jsonl", '{"schema":"hosim-plan/1"}\n{"compute":"fwd/up","stream":3}\n')
    plan = plan_jsonl.read(path, graph.repeated(1), TIERS)
    assert (plan.policy, plan.repeats, plan.notes) == ("mine", 1, ())
    assert list(plan.actions) == [(COMPUTE, 0, 3, 0)]


def test_a_plan_repeats_as_often_as_its_graph_unless_it_says(tmp_path: Path) -> None:
    builder = GraphBuilder("g")
    builder.op("f")
    path = written(tmp_path / "p.jsonl", '{"schema":"hosim-plan/1"}\n{"compute":"f"}\n')
    assert plan_jsonl.read(path, builder.build(steps=7), TIERS).repeats == 7


def test_recomputing_names_the_op_again(tmp_path: Path, graph: Graph) -> None:
    steps = Actions()
    steps.compute(0)
    steps.compute(0, stream=1)
    plan = Plan("again", TIERS, (NOWHERE,) * 4, steps)
    plan_jsonl.write(plan, graph, tmp_path / "p.jsonl")
    assert (tmp_path / "p.jsonl").read_text().splitlines()[1:] == [
        '{"compute":"fwd/up"}',
        '{"compute":"fwd/up","stream":1}',
    ]


def codes() -> st.SearchStrategy[Code]:
    tensor, tier, zero = st.integers(0, 3), st.integers(0, 2), st.just(0)
    return st.one_of(
        st.tuples(st.just(0), st.integers(0, 1), st.integers(0, 999), zero),
        st.tuples(st.just(1), tensor, tier, tier),
        st.tuples(st.just(2), tensor, tier, zero),
        st.tuples(st.just(3), tensor, zero, zero),
    )


@settings(max_examples=60, deadline=None)
@given(
    policy=st.text(max_size=5).filter(str.isprintable),
    home=st.tuples(*[st.integers(NOWHERE, 2)] * 4),
    steps=st.lists(codes(), max_size=20),
    repeats=st.integers(1, 2**62),
    notes=st.lists(st.text(max_size=9).filter(str.isprintable), max_size=3),
    name=st.sampled_from(["p.jsonl", "p.jsonl.gz"]),
)
def test_any_plan_survives(tmp_path_factory, graph, policy, home, steps, repeats, notes, name) -> None:  # type: ignore[no-untyped-def]
    columns = zip(*steps, strict=True) if steps else ((), (), (), ())
    plan = Plan(policy, TIERS, home, Actions.from_columns(*columns), repeats, tuple(notes))
    path = tmp_path_factory.mktemp("plans") / name
    plan_jsonl.write(plan, graph, path)
    assert plan_jsonl.read(path, graph, TIERS) == plan


def test_a_reactive_plan_is_recorded_first(tmp_path: Path, graph: Graph) -> None:
    def decide(view: View) -> Iterator[Code]:
        yield (0, 0, 0, 0)

    with pytest.raises(ConfigError, match=r"is a fixed list of actions, found a reactive one \(lru\)"):
        plan_jsonl.write(Plan("lru", TIERS, (NOWHERE,) * 4, decide), graph, tmp_path / "p.jsonl")
    assert list(tmp_path.iterdir()) == []


def lines(*rest: str, header: str = '"policy":"mine"') -> str:
    return "\n".join([f'{{"schema":"hosim-plan/1",{header}}}', *rest]) + "\n"


BAD = {
    "an unknown op": (lines('{"compute":"fwd/upp"}'), ":2: a plan names ops of its run (fwd/up, fwd/gelu), found 'fwd"),
    "a close op": (lines('{"compute":"fwd/upp"}'), "(did you mean 'fwd/up'?)"),
    "an unknown tensor": (lines('{"sync":"z"}'), ":2: a plan names tensors of its run (x, w, h, y), found 'z'"),
    "an unknown tier": (lines('{"detach":"x","tier":"hbn"}'), "tiers of its run (hbm, dram, ssd), found 'hbn'; corre"),
    "an unknown tier in the header": (lines(header='"tiers":["hbm","pool"]'), ":1: a plan names tiers of its run"),
    "an unknown key": (lines('{"compute":"fwd/up","on":1}'), ":2, on: only known keys stand here, found 'on'"),
    "no such step": (lines('{"store":"x"}'), ":2: a line has one of the keys compute, copy, detach, home, sync"),
    "a copy from nowhere": (lines('{"copy":"x","to":"hbm"}'), ":2, from: the key 'from' is needed here, found none"),
    "a home that is no text": (lines('{"home":"x","tier":0}'), ":2, tier: this is a text, found 0"),
    "two homes": (lines(*['{"home":"x","tier":"hbm"}'] * 2), ":3: a tensor has one home, found 'x' twice"),
    "a negative stream": (
        lines('{"compute":"fwd/up","stream":-1}'),
        ":2, stream: input should be greater than or equal to 0, found -1",
    ),
    "a huge stream": (
        lines('{"compute":"fwd/up","stream":5000000000}'),
        ":2, stream: input should be less than 1000, found 5000000000",
    ),
    "no repeats": (lines(header='"repeats":0'), ":1, repeats: input should be greater than or equal to 1, found 0"),
    "fewer steps than counted": (lines('{"sync":"x"}', header='"actions": 2'), "the 2 actions that its header counts"),
    "notes that are one text": (
        lines(header='"notes":"fast"'),
        ":1, notes: this is a list, found 'fast'",
    ),
    "a graph": ('{"schema":"hosim-graph/1"}\n', ':1: the first line is a header with "schema": "hosim-plan/1", found'),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_plans_are_refused_with_file_and_line(tmp_path: Path, graph: Graph, name: str) -> None:
    text, message = BAD[name]
    path = written(tmp_path / "p.jsonl", text)
    with pytest.raises(ConfigError) as caught:
        plan_jsonl.read(path, graph, TIERS)
    assert str(caught.value).startswith(f"{path}:")
    assert message in str(caught.value)


def test_check_reads_a_plan_without_its_graph_but_sees_broken_lines(tmp_path: Path) -> None:
    gone = ('{"detach":"t","tier":"a"}', '{"detach":"t","tier":"b"}')
    good = written(tmp_path / "good.jsonl", lines('{"compute":"any"}', '{"copy":"t","from":"a","to":"b"}', *gone))
    assert formats.check(good) == "plan of 'mine': 4 actions, 1 of them copies; 0 homes"
    with pytest.raises(ConfigError, match=r"bad\.jsonl:2, to: the key 'to' is needed"):
        formats.check(written(tmp_path / "bad.jsonl", lines('{"copy":"t","from":"a"}')))

"""What `hosim check` finds in a plan file without its graph and its machine."""

from pathlib import Path

import pytest

from simulator import formats
from simulator.errors import ConfigError

HEADER = '{"schema":"hosim-plan/1","tiers":["hbm","ddr"]}'
TWICE = HEADER.replace("}", ',"repeats":2}')
HOME = '{"home":"w","tier":"ddr"}'
IN, OUT = '{"copy":"w","from":"ddr","to":"hbm"}', '{"copy":"w","from":"hbm","to":"ddr"}'
F, G = '{"compute":"f"}', '{"compute":"g"}'
GONE, LOST = '{"detach":"w","tier":"hbm"}', '{"detach":"w","tier":"ddr"}'


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


GOOD = {
    "a weight that comes and goes": (HEADER, HOME, IN, F, GONE, G),
    "what an op made": (HEADER, HOME, F, '{"copy":"a","from":"hbm","to":"ddr"}', '{"detach":"a","tier":"hbm"}',
                        '{"copy":"a","from":"ddr","to":"hbm"}', G, '{"detach":"a","tier":"hbm"}',
                        '{"detach":"a","tier":"ddr"}'),
    "an update that goes home": (TWICE, HOME, IN, F, OUT, GONE),
    "an input that is given up": (HEADER, HOME, IN, F, GONE, LOST),
    "tiers that the header does not name": ('{"schema":"hosim-plan/1"}', '{"home":"w","tier":"x"}', F),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_may_be_right_is_not_refused(tmp_path: Path, name: str) -> None:
    assert formats.check(written(tmp_path / "p.jsonl", *GOOD[name])).startswith("plan of 'p'")


SOURCE = THERE = "what an action copies or detaches is there: by its home, a copy, or an op, which writes in one tier"
BAD = {
    "a home after a step": (
        (HEADER, F, HOME),
        ":3",
        "homes, which say where tensors are at time 0, come before the actions",
        "that of 'w' after 1 action",
    ),
    "a tier twice": ((HEADER.replace("ddr", "hbm"),), ":1, tiers", "each name stands here once", "'hbm' 2 times"),
    "a tier that is not declared": (
        (HEADER, '{"home":"w","tier":"ssd"}'),
        ":2",
        "a plan names tiers of its run (hbm, ddr)",
        "'ssd'",
    ),
    "a copy to itself": (
        (HEADER, HOME, IN.replace("hbm", "ddr")),
        ":3, action 0 (copy w ddr ddr)",
        "a copy goes from one tier to another",
        "'ddr' twice",
    ),
    "a tensor that nothing declares": (
        (HEADER, HOME, IN.replace("w", "v")),
        ":3, action 0 (copy v ddr hbm)",
        SOURCE,
        "'v' absent from ddr",
    ),
    "a copy from where it is not": (
        (HEADER, HOME, OUT),
        ":3, action 0 (copy w hbm ddr)",
        SOURCE,
        "'w' absent from hbm",
    ),
    "a copy to where it is": (
        (HEADER, HOME, IN, F, OUT, IN),
        ":6, action 3 (copy w ddr hbm)",
        "a copy has work to do: its target is absent or stale",
        "'w' valid in hbm already",
    ),
    "a detach of what was never there": (
        (HEADER, HOME, GONE),
        ":3, action 0 (detach w hbm)",
        THERE,
        "'w' absent from hbm",
    ),
    "a detach twice": (
        (HEADER, HOME, IN, F, GONE, GONE),
        ":6, action 3 (detach w hbm)",
        THERE,
        "'w' absent from hbm",
    ),
    "two tiers that only ops can have filled": (
        (HEADER, F, '{"detach":"a","tier":"hbm"}', '{"detach":"b","tier":"ddr"}'),
        ":4, action 2 (detach b ddr)",
        THERE,
        "'b' absent from ddr",
    ),
    "a copy that stays": (
        (HEADER, HOME, IN, F),
        ":4, end of the plan",
        "a tensor ends a training step at its home, and nowhere else",
        "'w' held in hbm",
    ),
    "what an op made and a copy put below": (
        (HEADER, F, '{"copy":"a","from":"hbm","to":"ddr"}', '{"detach":"a","tier":"hbm"}'),
        ":4, end of the plan",
        "a tensor ends a training step at its home, and nowhere else",
        "'a' held in ddr",
    ),
    "a home that is gone when the steps repeat": (
        (TWICE, HOME, IN, F, GONE, LOST),
        ":6, end of the plan",
        "what has a home is there again when the actions are repeated",
        "'w' absent from ddr",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_right_is_told_with_line_step_tensor_and_rule(tmp_path: Path, name: str) -> None:
    lines, where, must, found = BAD[name]
    path = written(tmp_path / "p.jsonl", *lines)
    with pytest.raises(ConfigError) as caught:
        formats.check(path)
    assert caught.value.args[:3] == (f"{path}{where}", must, found)


def test_a_name_that_is_nearly_a_home_is_asked_for(tmp_path: Path) -> None:
    lines = (HEADER, HOME.replace("w", "weight"), IN.replace("w", "wieght"))
    with pytest.raises(ConfigError, match=r"\(did you mean 'weight'\?\)$"):
        formats.check(written(tmp_path / "p.jsonl", *lines))

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


SOURCE, THERE = "what is copied is valid at its source", "what is detached is there"
BAD = {
    "a home after a step": (
        (HEADER, F, HOME),
        ":3",
        "homes, which say where tensors are at time 0, come before the steps",
        "that of 'w' after 1 step",
    ),
    "a tier twice": ((HEADER.replace("ddr", "hbm"),), ":1", "each tier is named once", "'hbm' twice"),
    "a tier that is not declared": (
        (HEADER, '{"home":"w","tier":"ssd"}'),
        ":2",
        "a plan names tiers of its run (hbm, ddr)",
        "'ssd'",
    ),
    "a copy to itself": (
        (HEADER, HOME, IN.replace("hbm", "ddr")),
        ":3, step 0 (copy w ddr -> ddr)",
        "a copy goes from one tier to another",
        "'ddr' twice",
    ),
    "a tensor that nothing declares": (
        (HEADER, HOME, IN.replace("w", "v")),
        ":3, step 0 (copy v ddr -> hbm)",
        SOURCE,
        "'v' without a home or a copy into ddr, and no op that could have written it",
    ),
    "a copy from where it is not": (
        (HEADER, HOME, OUT),
        ":3, step 0 (copy w hbm -> ddr)",
        SOURCE,
        "'w', whose home is ddr, never copied into hbm",
    ),
    "a copy to where it is": (
        (HEADER, HOME, IN, F, OUT, IN),
        ":6, step 3 (copy w ddr -> hbm)",
        "a copy has work to do: its target is absent or stale",
        "'w' valid in hbm already",
    ),
    "a detach of what was never there": (
        (HEADER, HOME, GONE),
        ":3, step 0 (detach w from hbm)",
        THERE,
        "'w', whose home is ddr, never copied into hbm",
    ),
    "a detach twice": (
        (HEADER, HOME, IN, F, GONE, GONE),
        ":6, step 3 (detach w from hbm)",
        THERE,
        "'w' absent from hbm (detached by step 2)",
    ),
    "two tiers that only ops can have filled": (
        (HEADER, F, '{"detach":"a","tier":"hbm"}', '{"detach":"b","tier":"ddr"}'),
        ":4, step 2 (detach b from ddr)",
        THERE,
        "'b' without a home or a copy into ddr, and ops write in hbm only (step 1 takes 'a' from there)",
    ),
    "a copy that stays": (
        (HEADER, HOME, IN, F),
        ", end of the plan",
        "what has a home ends a training step there, and nowhere else",
        "'w' (home ddr) held in hbm",
    ),
    "what an op made and a copy put below": (
        (HEADER, F, '{"copy":"a","from":"hbm","to":"ddr"}', '{"detach":"a","tier":"hbm"}'),
        ", end of the plan",
        "what has no home is detached everywhere when a training step ends",
        "'a' held in ddr",
    ),
    "a home that is gone when the steps repeat": (
        (TWICE, HOME, IN, F, GONE, LOST),
        ", end of the plan",
        "what has a home is there again when the steps are repeated",
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

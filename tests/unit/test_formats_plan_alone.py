"""What `hosim check` finds in a plan file without its graph and its machine."""

from pathlib import Path

import pytest

from simulator import formats
from simulator.errors import ConfigError

HEADER = '{"schema":"hosim-plan/1","tiers":["hbm","ddr"]}'
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
    "an update that goes home": (HEADER, HOME, IN, F, OUT, GONE),
    "an input that is given up": (HEADER, HOME, IN, F, GONE, LOST),
    "tiers that the header does not name": ('{"schema":"hosim-plan/1"}', '{"home":"w","tier":"x"}', F),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_may_be_right_is_not_refused(tmp_path: Path, name: str) -> None:
    assert formats.check(written(tmp_path / "p.jsonl", *GOOD[name])).startswith("plan of 'p'")


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
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_plan_is_told_with_line_and_rule(tmp_path: Path, name: str) -> None:
    lines, where, must, found = BAD[name]
    path = written(tmp_path / "p.jsonl", *lines)
    with pytest.raises(ConfigError) as caught:
        formats.check(path)
    assert caught.value.args[:3] == (f"{path}{where}", must, found)

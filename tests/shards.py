"""One of ten shards of the slow tests, of like length; without one all of them run.

    python -m pytest -m slow --shard 2/10
    python -m pytest -m slow --shard commit          the one that the name of the commit says
    python -m pytest -m slow --renew-shards          measure all, and write `tests/shards.json`
    python -m pytest -m slow --renew-shards tests/e2e     measure these: no entry is lost, or gets less

A *piece* is what is never divided: the cases of one name, as of one scenario, in whichever files; or all of a file
whose tests share what they run, if it has an entry in `shards.json`. That says how many seconds of processor a piece
takes, from a second on. The longest that are collected go first, each to the shard that has least by then: an entry of
a test that is gone counts nowhere. What has no entry goes by the hash of its name.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from zlib import crc32

import pytest

SHARDS = 10
FILE = Path(__file__).with_suffix(".json")
BRIEF_S = 1.0
"""What takes less has no entry."""


def pieces() -> dict[str, float]:
    """Seconds by piece, as stored."""
    found: dict[str, float] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def piece(nodeid: str, known: Mapping[str, float]) -> str:
    """The piece that a test belongs to: its file, its case or its name."""
    file, _, name = nodeid.partition("::")
    case = re.search(r"\[.*\]$", name, re.DOTALL)
    return file if file in known else case.group() if case else name


def placed(seconds: Mapping[str, float], shards: int) -> dict[str, int]:
    """The shard of each piece, from 0."""
    held, found = [0.0] * shards, {}
    for name in sorted(seconds, key=lambda one: (-seconds[one], one)):
        found[name] = held.index(min(held))
        held[found[name]] += seconds[name]
    return found


def chosen(asked: str) -> tuple[int, int]:
    """Which shard, from 0, of how many; of a commit the first digits of its name decide.

    Raises
    ------
    pytest.UsageError
        If no such shard exists.
    """
    if asked == "commit":
        command = ["git", "rev-parse", "HEAD"]
        name = subprocess.run(command, cwd=FILE.parent, capture_output=True, text=True, check=False).stdout
        return int(name[:8] or "0", 16) % SHARDS, SHARDS
    found = re.fullmatch(r"([1-9]\d?)/([1-9]\d?)", asked)
    if not found or int(found[1]) > int(found[2]):
        raise pytest.UsageError(f"--shard: must be K/N with K from 1 to N, or commit, found {asked!r}")
    return int(found[1]) - 1, int(found[2])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", help="run one shard of the slow tests: K/N, or commit")
    parser.addoption("--renew-shards", action="store_true", help="write how long the slow tests take")


def pytest_report_header(config: pytest.Config) -> str | None:
    if not config.getoption("shard"):
        return None
    shard, shards = chosen(config.getoption("shard"))
    return f"slow tests: shard {shard + 1}/{shards}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("shard"):
        return
    (shard, shards), known = chosen(config.getoption("shard")), pieces()
    there = {piece(item.nodeid, known) for item in items if item.get_closest_marker("slow")}
    places = placed({name: seconds for name, seconds in known.items() if name in there}, shards)

    def is_here(item: pytest.Item) -> bool:
        name = piece(item.nodeid, known)
        return not item.get_closest_marker("slow") or places.get(name, crc32(name.encode()) % shards) == shard

    config.hook.pytest_deselected(items=[item for item in items if not is_here(item)])
    items[:] = [item for item in items if is_here(item)]


def _processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[BEGUN] = _processor_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Workers tell how long a test took with what they report of its end."""
    yield
    item.user_properties.append(("processor_s", _processor_s() - item.stash[BEGUN]))


BEGUN = pytest.StashKey[float]()
TOOK: dict[str, float] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    TOOK.update((report.nodeid, seconds) for name, seconds in report.user_properties if name == "processor_s")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write what was measured, unless that was stopped; a file that has an entry keeps one.

    Where only some ran, nothing is lost or gets less: cases of one name in other files did not run.
    """
    is_whole = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if not is_whole or not session.config.getoption("renew_shards") or hasattr(session.config, "workerinput"):
        return
    known, sums = pieces(), defaultdict[str, float](float)
    for nodeid, seconds in TOOK.items():
        sums[piece(nodeid, known)] += seconds
    ran_all = session.config.args_source is not pytest.Config.ArgsSource.ARGS and not session.config.getoption("shard")
    kept = {name: round(took, 1) for name, took in sums.items() if took >= BRIEF_S or name.startswith("tests/")}
    if not ran_all:
        kept = {name: max(kept.get(name, 0.0), known.get(name, 0.0)) for name in {**known, **kept}}
    FILE.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n", encoding="utf-8")

"""Every page of the documents: its links lead somewhere, its Python runs, its commands run."""

from __future__ import annotations

import contextlib
import re
import shlex
from functools import cache
from pathlib import Path

import click
import pytest
from pages import FILES, PAGES, ROOT, blocks, commands, without_blocks

from simulator.cli import hosim, main
from simulator.run import what_if

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_GIVEN = re.compile(
    r"\bmine:step\b|\b(mine|yours|this|offload)\.yaml|/workload\.yaml|\bOLD\b|\bSCENARIO\b|\bKIND\b|\bFILE\b|results/(?!\w+\b$)"
)
"""A command that needs a file which the page tells the reader to write."""


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", without_blocks(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", re.sub(r"[`*]", "", heading).lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_a_page_and_a_heading_and_modules_are_there():
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for link in _LINK.findall(without_blocks(text)):
            if "://" in link:
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), f"{name(path)}: {link}"
            assert not anchor or anchor in anchors(target), f"{name(path)}: {link}"
        found = re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", text)
        mine = {"simulator/policies/yours.py"}  # what a reader is to write
        for module in set(found) - mine:
            assert (ROOT / module).exists() or (ROOT / "simulator" / module).exists(), f"{name(path)}: {module}"


ALL = sorted({(name(path), line) for path in FILES for line in commands(path.read_text(encoding="utf-8"))})


@pytest.mark.parametrize("page", sorted({page for page, _ in ALL}))
def test_every_command_is_one_that_hosim_knows(page):
    for line in (line for at, line in ALL if at == page):
        words = shlex.split(line, comments=True)[1:]
        words = words[: next((at for at, word in enumerate(words) if word in (">", "|", "&&", "||", ">>")), len(words))]
        if words and not words[0].startswith("-"):
            with contextlib.suppress(click.exceptions.Exit):
                parent = hosim.make_context("hosim", ["list"])
                hosim.commands[words[0]].make_context(words[0], words[1:], parent=parent)


PYTHON = [
    path
    for path in FILES
    if blocks(path.read_text(encoding="utf-8"), "python")
    and not {"reference", "notebooks", "tutorials"} & {*path.parts}
    and path.stem != "bring-your-own-model"
]
"""Notebooks and tutorials run in tests of their own."""


@pytest.fixture(scope="module", autouse=True)
def commands_plan_quickly():
    """Expectations in pages are of the whole search of `static`."""


@pytest.fixture(scope="module", autouse=True)
def runs_end_with_their_rows():
    """They end with what would make them free, too."""


@pytest.mark.slow
@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_the_python_of_a_page_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for code in blocks(path.read_text(encoding="utf-8"), "python"):
        exec(compile(code, name(path), "exec"), names)


_SHOWN = set(re.findall(r"<!-- output of: (hosim [^\n]+) -->", PAGES))
RUN = sorted(
    {
        line
        for page, line in ALL
        if "tutorials" not in page and "own-model" not in page and not _GIVEN.search(line)
        if not {line, re.sub(r" --out \S+$", "", line)} & _SHOWN and not re.fullmatch(r"hosim run \w+", line)
    }
)
"""Tutorials run as a whole (`test_tutorials`), and so does the guide for models of one's own.

What a command prints that pages show is compared elsewhere, and so is what shipped scenarios do (`test_digests_rows`).
"""


@pytest.mark.slow
@pytest.mark.parametrize("line", RUN)
def test_every_command_runs_from_an_empty_folder(line, quick_plans, tmp_path, monkeypatch):
    """Those that need a file which a page tells the reader to write run in the test of that page; with quick plans."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(what_if, "_SEARCHED", frozenset())
    words = shlex.split(line, comments=True)[1:]
    with pytest.raises(SystemExit) as ended:
        main([*words, *(["--draws", "1"] if "--jitter" in words else [])])  # more draws take minutes
    assert ended.value.code in (0, None), line

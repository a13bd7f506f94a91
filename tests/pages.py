"""The documents that people read: the README and all pages under docs, for tests that hold them to what is printed.

``python tests/pages.py [PAGE ...]`` puts what commands print now under ``<!-- output of: hosim ... -->``, and what
`hosim validate` finds under ``<!-- verdicts of: CLAIM ... -->``, on all pages or on those named (``first-run``), and
says which blocks changed.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from simulator.claims import Judged, validate
from simulator.cli.run import _findings, _notes
from simulator.run.results import Results
from simulator.run.row import silent
from simulator.run.what_if import what_would_free

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FILES = [README, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECORDED = ROOT / "tests" / "claims" / "recorded.md"
"""What commands printed that take up to half an hour."""
PAGES = "\n".join(path.read_text(encoding="utf-8") for path in (*FILES, RECORDED))
"""All of them, one after another."""

_SHOWN = re.compile(
    r"<!-- output of: ((?:hosim|python tests/\w+\.py) (?:(?!, |\n).)+) -->\n```text\n(.*?)```", re.DOTALL
)
VERDICTS = re.compile(r"<!-- verdicts of: ([^\n]+) -->\n((?:\|.*\n)+)")
"""Claims, and the table of their verdicts."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a page in this language."""
    return [body for name, body in _FENCE.findall(text) if name == language]


def without_blocks(text: str) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", text)


def commands(text: str) -> list[str]:
    """The command lines of hosim in the shell blocks of a page, lines that go on joined."""
    lines = "\n".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip().startswith("hosim ")]


def printed(results: Results, out: str = "") -> str:
    """What `hosim run` prints of results, into a pipe, with the folder that it writes."""
    sought = [] if results.told else what_would_free([*results.values()], None, is_asked=None)
    results.told = [*results.told, *filter(None, (search(silent) for search in sought))]
    return "\n\n".join((*_findings(results), *_notes(results, Path(out) if out else None))) + "\n"


def verdicts(judged: Iterable[Judged]) -> str:
    """The table of printed figures, ours, and the verdicts."""
    rows = [one.row for one in judged if one.verdict.printed]
    cells = [[row["claim"], row["printed"], row["obtained"] or "-", row["verdict"]] for row in rows]
    head = "| claim | printed | ours | verdict |\n|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(line)} |\n" for line in cells)


def renew(*names: str) -> None:
    """Put into pages (README, first-run) what their commands print now; what is only a part of an output stays."""
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for line, shown in _SHOWN.findall(text) if not names or path.stem in names else ():
            done = subprocess.run(shlex.split(line), stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode or done.stdout == shown:
                print(f"{path.name}: {line}: " + (f"ended with {done.returncode}" if done.returncode else "as before"))
                continue
            text = text.replace(f"{line} -->\n```text\n{shown}```", f"{line} -->\n```text\n{done.stdout}```")
            print(f"{path.name}: {line}: renewed")
        for named, table in VERDICTS.findall(text) if not names or path.stem in names else ():
            found = verdicts(validate(named.split()).judged)
            text = text.replace(f"{named} -->\n{table}", f"{named} -->\n{found}")
            print(f"{path.name}: verdicts of {named}: {'as before' if found == table else 'renewed'}")
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    renew(*sys.argv[1:])

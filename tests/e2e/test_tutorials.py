"""Every tutorial works when pasted from an empty folder: files it says to save, Python and commands, in order."""

from __future__ import annotations

import re
import shlex

import pytest
from pages import ROOT

from simulator.cli import main

WHOLE = ROOT / "docs" / "how-to" / "bring-your-own-model.md"
"""A guide whose commands go on from one another, as a tutorial's do."""
TUTORIALS = [*sorted((ROOT / "docs" / "tutorials").glob("*.md")), WHOLE]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SAVE = re.compile(r"\b[Ss]ave (?:this|it) as\s+`([^`]+)`")
_ENDS_WITH_1 = ("hosim run my_card_train.yaml", "hosim diff results/at_33 results/at_50")
"""What ends with 1 on purpose: nothing fits there, and something moved."""


@pytest.fixture(scope="module", autouse=True)
def commands_plan_quickly():
    """Expectations in tutorials are of the whole search of `static`."""


@pytest.fixture(scope="module", autouse=True)
def runs_end_with_their_rows():
    """They end with what would make them free, too."""


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_works_when_pasted(path, tmp_path, monkeypatch, capsys):
    """What it shows is what its last commands, or its Python, printed, line by line; ``...`` stands for other lines.

    Commands and messages of errors, which go elsewhere, are left out, and what commands on a reader's own files print.
    """
    monkeypatch.chdir(tmp_path)
    text, names, at, printed = path.read_text(encoding="utf-8"), {"__name__": "page"}, 0, ""
    for found in _FENCE.finditer(text):
        before, at = text[at : found.start()].strip().split("\n\n")[-1], found.end()
        language, body = found.groups()
        saved = _SAVE.search(before)
        if saved and language in ("yaml", "json"):
            (tmp_path / saved.group(1)).write_text(body, encoding="utf-8")
        elif language == "python":
            exec(compile(body, path.name, "exec"), names)
            printed = capsys.readouterr().out
        elif language == "sh":
            for line in body.replace("\\\n", " ").splitlines():
                if line.startswith("hosim ") and "results/stall/scenario" not in line:
                    with pytest.raises(SystemExit) as ended:
                        main(shlex.split(line)[1:])
                    assert ended.value.code in ((1,) if line in _ENDS_WITH_1 else (0, None)), line
            printed = capsys.readouterr().out
        elif language == "text" and all(line.startswith(("hosim ", " ")) for line in body.splitlines()):
            printed = ""
        elif language == "text" and printed:
            lines = {line.rstrip() for line in printed.splitlines()}
            shown = [
                line for line in body.splitlines() if not line.startswith(("hosim", "...")) and ", found " not in line
            ]
            assert [line for line in shown if line not in lines] == []

"""Pages about claims as HTML that needs no network: what is printed and obtained, and what each figure depends on."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from simulator.report import sensitivity, validation
from simulator.report.sensitivity import Dependence, by_figure, headline
from simulator.report.validation import Checked


def of_claims(checked: Sequence[Checked]) -> str:
    """Write the page of `hosim validate`: how many free parameters explain how many figures, the table and its notes.

    Parameters
    ----------
    checked
        One per scenario.
    """
    columns, notes = validation.table(checked), validation.notes(checked)
    return _rendered("validation.html.j2", sentences=validation.sentences(checked), columns=columns, notes=notes)


def of_dependences(found: Sequence[Dependence], checked: Sequence[Checked], pictures: Mapping[str, bytes]) -> str:
    """Write the page of `hosim sensitivity`: the same of free parameters, and each figure in words, table and picture.

    Parameters
    ----------
    found
        What came of it.
    checked
        The same scenarios with what they take.
    pictures
        The PNG of each scenario, by its name.
    """
    return _rendered(
        "sensitivity.html.j2",
        counts=validation.sentences(checked),
        sentences=sensitivity.sentences(found),
        groups=[(group[0].scenario, headline(group[0]), sensitivity.table(group)) for group in by_figure(found)],
        pictures={name: base64.b64encode(png).decode() for name, png in pictures.items()},
    )


def _rendered(template: str, **said: Any) -> str:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(template).render(said)

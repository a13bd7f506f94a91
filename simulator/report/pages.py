"""The page of a sweep as HTML that needs no network: what there is to say, the picture, the tables and their notes."""

from __future__ import annotations

import base64
from pathlib import Path

import jinja2

from simulator.report.view import View


def page(view: View, picture: bytes | None) -> str:
    """Write the page of a sweep.

    Parameters
    ----------
    view
        What is shown.
    picture
        A PNG, if there is one.
    """
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    drawn = base64.b64encode(picture).decode() if picture else ""
    return environment.get_template("view.html.j2").render(view=view, picture=drawn)

"""The command `hosim diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

_SAME, _MOVED, _TROUBLE = 0, 1, 2


def _share(context: click.Context, parameter: click.Parameter, text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1
    if not 0 <= share < 1:
        raise click.BadParameter(f"{text!r} is no share such as 1% or 0.01")
    return share


@click.command(short_help="Say what moved between two results, and why.")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--tolerance", default="0", callback=_share, metavar="SHARE", help="Accept changes up to this, such as 1%."
)
@click.option("--fail-on", type=click.Choice(("moved", "worse")), default="moved", show_default=True,
              help="What the exit code 1 is for.")  # fmt: skip
@click.option("--json", "kind", flag_value="json", help="Print JSON (hosim-diff/1), with every number.")
@click.option("--markdown", "kind", flag_value="markdown", help="Print Markdown, for a comment on a pull request.")
def diff(old: Path, new: Path, tolerance: float, fail_on: Literal["moved", "worse"], kind: str | None) -> int:
    """Compare the results OLD and NEW, folders that `hosim run --out` wrote, or the summary.json in them.

    \b
    Examples:
      hosim diff results/main results/mine
      hosim diff results/main results/mine --tolerance 1% --fail-on worse
      hosim diff main.json mine.json --markdown >> "$GITHUB_STEP_SUMMARY"

    Rows are matched by name. What a step is spent on fills it, so that the changes of compute,
    recompute and waits sum to that of the step, to the nanosecond. A tolerance is a share of the value
    before; of a wait, of the step before.

    The exit code is 0 if nothing moved, 1 if something did (with --fail-on worse: if a row runs no
    more or is gone, a step is longer, a peak higher, or an expectation that held fails), 2 if the two
    cannot be compared.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.errors import HosimError
    from simulator.run.diff import diff as compare

    try:
        found = compare(old, new, tolerance=tolerance)
    except HosimError as error:
        click.echo(f"hosim: {error}", err=True)
        return _TROUBLE
    click.echo({"json": lambda: found.json().decode(), "markdown": found.markdown}.get(kind or "", found.__str__)(),
               nl=kind is None)  # fmt: skip
    return _MOVED if (found.moved if fail_on == "moved" else found.worse) else _SAME

"""What commands share: their options, and how what they are for is run with progress, told and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from simulator.report.expectations import Verdict

FAILED = 1


def changes(what: str = "Change the hardware.") -> Callable[..., Any]:
    """Return the option that changes the hardware."""
    return click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help=what)


def rows(what: str = "Only this row, or this policy.") -> Callable[..., Any]:
    """Return the option that names the rows to be run."""
    return click.option("--policy", "policies", multiple=True, metavar="NAME", help=what)


def folder(what: str = "Write tables, a page and a picture here.") -> Callable[..., Any]:
    """Return the option that names the folder of results."""
    return click.option("--out", type=click.Path(path_type=Path), help=what)


def junit(what: str) -> Callable[..., Any]:
    """Return the option that names a file for what is expected."""
    return click.option(
        "--junit", type=click.Path(path_type=Path, dir_okay=False), help=f"Write {what} as JUnit XML into this file."
    )


def written(
    do: Callable[..., Any], *arguments: Any, out: Path | None = None, tell: Callable[[Any], str] = str, **options: Any
) -> tuple[Any, str]:
    """Run something with progress, and write what came of it.

    Parameters
    ----------
    do, arguments, options
        What is run; those that were not given are as `do` has them.
    out
        Where what came of it is written, if anywhere.
    tell
        What is said of it, found before it is written.

    Returns
    -------
    tuple
        What came of it, and what is said.
    """
    from simulator import catalog
    from simulator.report.progress import Shown

    check(out)
    if "changes" in options:
        options["set"] = dict(catalog.setting(change) for change in options.pop("changes"))
    given = {name: value for name, value in options.items() if value not in (None, ())}
    with Shown() as progress:
        found = do(*arguments, progress=progress, **given)
    text = tell(found)
    if out is not None:
        found.write(out)
    return found, text


def check(out: Path | None, junit: Path | None = None) -> None:
    """Refuse a folder, or a file, that cannot be written."""
    from simulator.report.files import check_file, check_target

    if out is not None:
        check_target(out)
    if junit is not None:
        check_file("--junit", junit)


def judged(statuses: Sequence[str], expectations: Sequence[Verdict]) -> int:
    """Tell which expectations fail; the exit code is 0 if none does, and a row ran to its end."""
    failed = [verdict for verdict in expectations if verdict.is_broken]
    for verdict in failed:
        click.echo(f"hosim: expectation fails: {verdict}", err=True)
    return FAILED if failed or "ok" not in statuses else 0

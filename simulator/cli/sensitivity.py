"""The command `hosim sensitivity`."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command(short_help="Say for which values of what is not stated a claim holds.")
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option("--all", "every", is_flag=True, help="All scenarios of the catalogue that say what is open.")
@click.option("--workers", type=click.IntRange(1), help="Processes; the result does not depend on it. [default: cores]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (hosim-sensitivity/1), and nothing else.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Write the table, a page and a picture of each claim here."
)
def sensitivity(scenarios: tuple[str, ...], every: bool, workers: int | None, as_json: bool, out: Path | None) -> None:
    """Recompute the printed figures of each SCENARIO with other values of what its source does not state.

    \b
    Examples:
      hosim sensitivity llama3_8b_2x2x2
      hosim sensitivity --all --out results/sensitivity

    The key `claim: unstated:` lists parameters with the ranges in which they may lie. Each is varied alone,
    over a few values first; where a figure turns from holding to failing, the place is searched by
    halving. Nothing is fitted again.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.report.progress import Shown
    from simulator.run.sensitivity import sensitivity as run_sensitivity

    if bool(scenarios) == every:
        raise click.UsageError("name scenarios, or say --all")
    if out is not None:
        from simulator.report.files import check_target

        check_target(out)
    with Shown() as progress:
        found = run_sensitivity(scenarios or None, workers=workers or os.cpu_count() or 1, progress=progress)
    if out is not None:
        found.write(out)
    click.echo(found.json() if as_json else f"{found}\n", nl=False)

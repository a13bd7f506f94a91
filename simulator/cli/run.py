"""The command `hosim run`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from simulator.run import Case, Results

_FAILED = 1


@click.command(short_help="Run a scenario and print one row per policy.")
@click.argument("scenario")
@click.option("--out", type=click.Path(path_type=Path), help="Write tables, pictures, traces and a report here.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change the hardware for this run.")
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Run only this row, or this policy.")
@click.option("--no-trace", is_flag=True, help="Count and check as it runs, and forget: memory stays flat.")
@click.option("--json", "as_json", is_flag=True, help="Print what summary.json says, and nothing else.")
@click.option(
    "--junit",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the expectations as JUnit XML into this file.",
)
def run(scenario: str, out: Path | None, changes: tuple[str, ...], policies: tuple[str, ...], **more: Any) -> int:
    """Run SCENARIO, a name in the catalogue or a .yaml file, and print one row per policy.

    \b
    Examples:
      hosim run llama3_8b_train_910c --out results/llama3_8b
      hosim run llama3_8b_train_910c --set "links.*.bandwidth=70 GB/s"
      hosim run mine.yaml --policy static --policy reactive
      hosim run mine.yaml --json --junit results/mine.xml

    The table has the main columns; summary.csv has all, such as least_peak_bytes: no plan with a step
    as short has a lower peak.

    The exit code is 1 if an expectation of the scenario fails (--set switches them off), or if no row
    ran to its end.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator import catalog
    from simulator.run import read

    if out is not None:
        from simulator.report.files import check_target

        check_target(out)
    if more["junit"] is not None:
        from simulator.report.files import check_file

        check_file("--junit", more["junit"])
    case = read(scenario, set=dict(catalog.setting(change) for change in changes), **_readings(more))
    results = _run(case, policies or None, out)
    if more["junit"] is not None:
        from simulator.report.expectations import write_junit

        write_junit({case.loaded.scenario.name: results.checks}, more["junit"])
    if more["as_json"]:
        click.echo(results.json(), nl=False)
    else:
        _show(results)
        if out is not None:
            click.echo(f"\nReport: {out / 'report.html'}")
        _praise(results)
    return _judged(results)


def _readings(more: dict[str, Any]) -> dict[str, Any]:
    """How the scenario is run in another way than it says."""
    return {"trace": "none" if more["no_trace"] else None}


def _run(case: Case, policies: Sequence[str] | None, out: Path | None) -> Results:
    """Run all rows; each is written while the next ones run."""
    from simulator.report.progress import Shown
    from simulator.run import run_case

    if out is None:
        with Shown() as progress:
            return run_case(case, policies, progress)

    from simulator.run.results import writing

    with writing(out) as output:
        with Shown() as progress:
            results = run_case(case, policies, progress, output.add)
        output.finish(results)
    return results


def _show(results: Results) -> None:
    from simulator.report import text

    rows = list(results.values())
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console()
        for table in text.rich_tables(rows, console.width):
            console.print(table)
        console.print("\n".join(results.sentences), markup=False, highlight=False)
    else:
        click.echo(text.plain(rows) + "\n\n" + "\n".join(results.sentences))
    if results.largest is not None:
        click.echo(f"\n{results.largest.view.sections[0]}")


def _praise(results: Results) -> None:
    """Tell that what the scenario expected holds, is known to be missed, or was not checked."""
    if results.case.is_changed and results.case.loaded.scenario.expect:
        click.echo("\nThe machine was changed for this run: what the scenario expects was not checked.")
    count = sum(verdict.holds for verdict in results.expectations)
    if count and not any(verdict.is_broken for verdict in results.expectations):
        click.echo(f"\n{count} expectation{'' if count == 1 else 's'} of the scenario hold{'s' if count == 1 else ''}.")
    for verdict in results.expectations:
        if verdict.missed:
            click.echo(
                f"\nKnown to be missed: {verdict}: {verdict.missed}"
                if not verdict.holds
                else f"\nHolds after all: {verdict}"
            )


def _judged(results: Results) -> int:
    """Tell what fails, and say whether all is well."""
    sys.stdout.flush()
    failed = [verdict for verdict in results.expectations if verdict.is_broken]
    for verdict in failed:
        click.echo(f"hosim: expectation fails: {verdict}", err=True)
    if not any(row.status == "ok" for row in results.values()):
        states = " or ".join(sorted({row.status for row in results.values()}))
        why = dict.fromkeys(row.summary["notes"] for row in results.values() if row.status == "refused")
        click.echo("; ".join((f"hosim: no row ran to its end, all are {states}", *why)), err=True)
        return _FAILED
    return _FAILED if failed else 0

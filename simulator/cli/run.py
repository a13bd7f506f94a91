"""The commands `hosim run`, `serve` and `plan`: one scenario on one machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator.cli import common

if TYPE_CHECKING:
    from simulator.run import Case, Results


@click.command(short_help="Run a scenario and print one row per policy.")
@click.argument("scenario")
@common.folder("Write tables, pictures, traces and a report here.")
@common.changes("Change the hardware for this run.")
@common.rows("Run only this row, or this policy.")
@click.option("--no-trace", is_flag=True, help="Count and check as it runs, and forget: memory stays flat.")
@click.option("--json", "as_json", is_flag=True, help="Print what summary.json says, and nothing else.")
@common.junit("the expectations")
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

    common.check(out, more["junit"])
    settings = dict(catalog.setting(change) for change in changes)
    case = read(scenario, set=settings, trace="none" if more["no_trace"] else None)
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


def _run(case: Case, policies: Sequence[str] | None, out: Path | None) -> Results:
    """Run all rows; each is written while the next ones run."""
    from simulator.report.progress import Shown
    from simulator.run import run_case
    from simulator.run.results import writing

    with nullcontext() if out is None else writing(out) as output:
        with Shown() as progress:
            results = run_case(case, policies, progress, output.pages.add if output else None)
        if output:
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
    statuses = [row.status for row in results.values()]
    code = common.judged(statuses, results.expectations)
    if "ok" not in statuses:
        states = " or ".join(sorted(set(statuses)))
        why = dict.fromkeys(row.summary["notes"] for row in results.values() if row.status == "refused")
        click.echo("; ".join((f"hosim: no row ran to its end, all are {states}", *why)), err=True)
    return code


@click.command(short_help="Serve requests that come and leave, and tell latencies.")
@click.argument("scenario")
@common.rows("Run only this row, or this policy.")
@common.changes()
@common.folder("Write tables of requests and iterations and a picture.")
def serve(scenario: str, **more: Any) -> int:
    """Serve the requests of SCENARIO iteration by iteration, one row per policy.

    \b
    Examples:
      hosim serve kv_reuse_h100
      hosim serve kv_reuse_h100 --set "links.h2d.bandwidth=10 GB/s"
      hosim serve mine.yaml --out results/serve

    The scheduler is fixed: each sequence that runs adds a token, prompts fill the rest of max_tokens,
    first come, first served. The policy moves data within an iteration, which the engine replays; alike
    ones once, for which what they attend to is rounded up by less than 1/16.
    How far a row is, is told on stderr: on a terminal always, elsewhere every 30 s.

    The exit code is 1 if no row served all requests, or an expectation of the scenario fails (--set switches
    them off).
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.serving import serve as serve_scenario

    found, text = common.written(serve_scenario, scenario, **more)
    click.echo(text)
    return common.judged([row["status"] for row in found.rows], found.expectations)


@click.command(short_help="Compile a plan and explain every decision in it.")
@click.argument("scenario")
@click.option(
    "--policy", default="static", metavar="NAME", help="A row of the scenario, or a policy (default: static)."
)
@click.option("--tensor", metavar="NAME", help="Tell one tensor in full instead.")
@common.folder("Write the plan, its graph, tables and a picture here.")
@common.changes()
def plan(scenario: str, policy: str, tensor: str | None, out: Path | None, **more: Any) -> int:
    """Plan SCENARIO, and say what moves, what stays and why, where each copy is issued, and how busy the links are.

    \b
    Examples:
      hosim plan llama3_8b_train_910c
      hosim plan llama3_8b_train_910c --tensor L00/ffn.gate.out
      hosim plan mine.yaml --out results/plan
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.run.plan import plan as plan_scenario

    found, text = common.written(
        plan_scenario, scenario, policy, out=out, tell=lambda found: found.text(tensor), **more
    )
    click.echo(text if out is None else f"{text}\n\nPlan: {out / found.file}")
    return common.judged([found.result.status], ())

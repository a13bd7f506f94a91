"""The commands `hosim run`, `serve` and `plan`: one scenario on one machine."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator.cli import common

if TYPE_CHECKING:
    from simulator.run import Results


@common.command("Run a scenario and print one row per policy.", "out", "set", "policy", "json", "junit")
@click.argument("scenario")
@click.option("--no-trace", is_flag=True, help="Count and check as it runs, and forget: memory stays flat.")
def run(scenario: str, out: Path | None, junit: Path | None, as_json: bool, **more: Any) -> int:
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
    from simulator.report.tables import Shown
    from simulator.run import read, run_case
    from simulator.run.results import writing

    common.check(out, junit)
    case = read(scenario, set=common.settings(more["changes"]), trace="none" if more["no_trace"] else None)
    with nullcontext() if out is None else writing(out) as output:  # each row is written while the next ones run
        with Shown() as progress:
            results = run_case(case, more["policies"] or None, progress, output.pages.add if output else None)
        if output:
            output.finish(results)
    common.write_junit({case.loaded.scenario.name: results.checks}, junit)
    if as_json:
        click.echo(results.json(), nl=False)
    else:
        click.echo("\n\n".join(_told(results, out)))
    return common.judged([row.summary for row in results.values()], results.expectations)


def _told(results: Results, out: Path | None) -> Iterator[str]:
    """The table, what a person would say, where the report is, and what of the expectations is no failure."""
    from simulator.report.tables import PIPE_WIDTH, plain

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
    yield plain(list(results.values()), width)
    yield "\n".join(results.sentences)
    if results.largest is not None:
        yield str(results.largest.view.sections[0])
    if out is not None:
        yield f"Report: {out / 'report.html'}"
    if results.case.is_changed and results.case.loaded.scenario.expect:
        yield "The machine was changed for this run: what the scenario expects was not checked."
    for verdict in results.expectations:
        if verdict.missed:
            yield f"{'Holds after all' if verdict.holds else 'Known to be missed'}: {verdict}: {verdict.missed}"
    held = sum(verdict.holds for verdict in results.expectations)
    if held:
        yield f"Expectations of the scenario: {held} of {len(results.expectations)} hold."


@common.command("Serve requests that come and leave, and tell latencies.", "policy", "set", "out")
@click.argument("scenario")
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

    found = common.told(serve_scenario, scenario, **more)
    return common.judged(found.rows, found.expectations)


@common.command("Compile a plan and explain every decision in it.", "set", "out")
@click.argument("scenario")
@click.option(
    "--policy", default="static", show_default=True, metavar="NAME", help="A row of the scenario, or a policy."
)
@click.option("--tensor", metavar="NAME", help="Tell one tensor in full instead.")
def plan(scenario: str, policy: str, tensor: str | None, out: Path | None, **more: Any) -> int:
    """Plan SCENARIO, and say what moves, what stays and why, where each copy is issued, and how busy the links are.

    \b
    Examples:
      hosim plan llama3_8b_train_910c
      hosim plan llama3_8b_train_910c --tensor L00/ffn.gate.out
      hosim plan mine.yaml --out results/plan
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.run.plan import plan as plan_scenario

    found = common.ran(plan_scenario, scenario, policy, out=out, **more)
    click.echo(found.text(tensor))
    if out is not None:
        found.write(out)
        click.echo(f"\nPlan: {out / found.file}")
    return common.judged([found.result.summary])

"""The commands that run: `hosim run`, `serve` and `plan`, and those that sweep."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

import simulator as hosim
from simulator.cli import common

if TYPE_CHECKING:
    from simulator.run.results import Results


@common.command("Run a scenario and print one row per policy.", "scenario", "out", "set", "policy", "json", "junit")
@click.option(
    "--what-if/--no-what-if", default=None, help="Search how the fastest row never stalls. [default: if quick]"
)
def run(scenario: str, out: Path | None, junit: Path | None, as_json: bool, **more: Any) -> int:
    """Run SCENARIO, a name in the catalogue or a .yaml file, or a workload on a machine; print one row per policy.

    \b
    Examples:
      hosim run llama3_8b_train_910c --out results/llama3_8b
      hosim run llama3_8b_train_910c --set "links.*.bandwidth=70 GB/s"
      hosim run --hardware h100_sxm --workload llama31_8b_decode --set workload.batch=4
      hosim run mine.yaml --policy static --policy reactive
      hosim run mine.yaml --json --junit results/mine.xml

    The table has the main columns; summary.csv has all, such as least_peak_bytes, a lower bound on the peak.

    A run also searches the least bandwidth and the least capacity at which its fastest row neither stalls
    nor recomputes, if that is quick; its page then shows the cost of a lower peak and the limits of that row.
    --what-if always searches, however long it takes. hosim frontier asks the same, and more, for every row.

    The exit code is 1 if an expectation of the scenario fails (--set switches them off), if a row fails
    because its plan is wrong, or if no row ran to its end.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.catalog import resolve
    from simulator.report.tables import ProgressBar
    from simulator.run import run_case
    from simulator.run.case import prepare
    from simulator.run.results import writing

    case = prepare(resolve(scenario, more["set"]), is_changed=bool(more["set"]))
    bar, unread = ProgressBar(), None
    policies, what_if = more["policies"] or None, more["what_if"]
    with nullcontext() if out is None else writing(out, list(case.rows(policies))) as pages:
        with bar as progress:
            each = None if pages is None else pages.add
            results = run_case(case, policies, progress, each, in_forks=True, what_if=what_if)
        try:
            _print(() if as_json else _findings(results))
        except BrokenPipeError as error:  # nobody reads on: the results are written all the same
            unread = error
        with bar as progress:
            results.search(progress, for_page=pages is not None)  # while the table is read
            if pages is not None:
                results.finish(pages, [row.section for row in results.values()], common.reproducing())
    common.write_junit({case.loaded.scenario.name: results.checks}, junit)
    if unread is not None:
        raise unread
    if as_json:
        click.echo(results.json(), nl=False)
    _print(() if as_json else _notes(results, out), before="\n")
    return common.judged([row.summary for row in results.values()], results.expectations, is_whole=True)


def _print(paragraphs: Iterable[str], before: str = "") -> None:
    """Print paragraphs with a line between them, at once."""
    if text := "\n\n".join(paragraphs):
        click.echo(f"{before}{text}")


def _folded(texts: Iterable[str], indent: str = "") -> str:
    """Join sentences, each on lines that a terminal has room for."""
    is_terminal, width = sys.stdout.isatty(), shutil.get_terminal_size().columns
    return "\n".join(fill(text, width, subsequent_indent=indent) if is_terminal else text for text in texts)


def _findings(results: Results) -> Iterator[str]:
    """Yield what is known once the rows have run: cards, tables, and sentences."""
    from simulator.report.card import line
    from simulator.report.tables import PIPE_WIDTH, plain

    yield _folded((f"{name}: {line(card)}" for name, card in results.card.items()), "  ")
    yield plain(list(results.values()), shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH)
    if results.largest is not None:
        yield str(results.largest.view.sections[0])
    yield _folded(results.said)


def _notes(results: Results, out: Path | None) -> Iterator[str]:
    """Yield the end: expectations that do not fail the run, the machine that a row would need, the report's path."""
    from simulator.units import counted

    if results.case.is_changed and results.case.loaded.scenario.expect:
        yield "Expectations of the scenario: not checked, as this run changes its documents."
    if without_source := results.provenance["mine"]:
        figures = ", ".join(f"{counted(count, 'figure')} of {name}" for name, count in without_source.items())
        yield f"Your own figures, without a source: {figures}."
    for verdict in results.expectations:
        if verdict.missed:
            yield f"{'Holds after all' if verdict.holds else 'Known to be missed'}: {verdict}: {verdict.missed}"
    if results.expectations:
        held = sum(verdict.holds for verdict in results.expectations)
        yield f"Expectations of the scenario: {held} of {len(results.expectations)} hold."
    if results.told:
        yield _folded(results.told)
    if out is not None:
        yield f"Report: {out / 'report.html'} (a picture of all rows, and a timeline of each)"


@common.command("Serve requests that arrive over time, and show latencies.", "scenario", "policy", "set", "out")
@click.option("--exact", is_flag=True, help="Replay every iteration, even if it equals an earlier one.")
def serve(scenario: str, **more: Any) -> int:
    """Serve the requests of SCENARIO iteration by iteration, one row per policy.

    \b
    Examples:
      hosim serve kv_reuse_h100
      hosim serve kv_reuse_h100 --set "links.h2d.bandwidth=10 GB/s"
      hosim serve mine.yaml --out results/serve
      hosim serve --hardware dgx_h100 --workload trace.yaml --policy static

    To make a workload of requests use `hosim import requests` (from a trace) or `hosim import hf --phase
    requests` (drawn at random).

    The scheduler is fixed: each running sequence adds a token, prompts fill the rest of max_tokens, first
    come, first served. The policy moves data within an iteration; the engine replays iterations, equal
    ones once. Progress goes to stderr: always on a terminal, elsewhere every 30 s.

    The exit code is 1 if no row served all requests, or an expectation of the scenario fails (--set switches
    them off).
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    serving = common.run_and_print(hosim.serve, scenario, **more)
    return common.judged(serving.rows, serving.expectations, is_whole=True)


@common.command("Compile a plan and explain every decision in it.", "scenario", "set", "out")
@click.option(
    "--policy", default="static", show_default=True, metavar="NAME", help="A row of the scenario, or a policy."
)
@click.option("--tensor", metavar="NAME", help="Explain one tensor in full instead.")
def plan(scenario: str, policy: str, tensor: str | None, out: Path | None, **more: Any) -> int:
    """Plan SCENARIO, and explain each tensor that moves or stays, the issue of each copy, and the load of each link.

    \b
    Examples:
      hosim plan llama3_8b_train_910c
      hosim plan llama3_8b_train_910c --tensor L00/ffn.gate.out
      hosim plan mine.yaml --out results/plan
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.report.tables import ProgressBar
    from simulator.run.stories import plan as plan_scenario

    with ProgressBar() as progress:
        planned = plan_scenario(scenario, policy, progress=progress, **more)
    click.echo(planned.text(tensor))
    common.tell_idle(planned.result.case.loaded)
    if out is not None:
        planned.write(out)
        click.echo(f"\nPlan: {out / planned.file}")
    return common.judged([planned.result.summary])


@common.command("Run all points of a study: a grid, a list, draws.", "policy", "set", "workers", "json")
@click.argument("scenario", metavar="STUDY|SCENARIO", callback=common.native)
@click.option(
    "--grid", multiple=True, callback=common.grid, metavar="KEY=VALUES", help="Vary a field, in all combinations."
)
@click.option("-o", "--out", type=common.PATH, help="A folder for all results, or a .csv or .parquet of rows.")
@click.option("--cluster", metavar="ADDRESS", help="Run on the Dask cluster of this scheduler.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep rows here. [default: ~/.cache/hosim]",
)
@click.option("--no-cache", is_flag=True, help="Neither keep rows nor use kept ones.")
@click.option("--most-cells", "at_most", type=click.IntRange(1), help="Refuse more cells. [default: 10,000]")
@click.option(
    "--uncertainty",
    type=click.IntRange(0),
    default=0,
    metavar="DRAWS",
    help="Draw cited ranges and assumed figures of the machine, so many times.",
)
@click.option("--jitter", callback=common.shares, metavar="LEVELS", help="Draw the times of ops and links: 1%,5%,20%.")
@click.option("--draws", type=click.IntRange(1), help="Draws at each level of jitter. [default: 20]")
@click.option("--seed", type=click.IntRange(0), help="Seed of the draws. [default: 0]")
@click.option("--plans", type=click.Choice(["anew", "once"]), help="Plan in each cell, or once. [default: anew]")
@click.option(
    "--headroom", default="0", callback=common.share, help="Share of the budget that plans made once leave free."
)
@click.option("--bounds/--no-bounds", default=None, help="Compute columns of bounds, too. [default: for a curve]")
def sweep(scenario: str, out: Path | None, cache: Path | None, *, no_cache: bool, **more: Any) -> int:
    """Run all rows of a scenario in each cell of a grid, or at each point of a STUDY, a .yaml with the varied fields.

    Without a grid a scenario runs at the points of its key `sweep:`.

    \b
    Examples:
      hosim sweep llama3_8b_train_910c --grid "links.*.bandwidth=16..200 GB/s:8"
      hosim sweep tiny_train_910c --policy static --policy reactive
        --grid "links.*.bandwidth=8 GB/s, 16 GB/s, 32 GB/s" --grid "scenario.budget=600..700 MB:5" --out results/grid
      hosim sweep llama3_8b_layer_scaling --policy resident
      hosim sweep tiny_train_uncertain --out results/uncertain
      hosim sweep llama3_8b_train_910c --plans once --headroom 5% --policy static --policy reactive
        --grid "workload.sequence=8192,8274,8602"
      hosim sweep long_context_kv_tiers --uncertainty 24

    A field is one of the machine, of the workload (workload.batch=1,2,4), or of the scenario
    (scenario.budget). FIRST..LAST:N are N values, evenly spaced; with ':N log' in even ratios; 0.5x,2x are
    factors. A study may also list values that go together, and draw uncertain figures from distributions.

    With --plans once plans are made for the documents as they are, and replayed unchanged in each cell, beside
    runtimes, which decide as they run: what blocks or no longer fits there is an outcome. Jitter factors are
    log-normal with mean 1: one for each op, and one for each link and draw; the level is their coefficient of
    variation.

    Rows are cached by all their inputs, and not run again: an interrupted sweep resumes, and a grown sweep
    runs only its new points. With --out rows are appended to a file as they are done. A row that cannot run
    in a cell is a line with its reason. The exit code is 1 if no row ran to its end.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.outputs import check_file
    from simulator.report.files import check_target
    from simulator.run.kept import SUFFIXES

    is_file = out is not None and out.suffix in SUFFIXES
    if out is not None:
        check_file("--out", out) if is_file else check_target(out)
    folder, cached = None if is_file else out, False if no_cache else cache
    appending = partial(hosim.sweep, out=out)
    return common.judged(common.run_and_print(appending, scenario, out=folder, cache=cached, **more).rows)


@common.command("Recompute published figures, and show which are reproduced.", "workers", "json", "junit", "out")
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option("--scale", "factors", multiple=True, metavar="KEY=FACTOR", help="Multiply a figure of the machine.")
@click.option("--headline", is_flag=True, help="Only the headline claims, which takes seconds.")
def validate(scenarios: tuple[str, ...], factors: tuple[str, ...], junit: Path | None, **more: Any) -> int:
    """Recompute the printed figures of all claims in the catalogue, or of each SCENARIO, one line per figure.

    \b
    Examples:
      hosim validate
      hosim validate llama3_8b_2x2x2 mine.yaml
      hosim validate --scale "links.*.bandwidth=0.5"
      hosim validate --headline
      hosim validate --out results/claims

    A figure `holds` if it was predicted and ours is within the tolerance of its scenario. `guarded`: none is
    printed, ours is checked. `by construction`: nothing else can come out. `fitted`: something was fitted to it.
    `shown`: it is only shown beside ours. `missed`: it fails, for the reason below the table. `BROKEN`: with none.
    --scale shows which claims depend on a figure of the machine; a machine without that figure runs as it is.

    The exit code is 1 if a figure is BROKEN.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator import catalog

    scale = dict(map(catalog.factor, factors))
    validation = common.run_and_print(hosim.validate, scenarios or None, scale=scale, **more)
    common.write_junit(validation.checks, junit)
    return common.FAILED if validation.is_broken else 0

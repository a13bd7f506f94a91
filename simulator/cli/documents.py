"""The commands that run nothing: `hosim list`, `check`, `schema`, `graph`, `layout` and `diff`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from simulator.cli import common

if TYPE_CHECKING:
    from simulator.scenario import Scenario

_KINDS = ("hardware", "workload", "scenario")
_LISTS = {"hardware": "hardware", "workloads": "workload", "scenarios": "scenario", "policies": ""}
"""What can be listed -> its kind of document."""


@click.command("list", short_help="List profiles, workloads, scenarios and policies.")
@click.argument("kind", required=False, type=click.Choice(tuple(_LISTS)))
def list_(kind: str | None) -> None:
    """List what the catalogue holds, one line each, with the origins of its figures.

    \b
    Examples:
      hosim list
      hosim list scenarios
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.report.text import aligned_lines

    chosen = (kind,) if kind else tuple(_LISTS)
    for number, name in enumerate(chosen):
        if kind is None:
            click.echo(("\n" if number else "") + name)
        entries = _documents(_LISTS[name]) if _LISTS[name] else _policies()
        click.echo(aligned_lines(entries, indent=0 if kind else 2))


def _documents(kind: str) -> list[tuple[str, ...]]:
    from simulator import catalog
    from simulator.units import counted

    found = []
    for name in catalog.names(kind):
        document = catalog.load(name, kind).document
        counts = [f"{count} {origin}" for origin, count in document.origins().items() if count]
        devices = [counted(document.topology.devices, "device")] if kind == "hardware" else []
        command = [_command(document)] if kind == "scenario" else []
        found.append((name, *devices, *command, ", ".join(counts) or "no figures", document.title))
    return found


def _command(scenario: Scenario) -> str:
    """What runs a scenario: `hosim serve` if its workload is requests."""
    from simulator import catalog

    workload = catalog.load(scenario.workload, "workload").document
    return "hosim serve" if workload.requests is not None else "hosim run"


def _policies() -> list[tuple[str, ...]]:
    from simulator.policies import POLICIES

    return [(name, "", entry.summary) for name, entry in POLICIES.items()]


@click.command(short_help="Validate documents, graphs and plans; nothing runs.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--scenario", help="What a plan is for; its steps are then checked against that graph and machine.")
def check(files: tuple[str, ...], scenario: str | None) -> int:
    """Read and validate documents (.yaml), graphs and plans (.jsonl), traces (.json); nothing runs.

    \b
    Examples:
      hosim check scenarios/mine.yaml graphs/mine.jsonl
      hosim check plan.jsonl --scenario llama3_8b_train_910c

    A plan without its scenario is checked as far as its own lines tell.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.cli.check import describe
    from simulator.errors import HosimError, quotable

    failed = 0
    for file in files:
        try:
            click.echo(f"{quotable(file, 350)}: {describe(file, scenario)}")
        except HosimError as error:
            failed += 1
            sys.stdout.flush()
            click.echo(f"hosim: {error}", err=True)
    return common.FAILED if failed else 0


@click.command(short_help="Print the JSON Schema of a kind of document.")
@click.argument("kind", type=click.Choice(_KINDS))
def schema(kind: str) -> None:
    """Print the JSON Schema of a kind of document, so that editors complete and check its YAML.

    \b
    Examples:
      hosim schema scenario > scenario.schema.json
      then begin the YAML with:  # yaml-language-server: $schema=scenario.schema.json
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    import json

    from simulator import catalog

    click.echo(json.dumps(catalog.schema(kind), indent=2))


@click.command(short_help="Write the operator graph of a workload as a file.")
@click.argument("workload")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A new folder.")
def graph(workload: str, out: Path) -> None:
    """Write the operator graph of WORKLOAD as JSON lines (hosim-graph/1), and a workload that runs the file.

    \b
    Examples:
      hosim graph llama3_8b_train --out graphs/llama3_8b
      hosim graph mine.yaml --out graphs/mine

    WORKLOAD is a name in the catalogue or a .yaml file. Change the file as you like; a scenario runs it with
    workload: graphs/llama3_8b/workload.yaml. Of several ranks that run different graphs each is a file.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.run.jobs import write_graphs

    for line in write_graphs(workload, out):
        click.echo(line)


@click.command(short_help="Say what every rank holds, and what ranks communicate.")
@click.argument("workload")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON, sizes in bytes.")
def layout(workload: str, as_json: bool) -> None:
    """Spread WORKLOAD over its ranks: who holds what, how weights are cut, what is communicated in a step.

    \b
    Examples:
      hosim layout llama3_8b_train_2x2x2
      hosim layout mine.yaml --json

    WORKLOAD is a name in the catalogue or a .yaml file. Its key `parallel:` says how many ranks share what
    (data, tensor, pipeline, expert); with `ranks: one` there is one rank's slice, which communicates nothing.
    A size is that of the tensor which ranks reduce, gather or send; what it takes is the machine's business.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.run.jobs import layout as spread

    click.echo(spread(workload, as_json=as_json))


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

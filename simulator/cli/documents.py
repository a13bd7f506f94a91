"""The commands about files: `hosim list`, `calibrate`, `check`, `schema`, `graph`, `layout`, `diff` and `import`.

`import` converts files of other tools to documents; the options of each kind are those of its reader.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

import simulator as hosim
from simulator.cli import common

_KINDS = ("hardware", "software", "workload", "job", "scenario", "study")
_PLURALS = {"workload": "workloads", "job": "jobs", "scenario": "scenarios", "study": "studies"}
_LISTS = {_PLURALS.get(kind, kind): kind for kind in _KINDS} | {"policies": ""}
"""Argument of `hosim list` -> kind of document."""


@common.command("List profiles, workloads, scenarios and policies.", name="list")
@click.argument("kind", required=False, type=click.Choice(tuple(_LISTS)))
def list_(kind: str | None) -> None:
    """List the documents of the catalogue, one line each, with the origins of their figures, and the policies.

    \b
    Examples:
      hosim list
      hosim list scenarios
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.policies import POLICIES
    from simulator.report.tables import Column, aligned

    parts = []
    for name in (kind,) if kind else tuple(_LISTS):
        policies = [(policy, entry.summary) for policy, entry in POLICIES.items()]
        lines = _documents(_LISTS[name]) if _LISTS[name] else policies
        table = aligned([Column("", cells) for cells in zip(*lines, strict=True)], 0 if kind else 2)
        parts.append(table if kind else f"{name}\n{table}")
    click.echo("\n\n".join(parts))


def _documents(kind: str) -> list[tuple[str, ...]]:
    """Return name, command or size, origins and title of each document of a kind."""
    from simulator import catalog
    from simulator.units import counted

    lines = list[tuple[str, ...]]()
    for name in catalog.names(kind):
        document, about = catalog.load(name, kind).document, ""
        if kind == "hardware":
            about = counted(document.topology.devices, "device")
        if kind == "software":
            about = f"for {', '.join(document.for_)}"
        if kind == "job":
            about = counted(len(document.programs), "program")
        if kind == "study":
            about = "hosim sweep"
        if kind == "scenario":
            requests = catalog.load(document.workload, "workload").document.requests
            about = "hosim run" if requests is None else "hosim serve"
        counts = [f"{count} {origin}" for origin, count in document.origins().items() if count]
        lines.append((name, about, ", ".join(counts) or "no figures", document.title))
    return lines


@common.command("Validate documents, graphs and plans; nothing runs.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--scenario", help="Check a plan against the graph and the machine of this scenario.")
@click.option("--strict", is_flag=True, help="Each figure of a document needs an origin.")
def check(files: tuple[str, ...], scenario: str | None, strict: bool) -> int:
    """Read and validate documents (.yaml), graphs and plans (.jsonl), traces (.json); nothing runs.

    \b
    Examples:
      hosim check scenarios/mine.yaml graphs/mine.jsonl
      hosim check plan.jsonl --scenario llama3_8b_train_910c

    Without its scenario, a plan is checked by its own lines only. A figure without an entry in sources, assumed or
    fitted is your own; with --strict each figure needs one, also in the documents that a scenario names.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.cli.check import describe
    from simulator.errors import quotable

    failed = 0
    for file in files:
        try:
            click.echo(f"{quotable(file, 350)}: {describe(file, scenario, is_strict=strict)}: ok")
        except hosim.HosimError as error:
            failed += 1
            sys.stdout.flush()
            click.echo(f"hosim: {error}", err=True)
    return common.FAILED if failed else 0


@common.command("Measure this machine, and write its profile.")
@click.option("-o", "--out", "--output", "out", type=common.PATH, required=True, metavar="FILE", help="The profile.")
@click.option(
    "--folder", type=common.PATH, default=".", show_default=True, help="Where the file lies that copies go to."
)
@click.option("--quick", is_flag=True, help="Take at most ten seconds: fewer sizes, shapes and repetitions.")
@click.option("--step", metavar="MODULE:FUNCTION", help="Time the ops of this step, too, and write it as a workload.")
def calibrate(out: Path, step: str | None, **how: Any) -> None:
    """Measure this machine in at most two minutes, and write a hardware profile whose sources are the measurements.

    \b
    Examples:
      hosim calibrate -o this.yaml
      hosim calibrate -o this.yaml --quick --folder /mnt/scratch
      hosim calibrate -o this.yaml --step mine:step

    It measures copies between the compute tier (the GPU's memory, or else RAM) and the tiers below (RAM, a file past
    the page cache) by size and both ways at once, matmuls by type and shape, memory, and the times to launch an op
    and to issue a copy. Reads go into new memory, as in a step. An existing file is replaced.

    Each figure states median, least, most and count. It is taken in several rounds; where their medians differ by
    more than 10 %, or other programs take more than 10 % of the cores, the title says noisy: end them, and repeat.

    MODULE:FUNCTION makes a training step of PyTorch, as for `hosim torch run`. It runs some ten times, in memory, and
    becomes a workload whose ops have the times that they took here: this_step.yaml beside this.yaml.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.importers.torch import finding, parts_of
    from simulator.report.tables import ProgressBar

    with ExitStack() as stack:
        find = None if step is None else stack.enter_context(finding(step, f"calibrate --step {step}"))
        make = find and find()  # before anything is measured
        with ProgressBar() as progress:
            machine = hosim.calibrate(out, **how, progress=progress)
        for path, cited in machine.sources.items():
            for source in cited:
                click.echo("; ".join(filter(None, (f"{path}: {source.text}", source.value, source.note))))
        click.echo(f"{machine.title}\nwritten: {out}")
        if make is not None:
            with redirect_stdout(sys.stderr):
                parts, options = parts_of(f"calibrate --step {step}", make())
                recorded = hosim.torch.record(*parts, **options)
            for file in recorded.write(out.with_name(f"{out.stem}_step.yaml"), force=True):
                click.echo(f"written: {file}")


@common.command("Print the JSON Schema of a kind of document, or of plans.")
@click.argument("kind", type=click.Choice((*_KINDS, "plan")))
def schema(kind: str) -> None:
    """Print the JSON Schema of a kind of document, so that editors complete and check its YAML.

    The schema `plan` is for each line of a plan file, for tools that write such files.

    \b
    Examples:
      hosim schema scenario > scenario.schema.json
      then begin the YAML with:  # yaml-language-server: $schema=scenario.schema.json
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    import json

    from simulator import catalog, formats

    of_kind = formats.plan_jsonl.LINE.json_schema() if kind == "plan" else catalog.schema(kind)
    click.echo(json.dumps(of_kind, indent=2))


@common.command("Write the operator graph of a workload as a file.")
@click.argument("workload", callback=common.native)
@click.option("-o", "--out", type=common.PATH, required=True, help="A new folder.")
@click.option("--force", is_flag=True, help="Replace a folder of such files.")
def graph(workload: str, out: Path, *, force: bool) -> None:
    """Write the operator graph of WORKLOAD as JSON lines (hosim-graph/1), and a workload that runs the file.

    \b
    Examples:
      hosim graph llama3_8b_train --out graphs/llama3_8b
      hosim graph mine.yaml --out graphs/mine

    WORKLOAD is a name in the catalogue or a .yaml file. Change the file as you like; a scenario runs it with
    workload: graphs/llama3_8b/workload.yaml. If ranks run different graphs, each graph gets a file.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.run.stories import write_graphs

    click.echo("\n".join(write_graphs(workload, out, force=force)))


@common.command("Show the tensors of every rank, and the communication of ranks.", "json", name="show")
@click.argument("workload", callback=common.native)
def show(workload: str, as_json: bool) -> None:
    """Show how WORKLOAD is spread over its ranks: tensors of each rank, cuts of weights, communication of a step.

    \b
    Examples:
      hosim layout llama3_8b_train_2x2x2
      hosim layout mine.yaml --json

    WORKLOAD is a name in the catalogue or a .yaml file. Its key `parallel:` states the degrees of parallelism
    (data, tensor, pipeline, expert); with `ranks: one` there is one rank's slice, which communicates nothing.
    A size is that of the tensor which ranks reduce, gather or send; its time depends on the machine.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.run.stories import layout as spread

    click.echo(spread(workload, as_json=as_json))


_TROUBLE = 2


@common.command("Compare two results, and say why figures moved.", "json")
@click.argument("old", type=common.PATH)
@click.argument("new", type=common.PATH)
@click.option("--tolerance", default="0", callback=common.share, help="Accept changes up to this share, such as 1%.")
@click.option("--fail-on", type=click.Choice(("moved", "worse")), default="moved", show_default=True,
              help="When the exit code is 1.")  # fmt: skip
@click.option("--markdown", is_flag=True, help="Print Markdown, for a comment on a pull request.")
@click.option("--html", type=common.PATH, help="Also write an HTML page.")
def diff(  # noqa: PLR0913, PLR0917 - a parameter for each option
    old: Path, new: Path, tolerance: float, fail_on: str, as_json: bool, markdown: bool, html: Path | None
) -> int:
    """Compare the results OLD and NEW, folders that `hosim run --out` wrote, or the summary.json in them.

    \b
    Examples:
      hosim diff results/main results/mine
      hosim diff results/main results/mine --tolerance 1% --fail-on worse
      hosim diff main.json mine.json --markdown >> "$GITHUB_STEP_SUMMARY"

    Rows are matched by name. Compute, recompute and waits add up to the step, so their changes add up
    to that of the step, to the nanosecond. A tolerance is a share of the old value; for a step and its
    parts, of the old step.

    The exit code is 0 if nothing moved, 1 if something did (with --fail-on worse: if a row no longer
    runs or is gone, a step, a peak or a cost has grown, the life of a tier has shrunk, or an expectation
    that held fails), 2 if the two cannot be compared.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.outputs import written

    try:
        changes = hosim.diff(old, new, tolerance=tolerance)
        if html is not None:
            with written(html, option="--html") as (part,):
                part.write_text(changes.view.page(None), encoding="utf-8")
    except hosim.HosimError as error:
        click.echo(f"hosim: {error}", err=True)
        return _TROUBLE
    click.echo(changes.json() if as_json else changes.markdown() if markdown else f"{changes}\n", nl=False)
    return int(changes.moved if fail_on == "moved" else changes.worse)


class _Kinds(click.Group):
    """A command for each kind of file, made from its reader on demand."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Name all kinds."""
        from simulator.importers import KINDS

        return list(KINDS)

    def get_command(self, context: click.Context, name: str) -> click.Command:
        """Make the command of a kind; refuse unknown ones."""
        from simulator.importers import KINDS
        from simulator.units import nearest

        if name not in KINDS:
            raise click.UsageError(f"{name!r} is no kind of file: {nearest(name, tuple(KINDS))}")
        return _import_command(name, KINDS[name].about, KINDS[name].reader)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the kinds without importing their readers."""
        from simulator.importers import KINDS

        with formatter.section("Kinds"):
            formatter.write_dl([(name, kind.about) for name, kind in KINDS.items()])


@click.command(
    "import",
    cls=_Kinds,
    subcommand_metavar="KIND SOURCE -o FILE",
    short_help="Convert files of other tools to documents.",
)
def import_() -> None:
    """Convert a file of another tool to documents that you can edit and run, and report the conversion.

    \b
    Examples:
      hosim import hf config.json --phase decode -o mine.yaml
      hosim import hf --help
      zcat trace.json.gz | hosim import kineto - -o mine.yaml
      hosim run --hardware h100_sxm --workload mine.yaml

    Each figure in them has its origin. The command prints the parts kept, the figures derived with their sources,
    and the parts dropped with their counts.
    """  # noqa: D301 - click reads the backspace as "do not wrap"


_OUT = "The workload to write, such as mine.yaml; other files are written beside it."


def _import_command(name: str, about: str, reader: Callable[..., Any]) -> click.Command:
    from simulator.document import described

    texts, hints = described(reader, "Parameters"), get_type_hints(reader)
    options = [
        _option(keyword.name, hints[keyword.name], keyword.default, texts.get(keyword.name, ""))
        for keyword in inspect.signature(reader).parameters.values()
        if keyword.kind is keyword.KEYWORD_ONLY
    ]
    params = [
        click.Argument(["source"]),
        click.Option(
            ["-o", "--out", "--output", "out"],
            type=common.PATH,
            required=True,
            callback=common.writable,
            metavar="FILE",
            help=_OUT,
        ),
        click.Option(["--force"], is_flag=True, help="Replace existing files."),
        *options,
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, and nothing else."),
    ]

    def read(source: str, out: Path, force: bool, as_json: bool, **given: Any) -> None:
        import orjson

        from simulator.report.words import percent
        from simulator.run.stories import replayed

        imported = reader(source, **given)
        files, replay = imported.write(out, force=force, source=source), replayed(imported)
        if as_json:
            json = imported.json() | {"files": [str(file) for file in files]} | replay
            click.echo(orjson.dumps(json, option=orjson.OPT_INDENT_2).decode())
            return
        written = "\n".join(("written:", *(f"  {file}" for file in files)))
        shares = ", ".join(f"{name} {percent(share)}" for name, share in replay.get("explained", {}).items())
        explained = (f"explained by: {shares}", replay["replay"], *replay["warnings"]) if replay else ()
        click.echo("\n".join(filter(None, (f"{source}: {about}", str(imported), written, *explained))))

    summary = (inspect.getdoc(reader) or "").partition("\n\nParameters")[0].replace("``", "")
    piped = "" if name == "torch" else "; - reads standard input"
    text = f"{summary}\n\nSOURCE is {about}{piped}.\n\n\b\nExamples:\n  hosim import {name} SOURCE -o mine.yaml"
    return click.Command(name, callback=read, params=params, help=text)


def _option(name: str, hint: Any, default: Any, about: str) -> click.Option:
    """Make the option of a keyword from its type, its default and its docstring."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (kind for kind in get_args(hint) if kind is not type(None))
    is_many = get_origin(hint) is tuple
    hint = get_args(hint)[0] if is_many else hint
    kind: Any = click.Choice(get_args(hint)) if get_origin(hint) is Literal else common.PATH if hint is Path else hint
    how: dict[str, Any] = {"is_flag": True} if hint is bool else {"type": kind, "multiple": is_many}
    how |= {"help": about.replace("``", ""), "show_default": default not in (None, False, (), "")}
    return click.Option([f"--{name.replace('_', '-')}", name], default=default, **how)

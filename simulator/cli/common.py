"""Shared by all commands: options, progress, printing and writing of results, and the exit code."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator import retired

if TYPE_CHECKING:
    from simulator.catalog import Loaded
    from simulator.report.expectations import Verdict
    from simulator.report.junit import Check

FAILED = 1
PATH, _FILE = click.Path(path_type=Path), click.Path(path_type=Path, dir_okay=False)
_WORKERS = "Processes; the result does not depend on it. [default: cores]"


def _changes(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, Any]:
    """Read the texts of ``--set`` and ``--home``."""
    from simulator import catalog

    such = {"such": "weight=ddr"} if parameter.name == "home" else {}
    return dict(catalog.setting(text, **such) for text in texts)


def grid(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str] | None:
    """Read the texts of ``--grid``, axis by axis; None if there are none."""
    axes: dict[str, str] = {}
    for text in texts:
        key, values = (part.strip() for part in text.partition("=")[::2])
        if not (key and values):
            raise click.BadParameter(f"write it as 'links.*.bandwidth=16..200 GB/s:8', found {key!r}")
        if key in axes:
            raise click.BadParameter(f"an axis is given once, found {key!r} again; list its values: 'batch=1,2,4'")
        axes[key] = values
    return axes or None


def writable(
    context: click.Context, parameter: click.Parameter, path: Path | None, *, is_folder: bool = False
) -> Path | None:
    """Refuse a file, or a folder of results, that cannot be written."""
    if path is not None and is_folder:
        from simulator.report.files import check_target

        check_target(path)
    elif path is not None:
        from simulator.outputs import check_file

        check_file(parameter.opts[0], path)
    return path


def native(context: click.Context, parameter: click.Parameter, reference: str) -> str:
    """Refuse a file that must be imported first; a document of hosim passes."""
    from simulator.importers import refuse_foreign

    refuse_foreign(reference, str(parameter.name))
    return reference


_WORKLOAD = "Without a scenario: the workload; a name or a .yaml."
_HARDWARE = "Without a scenario: the machine; a name or a .yaml."


def _on_machine(function: Callable[..., Any]) -> Callable[..., Any]:
    """Take a scenario, or make one of a workload and a machine."""

    @wraps(function)
    def with_scenario(scenario: Any, hardware: str | None, workload: str | None, **more: Any) -> Any:
        from simulator.run import scenario_to_run

        if {hardware is None, workload is None} != {scenario is not None}:
            raise click.UsageError("name a SCENARIO (see `hosim list`), or --hardware NAME and --workload NAME")
        return function(scenario_to_run(scenario, hardware, workload, more.get("policies")), **more)

    with_scenario = click.option("--workload", metavar="NAME", help=_WORKLOAD)(with_scenario)
    with_scenario = click.option("--hardware", metavar="NAME", help=_HARDWARE)(with_scenario)
    return click.argument("scenario", required=False)(with_scenario)


_OUT = "Write all results into this folder: tables, pictures and a page."
_SET = "Change the machine; the budget and homes; or with workload.KEY=VALUE the workload, or software.KEY=VALUE."
_SOFTWARE = "How a framework drives the machine; a name or a .yaml. Short for --set software=NAME."
_HOME = "Give tensors a home: weight=ddr, kv_cache=free. Short for --set homes.KIND=TIER."


def _engine(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Replay by an engine until the command ends; engines take time to import."""
    if name is not None:
        from simulator.engine import using

        context.with_resource(using(name))


_ENGINE = "Replay by this engine: auto, simpy, compiled. No number depends on it."


def _settable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Take changes of documents, among them homes, and the engine."""

    @wraps(function)
    def with_changes(*args: Any, home: Mapping[str, Any], software: str | None, **more: Any) -> Any:
        more["set"] |= {} if software is None else {"software": software}
        more["set"] |= {f"homes.{kind}": tier for kind, tier in home.items()}
        return function(*args, **more)

    engine = click.option("--engine", metavar="NAME", expose_value=False, callback=_engine, help=_ENGINE)
    with_changes = click.option("--software", metavar="NAME", help=_SOFTWARE)(engine(with_changes))
    for name, metavar, about in (("--home", "KIND=TIER", _HOME), ("--set", "KEY=VALUE", _SET)):
        with_changes = click.option(name, multiple=True, callback=_changes, metavar=metavar, help=about)(with_changes)
    return with_changes


_JUNIT = "Write the expectations as JUnit XML into this file."
_SHARED: dict[str, Callable[..., Any]] = {
    "scenario": _on_machine,
    "out": click.option("-o", "--out", type=PATH, callback=partial(writable, is_folder=True), help=_OUT),
    "set": _settable,
    "policy": click.option(
        "--policy", "policies", multiple=True, metavar="NAME", help="Only this row, or this policy."
    ),
    "json": click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else."),
    "junit": click.option("--junit", type=_FILE, callback=writable, help=_JUNIT),
    "workers": click.option("--workers", type=click.IntRange(1), default=lambda: os.cpu_count() or 1, help=_WORKERS),
}


class _Command(click.Command):
    """Says of an option that is gone which one to say in its place."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Read the options."""
        try:
            return super().parse_args(context, args)
        except click.NoSuchOption as error:
            now = retired.OPTIONS.get(str(context.info_name), {}).get(error.option_name)
            if now is None:
                raise
            raise click.UsageError(f"No such option {error.option_name!r}: write {now}.", context) from None


def command(short_help: str, *shared: Any, name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function, with options; shared ones are given by name."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        for option in reversed(shared):
            function = _SHARED.get(option, option)(function)
        return click.command(name, _Command, short_help=short_help)(function)

    return decorate


def shares(context: click.Context, parameter: click.Parameter, text: str | None) -> list[float] | None:
    """Read ``5%,0.1`` as shares."""
    stated = [] if text is None else [part.strip() for part in text.split(",")]
    try:
        read = [float(part.removesuffix("%")) / (100 if part.endswith("%") else 1) for part in stated]
    except ValueError:
        read = [math.nan]
    if not all(0 <= each < math.inf for each in read):
        raise click.BadParameter(f"{text!r} is no list such as 5%,0.1")
    return read or None


def share(context: click.Context, parameter: click.Parameter, text: str) -> float:
    """Read ``5%`` or ``0.05``."""
    stated = shares(context, parameter, text) or []
    if len(stated) != 1:
        raise click.BadParameter(f"{text!r} is not one share, such as 5%")
    return stated[0]


def run_and_print(
    function: Callable[..., Any], *arguments: Any, out: Path | None, as_json: bool = False, **options: Any
) -> Any:
    """Call a function with progress, write its result if a folder is named, print the result and return it.

    Options that are not given keep the defaults of the function.
    """
    from simulator.report.tables import ProgressBar

    given = {name: value for name, value in options.items() if value not in (None, ())}
    with ProgressBar() as progress:
        result = function(*arguments, progress=progress, **given)
        if out is not None:
            result.write(out, reproducing())
    click.echo(result.json() if as_json else f"{result}\n", nl=False)
    for loaded in () if result.name == "serve" else result.loaded:
        tell_idle(loaded, result.more.get("grid", ()))
    return result


def tell_idle(loaded: Loaded, axes: Iterable[str] = ()) -> None:
    """Name what was changed from outside, or varied, and changes nothing in what the scenario runs."""
    from simulator.errors import HosimError
    from simulator.run.case import prepare
    from simulator.run.effects import idle_line

    asked = loaded.asking(axes)
    with suppress(HosimError):  # what a sweep varies may be wrong as it stands
        line = idle_line(prepare(asked, with_bounds=False)) if asked.asked else None
        click.echo(f"hosim: {line}" if line else "", err=True, nl=line is not None)


_ASIDE = {"--workers": True, "--engine": True, "--cache": True, "--junit": True, "--no-cache": False, "--json": False}
"""Options that do not change a result, and whether each has a value."""


def reproducing() -> str:
    """Return the command that reproduces this result: paths without folders, and without the options `_ASIDE`."""
    given, kept = iter(click.get_current_context().find_root().obj or ()), ["hosim"]
    for word in given:
        option, _, value = word.partition("=")
        if option in ("-o", "--out"):
            kept += [option, Path(value or next(given)).name]
        elif option not in _ASIDE:
            kept.append(Path(word).name if word.endswith(".yaml") and "=" not in word else word)
        elif _ASIDE[option] and not value:
            next(given, None)
    return " ".join(map(_quoted, kept))


def _quoted(word: str) -> str:
    """Quote a word for a shell; the bytes of a name that is not UTF-8 as escapes, so that any file can hold it."""
    try:
        word.encode()
    except UnicodeEncodeError:
        escaped = word.replace("\\", r"\\").replace("'", r"\'").encode(errors="surrogateescape")
        return f"$'{escaped.decode(errors='backslashreplace')}'"
    return shlex.quote(word)


def write_junit(checks: Mapping[str, Sequence[Check]], file: Path | None) -> None:
    """Write the checks of each scenario, if a file is named."""
    from simulator.report import junit

    if file is not None:
        junit.write_junit(checks, file)


def judged(
    rows: Sequence[Mapping[str, Any]],
    expectations: Sequence[Verdict] = (),
    none: str = "no row ran to its end",
    *,
    is_whole: bool = False,
) -> int:
    """Print failures, and return the exit code: 0 if no expectation fails and a row ran to its end.

    Of what `is_whole`, no cells of a sweep, no row may fail, either.
    """
    sys.stdout.flush()
    failed = [f"expectation fails: {verdict}" for verdict in expectations if verdict.is_broken]
    reasons = [(row, str(row.get("notes") or row.get("why"))) for row in rows if row["status"] in {"refused", "failed"}]
    if not any(row["status"] == "ok" for row in rows):
        statuses = " or ".join(sorted({str(row["status"]) for row in rows}))
        why = dict.fromkeys(why for _, why in reasons)
        failed.append("; ".join((f"{none}, all are {statuses}" if none.startswith("no row ran") else none, *why)))
    elif is_whole:
        failed += [f"{row['policy']} fails: {why}" for row, why in reasons if row["status"] == "failed"]
    for line in failed:
        click.echo(f"hosim: {line}", err=True)
    return FAILED if failed else 0

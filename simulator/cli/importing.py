"""`hosim import`: other people's files become hosim's documents; each kind's options are those of its reader."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click


class _Kinds(click.Group):
    """A command for each kind, made of its reader when it is asked for."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Name all kinds."""
        from simulator.importers import KINDS

        return list(KINDS)

    def get_command(self, context: click.Context, name: str) -> click.Command:
        """Make the command of a kind, or say which kinds there are."""
        from simulator.importers import KINDS
        from simulator.units import nearest

        if name not in KINDS:
            raise click.UsageError(f"{name!r} is no kind of file: {nearest(name, tuple(KINDS))}")
        return _command(name, KINDS[name].about, KINDS[name].reader)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the kinds without importing their readers."""
        from simulator.importers import KINDS

        with formatter.section("Kinds"):
            formatter.write_dl([(name, kind.about) for name, kind in KINDS.items()])


@click.command(
    "import",
    cls=_Kinds,
    subcommand_metavar="KIND SOURCE -o FILE",
    short_help="Make documents of what other people's tools write.",
)
def import_() -> None:
    """Read a file of another kind, write documents of hosim that you can edit and run, and say what was understood.

    \b
    Examples:
      hosim import hf config.json --phase decode -o mine.yaml
      hosim import hf --help
      hosim run --hardware h100_sxm --workload mine.yaml

    Each figure that is written has its origin. Told are what was kept, what was derived and from what, and what was
    dropped and how often.
    """  # noqa: D301 - click reads the backspace as "do not wrap"


_OUT = "The workload that is written, such as mine.yaml; other files lie beside it."


def _command(name: str, about: str, reader: Callable[..., Any]) -> click.Command:
    told, hints = _told(reader), get_type_hints(reader)
    options = [
        _option(one.name, hints[one.name], one.default, told.get(one.name, ""))
        for one in inspect.signature(reader).parameters.values()
        if one.kind is one.KEYWORD_ONLY
    ]
    params = [
        click.Argument(["source"]),
        click.Option(
            ["-o", "--output", "out"], type=click.Path(path_type=Path), required=True, metavar="FILE", help=_OUT
        ),
        click.Option(["--force"], is_flag=True, help="Replace what is there."),
        *options,
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, and nothing else."),
    ]

    def read(source: str, out: Path, force: bool, as_json: bool, **given: Any) -> None:
        import orjson

        from simulator.importers.kineto import UNTIMED
        from simulator.run.stories import as_recorded

        found = reader(source, **given)
        files = found.write(out, force=force)
        untimed = found.dropped.get(UNTIMED, 0)
        replay = as_recorded(found.graph, found.recorded_ns, untimed) if found.graph and found.recorded_ns else ""
        if as_json:
            told = {**found.json(), "files": [str(file) for file in files], **({"replay": replay} if replay else {})}
            click.echo(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
            return
        said = f"{source}: {about}"
        wrote = "\n".join(("written:", *(f"  {file}" for file in files)))
        click.echo("\n".join(part for part in (said, str(found), wrote, replay) if part))

    first = (inspect.getdoc(reader) or "").partition("\n\n")[0]
    text = f"{first}\n\nSOURCE is {about}.\n\n\b\nExamples:\n  hosim import {name} SOURCE -o mine.yaml"
    return click.Command(name, callback=read, params=params, help=text)


def _told(reader: Callable[..., Any]) -> dict[str, str]:
    """What the section *Parameters* of a docstring says of each, in one line."""
    section = (inspect.getdoc(reader) or "").partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    found = re.findall(r"^(\S.*)\n((?: +.*\n?)+)", section, re.MULTILINE)
    return {name: " ".join(text.replace("``", "").split()) for name, text in found}


def _option(name: str, hint: Any, default: Any, about: str) -> click.Option:
    """The option of a keyword."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    is_many = get_origin(hint) is tuple
    hint = get_args(hint)[0] if is_many else hint
    type_: Any = click.Choice(get_args(hint)) if get_origin(hint) is Literal else hint
    if hint is Path:
        type_ = click.Path(path_type=Path)
    flag: dict[str, Any] = {"is_flag": True} if hint is bool else {"type": type_, "multiple": is_many}
    shown = default not in (None, False, ())
    return click.Option([f"--{name.replace('_', '-')}", name], default=default, help=about, show_default=shown, **flag)

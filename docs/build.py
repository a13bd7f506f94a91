"""Write what the documents take from the program: the reference pages, and the pictures.

    python docs/build.py             the reference pages
    python docs/build.py --pictures  the pictures and the notebooks with their outputs, too (minutes)
    python docs/build.py --notebooks NAME  these notebooks alone: what they print and draw, and their pages
    python docs/build.py --evidence  what is measured, too (half an hour on a quiet machine); or of some pages only:
                                     --evidence speed collectives

A test holds that the reference pages are what this writes, so that they cannot fall behind the program.
"""

from __future__ import annotations

import argparse
import base64
import functools
import inspect
import io
import itertools
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pictures

import simulator as hosim
from simulator import catalog
from simulator.catalog.text import compose, to_yaml
from simulator.cli import hosim as command
from simulator.formats import graph_jsonl, plan_jsonl, residency_json, tables_csv
from simulator.importers import KINDS
from simulator.lifetime import live_bytes
from simulator.metrics.figures import FIGURES, SERVED
from simulator.plan import View
from simulator.policies import POLICIES
from simulator.policies.writer import Move, Writer, write

DOCS = Path(__file__).parent
_MADE = "<!-- made by docs/build.py -->"
_UNITS = {
    "ns": "ns",
    "B": "B",
    "share": "share of 1",
    "times": "multiple",
    "count": "number",
    "per s": "a second",
    "J": "J",
    "USD": "USD",
    "years": "years",
    "text": "text",
}
_WIDTH = 100
_EXAMPLE_LINES = 10
_BESIDE = (Writer, Move, write, View, live_bytes, *(f for m in (graph_jsonl, plan_jsonl) for f in (m.read, m.write)))
_SIMPLE = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}
_DEFINING = ("Parameters", "Attributes", "Returns", "Raises")
_ROWS = {
    "run": "every row",
    "rank": "rows that ran to their end",
    "ranks": "jobs of several ranks",
    "chosen": "rows whose ops read dynamically",
    "bound": "rows with a lower bound",
    "addresses": "rows with addresses",
    "table": "tables of several rows",
    "served": "rows of `hosim serve`",
    "cost": "rows on a machine that states costs",
    "real": "rows that ran to their end",
}
_FORMATS = {
    "Graphs: hosim-graph/1": graph_jsonl,
    "Plans: hosim-plan/1": plan_jsonl,
    "Graphs with cache operators: hosim-augmented/1": graph_jsonl.write_augmented,
    "Recorded steps: residency-trace/1": residency_json,
    "Requests, and choices of routers": tables_csv,
}
_DOCUMENTS = {
    "hardware": (
        "A machine",
        "`hardware_profiles/*.yaml`, and your own files, which the key `hardware:` of a scenario names.",
    ),
    "software": (
        "A software",
        "`software_profiles/*.yaml`, and your own files, which the key `software:` of a scenario names.",
    ),
    "workload": (
        "A workload",
        "`workloads/*.yaml`, and your own files, which the key `workload:` of a scenario names.",
    ),
    "job": (
        "A job",
        "`workloads/jobs/*.yaml`, and your own files, which the key `workload:` of a scenario names, too.",
    ),
    "scenario": ("A scenario", "`scenarios/**/*.yaml`, and your own files, for `hosim run FILE`."),
    "study": ("A study", "`studies/*.yaml`, and your own files, for `hosim sweep FILE`."),
}


def _cell(text: object) -> str:
    parts = " ".join(str(text).split()).replace("|", "\\|").split("`")
    return "`".join(part if at % 2 else part.replace("<", "&lt;") for at, part in enumerate(parts))


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(map(_cell, row)) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def commands() -> str:
    """Every command with its help, as a wide terminal prints it."""
    exits = (
        "Exit codes: 0: success; 1: an expectation fails, something moved, or a file, policy, field or value that was "
        "named is wrong (nothing has run then); 2: wrong options or arguments; 130: an "
        "interrupt (Ctrl-C, SIGTERM, a closed terminal, a limit on processor time), or 128 plus the number of "
        "the signal (143 for SIGTERM) if it comes while an error is being printed. After an interrupt the output is "
        "either complete, and named, or absent."
    )
    parts = [f"# Commands\n\n{_MADE}\n\n{exits}\n"]
    root = command.make_context("hosim", ["list"], terminal_width=_WIDTH, max_content_width=_WIDTH)
    for name, one in sorted(command.commands.items()):
        context = click.Context(one, info_name=name, parent=root)
        parts.append(f"## hosim {name}\n\n```text\n{one.get_help(context)}\n```\n")
        for kind in one.list_commands(context) if isinstance(one, click.Group) else ():
            inner = one.get_command(context, kind)
            told = inner.get_help(click.Context(inner, info_name=kind, parent=context))
            parts.append(f"### hosim {name} {kind}\n\n```text\n{told}\n```\n")
    return "\n".join(parts)


def columns() -> str:
    """Every column of a summary, from the registry."""
    about = (
        "The columns of `summary.csv` and `summary.json`; `expect:` and `hosim diff` use the same names. `<>` stands "
        "for a cause, a tier, a link, a bus or a field. In the meanings, `n` is the number of steps, `E_k` the end "
        "of the last compute of step `k` on the stream whose last compute ends last (`E_0 = 0`), and `M` the last end "
        "of anything."
    )
    worse = {"": "", "more": "more is worse", "less": "less is worse"}
    rows = [
        (f"`{one.column}`", _UNITS[one.unit], one.head, one.meaning, _ROWS[one.of], worse[one.worse])
        for one in (*FIGURES, *SERVED)
    ]
    head = ("column", "unit", "heading", "meaning", "which rows have it", "direction")
    return f"# Columns\n\n{_MADE}\n\n{about}\n\n{_table(head, rows)}"


def policies() -> str:
    """Every policy with its options."""
    parts = [f"# Policies\n\n{_MADE}\n\nA row of a scenario names a policy, and perhaps `options:`.\n"]
    for name, entry in POLICIES.items():
        schema = entry.options.model_json_schema(by_alias=True)
        parts.append(f"## {name}\n\n{entry.summary}\n")
        module = inspect.getmodule(entry.function)
        is_alone = getattr(module, "plan", None) is entry.function
        about = (inspect.getdoc(module if is_alone else entry.function) or "").partition("\n\nParameters\n")[0]
        parts.append(f"{_markdown(about)}\n")
        if schema.get("properties"):
            parts.append(_keys(schema, schema.get("$defs", {})))
        parts += [
            f"### {part}\n\n{_keys(found, schema['$defs'])}"
            for part, found in schema.get("$defs", {}).items()
            if "properties" in found
        ]
    return "\n".join(parts)


def documents() -> str:
    """Every key of the YAML documents, from their JSON Schemas."""
    about = (
        "The five kinds of documents. `hosim schema KIND` prints the JSON Schema of each, with which editors complete "
        "and check the YAML. Quantities are "
        "text with a unit (`64 GB`, `33.6 GB/s`, `3 us`); `GB` is 10^9 bytes, `GiB` is 2^30. Unknown keys are refused."
    )
    parts = [f"# YAML documents\n\n{_MADE}\n\n{about}\n"]
    for kind, (title, where) in _DOCUMENTS.items():
        schema = catalog.schema(kind)
        parts.append(f"## {title}\n\n{schema['description']}\n\n{where}\n\n{_keys(schema, schema['$defs'])}")
        shipped = _shipped(kind, schema)
        for name, either in schema["$defs"].items():
            for found in either.get("anyOf", [either]):
                if "properties" in found:
                    said, keys = _markdown(found.get("description", "")), _keys(found, schema["$defs"])
                    parts.append(f"### {title.split()[-1]}: {name}\n\n{said}\n\n{keys}{shipped.get(name, '')}")
    return "\n".join(parts)


def _shipped(kind: str, schema: Mapping[str, Any]) -> dict[str, str]:
    """Of each part, what a shipped document says most about it in a few lines: name -> a paragraph with it."""
    said: dict[str, list[tuple[int, str, str]]] = {}
    for document in catalog.names(kind):
        text = catalog.path_of(document, kind).read_text(encoding="utf-8")
        for name, value in _uses(schema, compose(text, document).data, schema["$defs"]):
            lines = to_yaml(value)
            if lines.count("\n") <= _EXAMPLE_LINES:
                said.setdefault(name, []).append((len(value), document, lines))
    best = {name: max(found, key=lambda one: (one[0], -len(one[2]))) for name, found in said.items()}
    return {name: f"\nIn `{document}`:\n\n```yaml\n{lines}```\n" for name, (_, document, lines) in best.items()}


def _uses(schema: Mapping[str, Any], value: Any, parts: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Parts that a document uses, by name, with what it says of them."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        if isinstance(value, dict):
            yield name, value
        yield from _uses(parts[name], value, parts)
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found = parts[one["$ref"].rsplit("/", 1)[-1]] if "$ref" in one else one
        if not isinstance(value, dict) or value.keys() <= found.get("properties", value).keys():
            yield from _uses(one, value, parts)
    if isinstance(value, dict):
        others = next(iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties"))
        for key, more in value.items():
            below = schema.get("properties", {}).get(key, others)
            yield from _uses(below, more, parts) if isinstance(below, dict) else ()
    for more in value if isinstance(value, list) and "items" in schema else ():
        yield from _uses(schema["items"], more, parts)


def _keys(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """The keys of one part of a document, as a table."""
    required = set(schema.get("required", ()))
    rows = []
    for key, about in schema["properties"].items():
        default = "required" if key in required else _default(about)
        rows.append((f"`{key}`", _type(about, parts), default, about.get("description", "")))
    return _table(("key", "value", "default", "meaning"), rows)


def _default(about: Mapping[str, Any]) -> str:
    found = about.get("default")
    if isinstance(found, dict) and found:
        return "see its keys"
    return "none" if found in (None, "", [], {}) else f"`{str(found).lower() if isinstance(found, bool) else found}`"


def _type(about: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """What a key's value looks like."""
    if "$ref" in about:
        name = about["$ref"].rsplit("/", 1)[-1]
        return _type(parts[name], parts) if "enum" in parts[name] else name
    if several := about.get("anyOf", about.get("oneOf")):
        return " or ".join(dict.fromkeys(_type(one, parts) for one in several if one.get("type") != "null"))
    if "enum" in about or "const" in about:
        return ", ".join(f"`{value}`" for value in about.get("enum", [about.get("const")]))
    if about.get("examples"):
        return f"such as `{about['examples'][0]}`{' or `inf`' if 'inf)$' in about.get('pattern', '') else ''}"
    if about.get("type") == "array":
        return f"list of {_type(about['items'], parts)}" if "items" in about else "list"
    values = next(iter(about.get("patternProperties", {}).values()), about.get("additionalProperties"))
    mapping = f"name: {_type(values, parts)}" if isinstance(values, dict) and values else "mapping"
    return {"object": mapping, **_SIMPLE}.get(about.get("type", ""), "any")


def python() -> str:
    """The public names, with signatures and docstrings."""
    parts = [f"# Python\n\n{_MADE}\n\n`import hosim`; each name loads when it is first used.\n"]
    for name in hosim.__all__:
        found = getattr(hosim, name)
        if inspect.ismodule(found):
            parts.append(f"## {name}\n\n{_markdown(inspect.getdoc(found) or '')}\n")
            parts += [_described(f"{name}.{one}", getattr(found, one), "###") for one in found.__all__]
        else:
            parts.append(_described(name, found, "##"))
    parts.append("## For policies and files\n")
    parts += [_described(f"{found.__module__}.{found.__name__}", found, "###") for found in _BESIDE]
    return "\n".join(parts).rstrip() + "\n"


def _described(name: str, found: Any, level: str) -> str:
    """A public name with its docstring, and a line for each method, property and row of a class."""
    parts = [
        f"{level} {name}\n\n{_signature(name.rsplit('.', 1)[-1], found)}{_markdown(inspect.getdoc(found) or '')}\n"
    ]
    for at, one in vars(found).items() if inspect.isclass(found) else ():
        is_value = isinstance(one, (property, functools.cached_property))
        function = (one.fget if isinstance(one, property) else one.func) if is_value else getattr(found, at)
        if at[0] != "_" and (inspect.isfunction(function) or inspect.ismethod(function)):
            said = (inspect.getdoc(function) or "").partition("\n\n")[0]
            parts.append(f"- `{at}{'' if is_value else '()'}`: {' '.join(said.split())}".rstrip(": "))
    return "\n".join((*parts, ""))


def _signature(name: str, found: Any) -> str:
    if inspect.isclass(found):
        return ""
    text = str(inspect.signature(found)).replace("simulator.", "")
    return f"```text\n{name}{text}\n```\n\n"


def _markdown(docstring: str) -> str:
    """A numpydoc docstring as Markdown: sections in bold, what they define as lists."""
    found, section = [], ""
    lines = [*docstring.replace("``", "`").split("\n"), ""]
    for line, following in itertools.pairwise(lines):
        if line and set(following) == {"-"}:
            section = line
            found += [f"**{line}**", ""]
        elif set(line) == {"-"}:
            continue
        elif section in _DEFINING and line and not line.startswith(" "):
            found.append(f"- `{line}`:")
        else:
            found.append(f"  {line.strip()}" if line.startswith("    ") else line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(found)).strip()


def formats() -> str:
    """The files that hosim reads and writes, as what does so describes them."""
    parts = [
        f"# File formats\n\n{_MADE}\n\nFiles that hosim reads, and one that it only writes (`hosim-augmented/1`).\n"
    ]
    for heading, described in _FORMATS.items():
        about = (inspect.getdoc(described) or "").partition("\n\nParameters\n")[0]
        parts.append(f"## {heading}\n\n{_restructured(about)}\n")
    return "\n".join(parts)


def _restructured(docstring: str) -> str:
    """A docstring with literal blocks and simple tables, as Markdown."""
    text = re.sub(
        r"::\n\n((?:    .*\n|\n)+)",
        lambda found: f":\n\n```text\n{_dedented(found[1])}\n```\n\n",
        docstring.replace("``", "`") + "\n",
    )
    text = re.sub(
        r"^=+ .*\n(?:.*\n)*?=+ .*\n(?:(?:.+\n)+?=+ .*\n)?",
        lambda found: _from_simple(found[0]),
        text,
        flags=re.MULTILINE,
    )
    return text.strip()


def _dedented(block: str) -> str:
    return "\n".join(line[4:] for line in block.rstrip().split("\n"))


def _from_simple(table: str) -> str:
    """A simple table of reStructuredText, whose rulers say where columns begin."""
    lines = table.rstrip().split("\n")
    starts = [found.start() for found in re.finditer(r"=+", lines[0])]
    spans = list(itertools.zip_longest(starts, starts[1:]))
    rows: list[list[str]] = []
    for line in lines:
        cells = [line[start:end].strip() for start, end in spans]
        if set(line) <= {"=", " "}:
            continue
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [f"{before} {more}".strip() for before, more in zip(rows[-1], cells, strict=True)]
    has_head = sum(set(line) <= {"=", " "} for line in lines) == 3
    head, body = (tuple(rows[0]), rows[1:]) if has_head else (("",) * len(spans), rows)
    return _table(head, map(tuple, body))


_STUB = "../simulator/__init__.pyi"


def stub() -> str:
    """The stub of the package, with the readers of all kinds of files."""
    before, *_, after = re.split(
        r"^(?:from simulator\.importers\..*\n)+", (DOCS / _STUB).read_text(), flags=re.MULTILINE
    )
    homes = {"imported": "Imported", **{kind.module: kind.name for kind in KINDS.values()}}
    readers = (f"from simulator.importers.{module} import {name} as {name}\n" for module, name in sorted(homes.items()))
    return before + "".join(readers) + after


PAGES: Mapping[str, Callable[[], str]] = {
    _STUB: stub,
    "reference/commands.md": commands,
    "reference/columns.md": columns,
    "reference/policies.md": policies,
    "reference/documents.md": documents,
    "reference/python.md": python,
    "reference/formats.md": formats,
}
"""Page -> what writes it."""


def notebooks(names: Iterable[str]) -> None:
    """Run the notebooks, all or some, and store what they print and draw in them, and in their pages."""
    import nbformat
    from nbclient import NotebookClient

    folder = DOCS.parent / "notebooks"
    for path in [folder / f"{name}.ipynb" for name in names] or sorted(folder.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        about = deepcopy(notebook.metadata)
        NotebookClient(notebook, timeout=1800).execute()
        notebook.metadata = about
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # when it ran
            for output in cell.get("outputs", []):
                output.get("data", {}).update(_small(output.get("data", {})))
        nbformat.write(notebook, path)
        for file, content in page(notebook, path.stem).items():
            (DOCS / "notebooks" / file).parent.mkdir(exist_ok=True)
            (DOCS / "notebooks" / file).write_bytes(content)


def _small(data: Mapping[str, Any]) -> dict[str, str]:
    """What an output shows, in fewer bytes: pictures in 64 colours, tables without their style."""
    from PIL import Image

    less = {}
    if "text/html" in data:
        less["text/html"] = re.sub(r"<style scoped>.*?</style>\n", "", data["text/html"], flags=re.DOTALL)
    if "image/png" in data:
        drawn, picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).convert("RGB"), io.BytesIO()
        drawn.quantize(64, dither=Image.Dither.NONE).save(picture, "png", optimize=True)
        less["image/png"] = base64.b64encode(picture.getvalue()).decode()
    return less


def page(notebook: Any, name: str) -> dict[str, bytes]:
    """The page of a notebook with the outputs that it stores, and its pictures: file -> content."""
    from nbconvert import MarkdownExporter

    places = {"output_files_dir": f"{name}_files", "unique_key": name}
    text, beside = MarkdownExporter().from_notebook_node(notebook, places)
    return {f"{name}.md": f"{text.rstrip()}\n".encode(), **beside["outputs"]}


_RECORDED = DOCS.parent / "tests" / "claims" / "recorded.md"
_MEASURED = re.compile(r"<!-- measured by: (.+?) -->\n.*?\n\n```text\n.*?```\n", re.DOTALL)


def evidence(names: Iterable[str]) -> None:
    """Run what the pages of evidence show, of all or of some, and write what it prints, with the day."""
    pages = {page.stem: page for page in (*sorted((DOCS / "evidence").glob("*.md")), _RECORDED)}
    for page in [pages[name] for name in names] or pages.values():
        text = page.read_text(encoding="utf-8")
        page.write_text(_MEASURED.sub(lambda found: _measured(found[1]), text), encoding="utf-8")


def _measured(line: str) -> str:
    where = {**os.environ, "PYTHONPATH": str(DOCS.parent)}
    done = subprocess.run(line.split(), cwd=DOCS.parent, env=where, check=False, capture_output=True, text=True)
    if done.returncode and "Traceback" in done.stderr:  # else a bar is missed, as the page then shows
        raise SystemExit(done.stderr)
    today = datetime.now(tz=UTC).date()
    return f"<!-- measured by: {line} -->\nMeasured on {today}:\n\n```text\n{done.stdout.strip()}\n```\n"


def main() -> None:
    """Write the pages, and the pictures if they are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", action="store_true", help="the pictures and the notebooks, too")
    parser.add_argument("--notebooks", nargs="+", metavar="NAME", help="these notebooks, too")
    parser.add_argument("--evidence", nargs="*", metavar="PAGE", help="measure, too: all pages of evidence, or these")
    asked = parser.parse_args()
    for page, text in PAGES.items():
        (DOCS / page).write_text(text(), encoding="utf-8")
    if asked.evidence is not None:
        evidence(asked.evidence)
    if asked.pictures:
        pictures.draw(DOCS / "images")
    if asked.pictures or asked.notebooks:
        notebooks(asked.notebooks or ())


if __name__ == "__main__":
    main()

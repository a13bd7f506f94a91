"""The house keeps its measure: budgets of code and files by room, and what holds for every file.

``python tests/house.py`` prints what is left and fails where a rule is broken; ``--lower`` brings budgets down to what
there is and 5 % more (``pyproject.toml``, ``tool.hosim.house``); ``--run`` counts what one row needs.
Code is counted in lines, without blanks, comments and docstrings.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

HOUSE = Path(__file__).parents[1] / "simulator"
SETTINGS = HOUSE.parent / "pyproject.toml"
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
VAGUE = {"at", "here", "known", "mine", "number", "one", "own", "said", "there", "told", "what"}
"""Local names that do not say what they hold."""
OF_ERRORS = {"found", "must"}
"""Local names that say what they hold only where they are parts of an error."""
SLACK = 1.05
"""Budget over what there is: room for an addition, so that only what is larger asks for a decision."""
SATELLITES = {"claims", "execute", "exporters", "importers", "serving"}
"""Rooms that stand on the others, which use none of them."""


class File(NamedTuple):
    """One file: module, room, syntax tree, counts of lines, and functions that break a rule."""

    module: str
    room: str
    tree: ast.Module
    lines: int
    code: int
    docs: int
    long: list[str]
    vague: list[str]


def read(path: Path) -> File:
    """Read a file and count its lines."""
    text, parts = path.read_text(encoding="utf-8"), path.relative_to(HOUSE).with_suffix("").parts
    tree = ast.parse(text)
    documented = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS))]
    functions = [node for node in documented if isinstance(node, FUNCTIONS)]
    told = [node.body[0] for node in documented if ast.get_docstring(node) is not None]
    docs = {line for node in told for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in NO_CODE]
    code = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - docs
    module, room = ".".join(parts).removesuffix(".__init__"), parts[0] if len(parts) > 1 else "simulator"
    long = [node.name for node in functions if len({*range(node.lineno, (node.end_lineno or 0) + 1)} - docs) > 50]
    vague = [f"{node.name}: {name}" for node in functions for name in sorted(vague_names(node))]
    return File(module, room, tree, text.count("\n"), len(code), len(docs), long, vague)


def read_compiled(path: Path) -> File:
    """Read a file of C++ and count its lines: they make a room of their own."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    code = sum(bool(line) and not line.startswith("//") for line in lines)
    return File(path.name, "compiled", ast.Module([], []), len(lines), code, 0, [], [])


def vague_names(function: ast.AST) -> set[str]:
    """Local names and parameters of a function that do not say what they hold."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    parameters = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    in_errors = {id(name) for node in ast.walk(function) if is_error(node) for name in ast.walk(node)}
    outside = {node.id for node in names if isinstance(node.ctx, ast.Load) and id(node) not in in_errors}
    return (stored | parameters) & VAGUE | stored & OF_ERRORS & outside


def is_error(node: ast.AST) -> bool:
    """Whether an error is made here."""
    callee = node.func if isinstance(node, ast.Call) else None
    name = callee.id if isinstance(callee, ast.Name) else getattr(callee, "attr", "")
    return (
        isinstance(node, ast.Raise)
        or name in {"insist", "require", "named_in", "broken"}
        or name.endswith(("Error", "_error"))
    )


def guesses(tree: ast.AST) -> set[str]:
    """Ends of columns' names by which units are guessed: a table hands over figures, which have units."""
    ends, cuts = {"_ns", "_bytes", "_fraction"}, {"endswith", "removesuffix"}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in cuts)
    return {node.value for call in calls for node in ast.walk(call) if isinstance(node, ast.Constant)} & ends


def circles(files: list[File]) -> list[list[str]]:
    """Modules of one room that import each other, directly or not, `TYPE_CHECKING` included."""
    rooms = {file.module: file.room for file in files if file.room != "simulator"}
    reached: dict[str, set[str]] = {}
    for file in files:
        nodes = [node for node in ast.walk(file.tree) if isinstance(node, ast.ImportFrom)]
        named = [((node.module or "").partition(".")[2], name.name) for node in nodes for name in node.names]
        modules = {inner if (inner := f"{origin}.{name}") in rooms else origin for origin, name in named}
        reached[file.module] = {module for module in modules if rooms.get(module) == file.room}
    for between in rooms:
        reached = {name: to | reached[between] if between in to else to for name, to in reached.items()}
    knots = {frozenset(n for n in modules if module in reached[n]) for module, modules in reached.items()}
    return sorted(sorted(knot) for knot in knots if len(knot) > 1)


def twice(files: list[File]) -> list[str]:
    """Names of files, or of classes, that several of them have; a room is no file."""
    names = [file.module.split(".")[-1] for file in files if file.module != file.room]
    names += [node.name for file in files for node in ast.walk(file.tree) if isinstance(node, ast.ClassDef)]
    return sorted(name for name, times in Counter(names).items() if times > 1)


def public_names(files: list[File]) -> list[str]:
    """Functions, classes and constants of modules that others may use."""
    nodes = [node for file in files for node in file.tree.body]
    targets = {ast.Assign: lambda node: node.targets, ast.AnnAssign: lambda node: [node.target]}
    stored = [of for node in nodes for of in targets.get(type(node), lambda _: [])(node) if isinstance(of, ast.Name)]
    names = [node.name for node in nodes if isinstance(node, (ast.ClassDef, *FUNCTIONS))] + [of.id for of in stored]
    return [name for name in names if not name.startswith("_")]


def used_once(files: list[File]) -> float:
    """Share of functions whose name stands a single time in the house besides where they are made."""
    nodes = [node for file in files for node in ast.walk(file.tree)]
    names = [node.name for node in nodes if isinstance(node, FUNCTIONS)]
    uses = Counter(getattr(node, "id", getattr(node, "attr", "")) for node in nodes)
    return sum(uses[name] == 1 and not name.startswith("__") for name in names) / max(1, len(names))


def counts(files: list[File]) -> dict[str, list[int]]:
    """By room, its lines of code and its files."""
    rooms = sorted({file.room for file in files})
    return {room: [sum(f.code for f in files if f.room == room), sum(f.room == room for f in files)] for room in rooms}


def faults(files: list[File], allowed: dict[str, Any]) -> Iterator[str]:
    """Print what each room has left, and say what is wrong."""
    for file in files:
        if file.lines > 400:
            yield f"{file.module}: a file has at most 400 lines, found {file.lines}"
        yield from (f"{file.module}, {name}: a function has at most 50 lines" for name in file.long)
        yield from (f"{file.module}, {name}: a local name says what it holds; find another" for name in file.vague)
        for end in sorted(guesses(file.tree)) if file.module != "metrics.figures" else ():
            yield f"{file.module}, {end}: a column's unit is its figure's; ask that, or hand over one"
    rooms, budgets = counts(files), {room: [0, 0] for room in counts(files)} | allowed["rooms"]
    core = [room for room in rooms if room not in SATELLITES]
    for table in (rooms, budgets):
        table["the core"] = [sum(column) for column in zip(*map(table.__getitem__, core), strict=True)]
    print(f"{'room':12}{'code':>8}{'budget':>8}{'left':>7}{'files':>8}{'budget':>8}{'left':>7}")
    for room, (code, number) in rooms.items():
        most, most_files = budgets[room]
        print(f"{room:12}{code:8,}{most:8,}{most - code:7,}{number:8}{most_files:8}{most_files - number:7}")
        if code > most or number > most_files:
            yield f"{room}: a room keeps to {most:,} lines of code in {most_files} files, found {code:,} in {number}"
    python = [file for file in files if file.room != "compiled"]
    share, knots, names = sum(f.docs for f in python) / sum(f.lines for f in python), circles(python), twice(python)
    print(f"docstrings: {share:.1%} of the text; names twice: {len(names)}; circles: {len(knots)}")
    if not 0.25 <= share <= 0.35:
        yield f"docstrings: they are 25 to 35 % of the text, found {share:.1%}"
    yield from sprawl(python, allowed)
    for name in set(names) - set(allowed["twice"]):
        yield f"{name}: a file, or a class, has a name of its own, found it several times; find another"
    for knot in knots:
        if not any(set(knot) <= set(known) for known in allowed["circles"]):
            yield f"{', '.join(knot)}: imports go one way inside a room, found a circle; cut it"


def sprawl(files: list[File], allowed: dict[str, Any]) -> Iterator[str]:
    """Print how many names others may use and how many functions only one place uses, and say if these are more."""
    public, share = len(public_names(files)), round(used_once(files), 3)
    print(f"public names: {public:,}; functions used once: {share:.1%}")
    if public > allowed["public"]:
        yield f"at most {allowed['public']:,} names are public, found {public:,}; begin those of one file with _"
    if share > allowed["used_once"]:
        yield f"at most {allowed['used_once']:.1%} of functions are used once, found {share:.1%}; merge some"


def lower(files: list[File], allowed: dict[str, Any]) -> None:
    """Bring what is allowed down to what there is and its slack, in the last part of the settings; raise nothing."""
    today, known = counts(files), allowed["rooms"]
    names = [name for name in twice([f for f in files if f.room != "compiled"]) if name in allowed["twice"]]
    knots = [knot for knot in circles(files) if any(set(knot) <= set(one) for one in allowed["circles"])]
    before = SETTINGS.read_text(encoding="utf-8").partition("[tool.hosim.house]")[0]
    listed = "\n".join(f"    {knot!r},".replace("'", '"') for knot in knots)
    python = [file for file in files if file.room != "compiled"]
    public = min(int(len(public_names(python)) * SLACK), allowed["public"])
    once = min(round(used_once(python), 3), allowed["used_once"])
    lines = ["[tool.hosim.house]", f"public = {public} # names", f"used_once = {once} # share of functions"]
    lines += [f"twice = {names!r}".replace("'", '"'), f"circles = [\n{listed}\n]"]
    rooms = {
        room: [min(round(code * SLACK), known[room][0]), min(number + 1, known[room][1])]
        for room, (code, number) in today.items()
        if room in known
    }
    lines += [
        "",
        "[tool.hosim.house.rooms] # lines of code, files",
        *(f"{room} = {most}" for room, most in rooms.items()),
    ]
    SETTINGS.write_text(before + "\n".join(lines) + "\n", encoding="utf-8")


def run(scenario: str = "tiny_train_t4", engine: str = "auto") -> tuple[int, int, int]:
    """Count what a row needs in which nothing moves: its functions, their files, and how many deep they call."""
    sys.path.insert(0, str(HOUSE.parent))
    import simulator as hosim

    seen, now, most, root = set[CodeType](), 0, 0, str(HOUSE)

    def watch(frame: Any, event: str, _: object) -> None:
        nonlocal now, most
        if event in ("call", "return") and is_function(frame.f_code):
            seen.add(frame.f_code)
            now += 1 if event == "call" else -1
            most = max(most, now)

    @cache
    def is_function(code: CodeType) -> bool:  # which comprehensions are depends on the version of Python
        return code.co_filename.startswith(root) and not code.co_name.startswith("<")

    hosim.run(scenario, policies=["resident"], engine=engine)  # imports all that it needs
    sys.setprofile(watch)
    hosim.run(scenario, policies=["resident"], engine=engine)
    sys.setprofile(None)
    functions = {(code.co_filename, code.co_qualname) for code in seen}
    return len(functions), len({file for file, _ in functions}), most


def main(task: str = "", *names: str) -> int:
    """Check the house; or lower its budgets; or count what a row needs."""
    files = [read(path) for path in sorted(HOUSE.rglob("*.py"))]
    files += [read_compiled(path) for path in sorted(HOUSE.rglob("*.[ch]pp"))]
    allowed = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))["tool"]["hosim"]["house"]
    if task == "--run":
        print("a resident row: {:,} functions in {} files, {} deep".format(*run(*names)))
    elif task == "--lower":
        lower(files, allowed)
    found = [] if task else list(faults(files, allowed))
    print("\n".join(found), end="\n" * bool(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

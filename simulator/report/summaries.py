"""What ``summary.json`` says, written and read: all that a program needs to know of a result, in one file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from simulator.document import Line
from simulator.errors import CONTROLS, ConfigError
from simulator.inputs import whole

SUMMARY = "hosim-summary/1"
"""The schema of ``summary.json``."""
_NAME = "summary.json"
_OURS = "a result is a folder that `hosim run --out` wrote, or its summary.json"


class _Lax(BaseModel):
    """Of what is read, these keys have these types; there may be others."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Row(_Lax):
    policy: Line
    status: Line
    __pydantic_extra__: dict[str, int | float | str | None]


class _Verdict(_Lax):
    row: Line
    column: Line
    must: Line
    holds: bool


class _Stall(_Lax):
    cause: Line
    on: Line
    ns: int


class _Input(_Lax):
    kind: Line
    name: Line
    sha256: Line


class _Provenance(_Lax):
    inputs: list[_Input]
    set: dict[str, Any]


class _Said(_Lax):
    rows: list[_Row]
    expectations: list[_Verdict]
    stalls: dict[str, list[_Stall]] = {}
    provenance: _Provenance


def content(rows: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> dict[str, Any]:
    """Say what a result is: its rows, each with every column, and more.

    Parameters
    ----------
    rows
        The summaries.
    more
        Further entries: provenance, sentences, expectations.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return {"schema": SUMMARY, "rows": [{column: row.get(column) for column in columns} for row in rows], **more}


def dumped(said: Mapping[str, Any]) -> bytes:
    """Write what is said as JSON, indented, with a line's end."""
    return orjson.dumps(said, option=orjson.OPT_INDENT_2) + b"\n"


def read(result: Path) -> dict[str, Any]:
    """Read what a run said of itself.

    Parameters
    ----------
    result
        A folder that ``hosim run --out`` wrote, or the ``summary.json`` in it, which alone will do.

    Raises
    ------
    ConfigError
        If it is no such thing, was not written to its end, has another version of the schema, or was changed.
    """
    path = result / _NAME if result.is_dir() else result
    said = _parsed(result, path)
    found = said.get("schema") if isinstance(said, dict) else None
    if found != SUMMARY:
        do = "run again with this version of hosim, or compare with the one that wrote it"
        raise ConfigError(str(path), f"the schema is {SUMMARY}", repr(found) if found else "none", do)
    if "expectations" not in said or "provenance" not in said:
        raise ConfigError(str(path), _OURS, "what another command wrote", "name what `hosim run --out` wrote")
    if odd := next(filter(CONTROLS.search, _texts(said)), None):
        must, do = "a summary has no control characters", "run again: the file was changed after hosim wrote it"
        raise ConfigError(str(path), must, repr(odd), do)
    _check(path, said)
    return dict(said)


def _texts(said: Any) -> Iterator[str]:
    """All texts in what is said, also keys."""
    if isinstance(said, str):
        yield said
    elif isinstance(said, Mapping | list):
        for item in said:
            yield from _texts(item)
        if isinstance(said, Mapping):
            yield from _texts(list(said.values()))


def _parsed(result: Path, path: Path) -> Any:
    do = "name another folder, or run `hosim run SCENARIO --out` again"
    try:
        return orjson.loads(whole(path))
    except ConfigError as error:
        missing = result.is_dir() and not path.exists()
        found = f"a folder without {_NAME}, which is written last" if missing else error.found
        raise ConfigError(str(result), _OURS, found, do) from None
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}", "a summary is JSON to its end", error.msg, do) from None


def _check(path: Path, said: Any) -> None:
    """Refuse what hosim has not written so."""
    do = "run again: the file was changed after hosim wrote it"
    try:
        _Said.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        at, found = ", ".join(map(str, first["loc"])), first["msg"].lower()
        raise ConfigError(f"{path}, {at}", f"a summary is as {SUMMARY} says", found, do) from None
    labels = Counter(row["policy"] for row in said["rows"])
    for row in said["rows"]:
        where, filled = f"{path}, row {row['policy']!r}", sum(ns for _, ns in spent(row))
        if labels[row["policy"]] > 1:
            raise ConfigError(where, "each row has a label of its own", f"{labels[row['policy']]} such rows", do)
        if row["status"] == "ok" and row.get("step_ns") != filled:
            must = "compute, recompute and waits fill the step of a row"
            raise ConfigError(where, must, f"{filled:,} of {row.get('step_ns')} ns", do)
        if not _is_placed(row, said.get("stalls", {}).get(row["policy"])):
            raise ConfigError(where, "what it waited for by place is what it waited for", "another sum", do)


def _is_placed(row: Mapping[str, Any], stalls: Sequence[Mapping[str, Any]] | None) -> bool:
    """Whether the stalls by place, if they are told, sum to the waits of the row."""
    placed: Counter[str] = Counter()
    for stall in stalls or ():
        placed[f"wait_{stall['cause']}_ns"] += stall["ns"]
    return stalls is None or placed == Counter({column: ns for column, ns in spent(row) if column.startswith("wait_")})


def spent(row: Mapping[str, Any]) -> list[tuple[str, int]]:
    """On what the step of a row was spent [ns], by column: they sum to the step.

    Parameters
    ----------
    row
        Of a summary; nothing is spent where none ran to its end.
    """
    waits = (column for column in row if column.startswith("wait_") and column.endswith("_ns"))
    return [(column, row.get(column) or 0) for column in ("compute_ns", "recompute_ns", *waits, "drain_ns")]

"""Digests of what happens: of each row of each shipped scenario, and of 10,000 drawn cases, held in one file.

Tests in `tests/golden` compare them. Where a number is meant to move, `python tests/digests.py --renew` renews the file
and prints which rows and cases moved, and by how much their steps; that change is a commit of its own.

Only `rows_of` and `figures_of` know how a result holds what happened.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import digest_cases
import numpy as np
from digest_cases import CASES, GROUP, KINDS, ROWS
from stated import SCENARIOS, is_served

import simulator as hosim
from simulator.graph import Graph
from simulator.plan import Plan
from simulator.run.results import Results
from simulator.trace import Table

FILE = Path(__file__).parent / "golden" / "digests.json"
PARTS = ("spans", "waits", "residencies", "issued", "figures")
"""What of a row is digested, each part on its own."""

SERVED = {
    "requests": ("request", "arrival_ns", "admitted_ns", "first_token_ns", "end_ns", "prompt_tokens", "output_tokens"),
    "iterations": ("iteration", "start_ns", "took_ns", "decoding", "waiting", "held_blocks", "stall_ns"),
}
"""The same of what is served: table and columns."""

SMALL = (
    "cosmos3_b300_blocks",
    "cosmos3_b300_shards",
    "llama3_8b_layer_scaling",
    "olmoe_a2000_dequantize",
    "olmoe_a2000_gemv",
    "tiny_train_910c",
    "torchtune_a100_activations",
    "vllm_h100_load",
    "vllm_h100_prefill",
)
"""Scenarios that take a moment."""

CHARACTERS = 2
"""Of the digest of each part of a case: one change in 4,096 looks like none, but hardly one of all that it changes."""

TABLES = {
    "spans": {
        "spans": (3, "rank issue kind item track channel issued_ns start_ns end_ns"),
        "rates": (2, "bus instance time_ns bytes_per_s"),
    },
    "waits": {"waits": (10, "rank stream start_ns end_ns op issue cause tensor on blocker")},
    "residencies": {
        "residencies": (2, "rank tier time_ns tensor delta_bytes"),
        "addresses": (2, "rank tier time_ns tensor offset_bytes delta_bytes"),
        "reserved": (2, "rank tier time_ns reserved_bytes largest_hole_bytes"),
        "compactions": (2, "rank tier asked_ns start_ns end_ns pages is_remap"),
    },
}
"""By part, tables of a trace with their columns; rows are sorted by the first so many of these.

Who was first within an instant counts where it decides a peak: in what is taken and freed in a tier of a rank.
"""

Columns = Mapping[str, "np.ndarray[Any, Any]"]
Parts = dict[str, str]


def rows_of(result: hosim.Result) -> dict[str, list[Columns]]:
    """What happened in a row, by part: tables of whole numbers; ids are positions in the graphs and in the machine."""
    trace = result.trace
    if trace is None:
        return {}
    found = {
        part: [_in_order(getattr(trace, name), columns.split(), keys) for name, (keys, columns) in tables.items()]
        for part, tables in TABLES.items()
    }
    found["issued"] = [_issued(result, rank) for rank, stands_in in enumerate(trace.stands_in) if rank == stands_in]
    return found


def _in_order(table: Table, columns: list[str], keys: int) -> Columns:
    """A table, sorted by the first so many of these columns; rows alike in them stay as they were written."""
    whole = table.whole()
    order = np.lexsort([whole[name] for name in reversed(columns[:keys])])
    return {name: whole[name][order] for name in columns}


def _issued(result: hosim.Result, rank: int) -> Columns:
    """What the host of a rank issued over all steps, and the homes with which its plan begins."""
    plan: Plan = result.plans[result.job.graph_of[rank]]
    columns = ("kind", "a", "b", "c")
    fixed, told = plan.fixed, result.trace.issued[rank].whole() if result.trace else {}
    steps = {
        name: np.tile(np.array(getattr(fixed, name), np.int64), plan.repeats) if fixed is not None else told[name]
        for name in columns
    }
    return {**steps, "home": np.array(plan.home), "starts_ns": np.array(plan.starts_ns)}


def figures_of(result: hosim.Result) -> dict[str, Any]:
    """What is counted of a row, and what bounds it."""
    names = ("status", "step_ns", "makespan_ns", "bound_ns", "least_peak_bytes")
    peaks = (f"peak_{tier}_bytes" for tier in result.hardware.tier_names)
    return {name: result.summary.get(name) for name in (*names, *peaks)}


def digest_of(result: hosim.Result) -> tuple[Parts, int | None]:
    """Digests of the parts of a row, and its step [ns]."""
    job, machine, figures = result.job, result.hardware, figures_of(result)
    names = [machine.tier_names, machine.link_names, [_names(graph) for graph in job.graphs], job.graph_of]
    stands_in = result.trace.stands_in if result.trace else ()
    tables = rows_of(result)
    found = {part: _digest((names, stands_in), tables.get(part, ())) for part in PARTS[:-1]}
    return {**found, "figures": _digest(figures)}, figures["step_ns"]


def _of_error(error: Exception) -> tuple[Parts, None]:
    """The same of a row that raises, as none should: of what kind its error is; the case moves once that is mended."""
    return dict.fromkeys(PARTS, _digest(type(error).__name__)), None


def _names(graph: Graph) -> list[list[str]]:
    return [[op.name for op in graph.ops], [tensor.name for tensor in graph.tensors]]


def _digest(head: Any, tables: Iterable[Columns] = ()) -> str:
    """Digest of something that JSON can hold, and of tables after it, in base 64."""
    sha = hashlib.sha256(json.dumps(head, ensure_ascii=False).encode())
    for table in tables:
        for name in sorted(table):
            sha.update(f"{name} {len(table[name])} ".encode() + np.ascontiguousarray(table[name], "<i8").tobytes())
    return base64.urlsafe_b64encode(sha.digest()).decode()


def of_scenario(name: str) -> dict[str, list[Any]]:
    """Run, or serve, a shipped scenario, and digest its rows."""
    return of_rows(hosim.serve(name) if is_served(name) else hosim.run(name))


def of_rows(results: Results | hosim.Serving) -> dict[str, list[Any]]:
    """By row: its step, or the end of what is served [ns], and a digest of each part."""
    if isinstance(results, hosim.Serving):
        return _of_served(results)
    found = {}
    for row in results.values():
        parts, step_ns = digest_of(row)
        found[row.label] = [step_ns, *(parts[part][:8] for part in PARTS)]
    return found


def _of_served(serving: hosim.Serving) -> dict[str, list[Any]]:
    found = {}
    for row in serving.rows:
        label, digests = row["policy"], []
        for name, columns in SERVED.items():
            table = getattr(serving, name)
            mine = table[table["policy"] == label]
            columns_of = {column: mine[column].to_numpy("int64", na_value=-1) for column in columns}
            digests.append(_digest(label, [columns_of])[:8])
        ends = serving.requests.loc[serving.requests["policy"] == label, "end_ns"]
        found[label] = [int(ends.max()) if ends.notna().any() else None, *digests]
    return found


def of_group(number: int) -> dict[str, str]:
    """Digests and steps of the cases of a group, one after another."""
    digests, steps = [], []
    with TemporaryDirectory() as folder:
        for scenario in range(number * KINDS, (number + 1) * KINDS):
            for row in digest_cases.run(scenario, Path(folder)):
                parts, step_ns = _of_error(row) if isinstance(row, Exception) else digest_of(row)
                digests.append("".join(parts[part][:CHARACTERS] for part in PARTS))
                steps.append("" if step_ns is None else str(step_ns))
    assert len(digests) == GROUP
    return {"digests": "".join(digests), "steps": ",".join(steps)}


def moved_rows(name: str, known: Mapping[str, list[Any]], new: Mapping[str, list[Any]]) -> list[str]:
    """Say of each row of a scenario that moved, by how much and in which parts."""
    said = []
    for label in dict.fromkeys((*known, *new)):
        before, after = known.get(label), new.get(label)
        if before is None or after is None:
            said.append(f"{name}, {label}: {'new' if before is None else 'gone'}")
        elif before != after:
            parts = PARTS if len(after) > len(SERVED) + 1 else tuple(SERVED)
            differ = [part for part, *both in zip(parts, before[1:], after[1:], strict=True) if both[0] != both[1]]
            said.append(f"{name}, {label}: {_step(before[0], after[0])}; {', '.join(differ)}")
    return said


def moved_cases(number: int, known: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Say of each case of a group that moved, by how much and in which parts."""
    width, said = CHARACTERS * len(PARTS), []
    steps = [group["steps"].split(",") for group in (known, new)]
    for case in range(GROUP):
        before, after = (group["digests"][case * width : (case + 1) * width] for group in (known, new))
        if before != after:
            cuts = range(0, width, CHARACTERS)
            differ = [
                part for part, i in zip(PARTS, cuts, strict=True) if before[i:][:CHARACTERS] != after[i:][:CHARACTERS]
            ]
            scenario, row = divmod(number * GROUP + case, ROWS)
            step = _step(*(int(told[case]) if told[case] else None for told in steps))
            said.append(f"case {number * GROUP + case} (scenario {scenario}, row {row}): {step}; {', '.join(differ)}")
    return said


def _step(before: int | None, after: int | None) -> str:
    if before == after:
        return "the same step"
    change = f" ({after / before - 1:+.2%})" if before and after else ""
    return f"step {'none' if before is None else before} -> {'none' if after is None else after} ns{change}"


def read() -> dict[str, Any]:
    """The digests that are kept."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def write(kept: Mapping[str, Any]) -> None:
    """Keep digests: one line for each row and for each group, so that a change reads like one."""
    rows = [
        f"  {json.dumps(name)}: {{\n    " + ",\n    ".join(starmap(_line, of.items())) + "\n  }"
        for name, of in sorted(kept["scenarios"].items())
    ]
    groups = [f"  {json.dumps(group)}" for group in kept["groups"]]
    text = '{\n"scenarios": {\n' + ",\n".join(rows) + '\n},\n"groups": [\n' + ",\n".join(groups) + "\n]\n}\n"
    assert json.loads(text) == kept
    FILE.write_text(text, encoding="utf-8")


def _line(label: str, row: list[Any]) -> str:
    return f"{json.dumps(label)}: {json.dumps(row)}"


def renew(names: list[str], *, cases: bool) -> None:
    """Digest anew, print what moved, and keep the digests."""
    kept = read() if FILE.exists() else {"scenarios": {}, "groups": []}
    known, groups, count = kept["scenarios"], kept["groups"], Counter[str]()
    for name in names:
        new = of_scenario(name)
        _say(moved_rows(name, known.get(name, {}), new), count)
        known[name] = new
        write(kept)
    for name in sorted(set(known) - set(SCENARIOS)):
        _say(moved_rows(name, known.pop(name), {}), count)
    for number in range(CASES // GROUP if cases else 0):
        new_group = of_group(number)
        if number < len(groups):
            _say(moved_cases(number, groups[number], new_group), count)
        groups[number : number + 1] = [new_group]
        write(kept)
    print(f"{count.total():,} moved, by what did: {dict(count.most_common())}")
    write(kept)


def _say(moved: list[str], count: Counter[str]) -> None:
    for line in moved:
        print(line, flush=True)
        count[line.rpartition("; ")[2]] += 1


def main() -> None:
    """Renew what is kept, or some of it."""
    parser = argparse.ArgumentParser(description="renew the digests of what happens")
    parser.add_argument("--renew", action="store_true", required=True, help="say that this is meant")
    parser.add_argument("names", nargs="*", help="only these scenarios, and `cases`; default: all")
    names = parser.parse_args().names
    if not Path(hosim.__file__).is_relative_to(FILE.parents[2]):
        parser.error(f"digests are of this checkout, found {hosim.__file__}; run with PYTHONPATH=.")
    every = sorted(SCENARIOS)
    renew([name for name in every if not names or name in names], cases=not names or "cases" in names)


if __name__ == "__main__":
    sys.exit(main())

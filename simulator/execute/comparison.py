"""Runs one step under several policies on this machine, and puts what was predicted beside what was measured."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import orjson
import torch

from simulator.errors import ConfigError, HosimError, insist
from simulator.execute.accelerator import Processor
from simulator.execute.measured import measured_row
from simulator.execute.offloaded import Executed, Offloaded
from simulator.execute.unplanned import ROWS, run_unplanned
from simulator.formats import graph_jsonl
from simulator.importers.torch_machine import tensors
from simulator.inputs import digest
from simulator.metrics.rows import by_place, with_measured
from simulator.report.files import figures_of, folder_names, write_csv, write_summary, write_texts
from simulator.report.tables import Column
from simulator.report.views import Section, SweepView
from simulator.report.words import quantity
from simulator.run.provenance import as_run, provenance
from simulator.run.results import Result, writing
from simulator.run.row import relate
from simulator.run.sweep import Progress
from simulator.scenario import PolicyChoice
from simulator.trace import Trace
from simulator.units import counted, human

_TIMED = 5
"""Steps under a plan whose ops are timed for the last plan: two that are disturbed leave their medians as they are."""
_FIRST = _TIMED + 3
"""Calls before what is measured: two or three on demand, and those that are timed."""
_PREDICTED = ("step_ns", "stall_ns", "peak_bytes", "out_bytes", "in_bytes")
_IN_USE = {"measured_rss_bytes": "RSS", "measured_allotted_bytes": "allotted"}
_KEYS = ("policy", "why", "steps", *_PREDICTED, *(f"measured_{key}" for key in _PREDICTED), *_IN_USE,
         "least_ns", "most_ns", "is_within", "is_equal")  # fmt: skip
_CLEAR = Path("/proc/self/clear_refs")
_CAN_FORGET = os.access(_CLEAR, os.W_OK)
"""Whether the system tells how much memory was resident at most, from some moment on."""
_ALLOCATOR_COUNTS = hasattr(torch.accelerator, "max_memory_allocated")  # from PyTorch 2.9 on


@dataclass(frozen=True, eq=False)
class Comparison:
    """Predicted and measured steps of several policies.

    Attributes
    ----------
    name, budget_bytes
        Name of the step, and room of the compute tier [B].
    rows
        For each policy: ``policy``, ``step_ns``, ``stall_ns``, ``peak_bytes``, ``out_bytes``, ``in_bytes`` as
        predicted (None without a plan); the same with ``measured_`` before them, of which times are medians;
        ``measured_rss_bytes``, resident memory at most, beyond what the process holds once the step is gone (None
        where the system does not say); ``measured_allotted_bytes``, the same of an accelerator's allocator (None on the
        CPU, and where PyTorch does not say); ``least_ns`` and ``most_ns``, the shortest and the longest step;
        ``is_within``, whether the measured peak is within the budget; ``is_equal``, whether each loss is that of the
        first row to the last bit. A row that cannot run has ``why``, and None for all else.
    results
        By policy, the row that was predicted, with that of the median step as its ``measured``: `Result.timeline` draws
        one under the other.
    """

    name: str
    budget_bytes: float
    rows: tuple[Mapping[str, Any], ...]
    results: Mapping[str, Result]

    @property
    def view(self) -> SweepView:
        """The table, and a sentence."""

        def column(heading: str, key: str, unit: str) -> Column:
            return Column(heading, [quantity(row[key], unit) for row in self.rows], left=False)

        least, most = (column("", key, "ns").cells for key in ("least_ns", "most_ns"))
        ends = [f"{first} to {last}" if first != "-" else "-" for first, last in zip(least, most, strict=True)]
        columns = [
            Column("policy", [row["policy"] for row in self.rows]),
            column("step predicted", "step_ns", "ns"),
            column("measured", "measured_step_ns", "ns"),
            Column("from to", ends, left=False),
            column("stall predicted", "stall_ns", "ns"),
            column("measured", "measured_stall_ns", "ns"),
            column("peak predicted", "peak_bytes", "B"),
            column("measured", "measured_peak_bytes", "B"),
            Column("within", [{None: "-", True: "yes", False: "no"}[row["is_within"]] for row in self.rows]),
            *(column(name, key, "B") for key, name in _IN_USE.items() if any(row[key] for row in self.rows)),
            column("moved out", "measured_out_bytes", "B"),
            column("moved in", "measured_in_bytes", "B"),
        ]
        ran = [row for row in self.rows if not row["why"]]
        others = [row["policy"] for row in ran if not row["is_equal"]]
        same = "All losses are equal to the last bit." if not others else f"Other losses: {', '.join(others)}."
        times_run = counted(ran[0]["steps"], "step")
        sentence = f"{same} Times are medians of {times_run}, within {human(self.budget_bytes, 'B')}."
        failed = [f"{row['policy']} cannot run: {row['why']}." for row in self.rows if row["why"]]
        return SweepView(self.name, [Section(columns=columns)], [sentence, *failed])

    def __str__(self) -> str:
        return str(self.view)

    def _repr_html_(self) -> str:
        return self.view._repr_html_()

    def write(self, out: str | Path, command: str = "") -> None:
        """Write what `hosim run --out` writes, of predicted and measured steps, and the table as ``compared.csv``.

        In the folder of each policy lies its scenario, too, which predicts the same again.

        Parameters
        ----------
        out, command
            As for `simulator.run.results.Results.write`.

        Raises
        ------
        ConfigError
            If no row has a plan, or it cannot be written.
        """
        rows, labels = list(self.results.values()), [*self.results]
        must, do = "some row has a plan, whose timeline can be shown", "add for example static"
        insist(rows, f"results of {self.name}", must, "none", do)
        shown = cast(Sequence[Result], with_measured(rows))
        loaded = rows[0].case.loaded
        scenario = loaded.scenario.model_copy(update={"name": self.name})
        more: dict[str, Any] = {"sentences": self.view.sentences, "expectations": [], "figures": figures_of(rows)}
        more["stalls"] = {row.label: by_place(row) for row in shown}
        with writing(out, labels) as pages:
            sections = [pages.add(row) | {"row": row} for row in rows]
            for row, name in zip(rows, folder_names(labels).values(), strict=True):
                folder, digests = pages.folder / name, row.case.loaded.sha256
                texts = as_run(row.case.loaded, {row.label: row}, is_changed=False)
                write_texts(folder, texts)
                graph_jsonl.write(row.graph, folder / "graph.jsonl")
                digests.update({file.partition(".")[0]: digest(folder / file) for file in (*texts, "graph.jsonl")})
            more["provenance"] = provenance(loaded, labels)
            write_csv(pages.folder / "compared.csv", self.rows)
            pages.report(scenario, more, sections, [(self.view._replace(sentences=[]), None)], command)
            write_summary(pages.folder, [row.summary for row in shown], more)

    def json(self) -> str:
        """Return the rows as JSON."""
        rows = {"name": self.name, "budget_bytes": self.budget_bytes, "rows": self.rows}
        return orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


_Make = Callable[[PolicyChoice], tuple[Offloaded, Sequence[Any], Mapping[str, Any]]]


class _Running:
    """A policy's step, which has turns with others; between them, all that it holds lies below.

    Parameters
    ----------
    make, choice
        What makes the step, as for `compare`, and its row.

    Attributes
    ----------
    step, losses
        It, offloaded; what it has returned, turn by turn.
    most_bytes
        What was in use at most in a turn that was measured, beyond what was before it, as `_in_use` tells it [B].
    error
        Why it runs no more; None if it runs.
    """

    def __init__(self, make: _Make, choice: PolicyChoice) -> None:
        torch.manual_seed(0)
        self.step, args, kwargs = make(choice)
        self.step.keep_traces()
        self.step.timed = _TIMED
        self._is_planned = choice.row not in ROWS
        run = self.step if self._is_planned else partial(run_unplanned, self.step, choice.row)
        self._call, self._come_back = partial(run, *args, **kwargs), cast(Callable[[], Any], int)
        self.losses, self.most_bytes = list[torch.Tensor](), [0] * len(_IN_USE)
        self.error: HosimError | None = None

    def turn(self, turn: int) -> None:
        """Run the step once, unless it failed before."""
        try:
            if self.error is None:
                torch.manual_seed(turn)  # each row draws the same
                self._run(is_measured=turn >= _FIRST)
        except HosimError as error:  # is this row's result: others stand
            self.error = error
            self.step.close()

    def _run(self, *, is_measured: bool) -> None:
        before = _in_use(self.step.device) if is_measured else None
        self._come_back()
        _forget_most(self.step.device)
        self.losses += [tensor.detach().clone() for tensor in tensors([self._call()])]
        if before:
            more = map(int.__sub__, _in_use(self.step.device, most=True), before)
            self.most_bytes = [*map(max, self.most_bytes, more)]
        self._come_back = self.step.make_way()

    def row(self, name: str) -> dict[str, Any]:
        """Return its row of the table."""
        row: dict[str, Any] = dict.fromkeys(_KEYS) | {"policy": self.step.row}
        if self._is_planned and not (self.error or self.step.predicted):
            must, do = "a step runs under its plan", "run it alone with strict=True, to see why it does not"
            self.error = ConfigError(name, must, "no two calls alike", do)
        if self.error:
            return row | {"why": str(self.error)}
        row |= _predicted(self.step) | _measured(self.step.steps[_FIRST:])
        return row | {"is_within": row["measured_peak_bytes"] <= self.step.budget_bytes}

    def result(self) -> Result | None:
        """Return the row that was predicted, with the median step beside it; None without a plan."""
        predicted = None if self.error else self.step.predicted
        if predicted is None:
            return None
        executed = sorted(self.step.steps[_FIRST:], key=lambda step: step.step_s)
        middle = executed[(len(executed) - 1) // 2]
        measured = measured_row(predicted, cast(Trace, middle.trace), round(middle.step_s * 1e9))
        return replace(predicted, measured=measured)


def compare(name: str, make: _Make, choices: Sequence[PolicyChoice], steps: int, tell: Progress) -> Comparison:
    """Run some steps under each policy, in turns: what else the machine does meets all of them alike.

    Parameters
    ----------
    name
        Name of the step.
    make
        Called with a row, makes the step anew, and returns it offloaded, with its inputs.
    choices, steps
        The rows; how many steps of each are measured.
    tell
        Called with the progress.
    """
    running, most = list[_Running](), (_FIRST + steps) * len(choices)
    try:
        for done, (turn, place) in enumerate(product(range(_FIRST + steps), range(len(choices)))):
            tell("steps", done, most)
            if turn == 0:
                running.append(_Running(make, choices[place]))
            running[place].turn(turn)
        return _compared(name, running)
    finally:
        for left in running:
            left.step.close()


def _compared(name: str, running: list[_Running]) -> Comparison:
    """Put steps that have had their turns beside each other, and let go of one after the other."""
    device, budget_bytes = running[0].step.device, running[0].step.budget_bytes
    rows, results, first, errors = list[dict[str, Any]](), dict[str, Result](), list[torch.Tensor](), list[HosimError]()
    while running:
        ran, before = running[0], _in_use(device)
        rows.append(ran.row(name))
        if ran.error:
            errors.append(ran.error)
        else:
            first, most_bytes = first or ran.losses, ran.most_bytes
            rows[-1]["is_equal"] = len(first) == len(ran.losses) and all(map(_is_same, first, ran.losses))
            if (result := ran.result()) is not None:
                results[result.label] = result
        ran.step.close()
        del running[0], ran
        if not rows[-1]["why"]:  # what did not make way between turns was in use, too
            kept = map(int.__sub__, before, _in_use(device))
            rows[-1] |= {key: most + left or None for key, most, left in zip(_IN_USE, most_bytes, kept, strict=True)}
    if len(errors) == len(rows):
        raise errors[0]
    relate([*results.values()])  # each was planned alone, with the times of its own ops
    relate([cast(Result, row.measured) for row in results.values()])
    return Comparison(name, budget_bytes, tuple(rows), results)


def _is_same(loss: torch.Tensor, expected: torch.Tensor) -> bool:
    """Tell whether tensors have the same bytes: a loss that is no number equals itself."""
    return bool(torch.equal(*(tensor.flatten().contiguous().view(torch.uint8) for tensor in (loss, expected))))


def _predicted(step: Offloaded) -> dict[str, Any]:
    """Return what was predicted; of a step without a plan, nothing."""
    result = step.predicted
    if result is None:
        return {}
    peak = f"peak_{result.hardware.compute_tier}_bytes"
    columns = ("step_ns", "stall_ns", peak, "moved_d2h_bytes", "moved_h2d_bytes")
    figures = dict(zip(_PREDICTED, map(result.summary.__getitem__, columns), strict=True))
    return {"policy": result.label} | figures | {"peak_bytes": figures["peak_bytes"] + step.beside_bytes}


def _measured(executed: Sequence[Executed]) -> dict[str, Any]:
    """Return what was measured."""
    took_ns = sorted(round(step.step_s * 1e9) for step in executed)
    return {
        "steps": len(executed),
        "measured_step_ns": statistics.median_low(took_ns),
        "least_ns": took_ns[0],
        "most_ns": took_ns[-1],
        "measured_stall_ns": statistics.median_low(round(step.stall_s * 1e9) for step in executed),
        "measured_peak_bytes": max(step.peak_bytes for step in executed),
        "measured_out_bytes": executed[-1].out_bytes,
        "measured_in_bytes": executed[-1].in_bytes,
    }


def _forget_most(device: Processor) -> None:
    """Count anew how much memory was in use at most: of the process, and as an accelerator's allocator counts it."""
    if _CAN_FORGET:
        _CLEAR.write_text("5", encoding="ascii")
    if device.name != "cpu" and _ALLOCATOR_COUNTS:
        torch.accelerator.reset_peak_memory_stats(device.name)


def _resident_bytes(field: str) -> int:
    """Return the anonymous resident memory of the process, now (``VmRSS``) or at most (``VmHWM``) [B].

    Linux keeps the most itself, so nothing is missed between samples, and no thread takes time from the step. Pages of
    files, such as PyTorch's own code, do not count; what the allocator holds back does.
    """
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.endswith(" kB")}
    return sizes[field] - sizes["RssFile"] - sizes["RssShmem"]


def _in_use(device: Processor, *, most: bool = False) -> tuple[int, int]:
    """Return what is resident, and what an accelerator's allocator has given out, now or at most [B]; 0 if unknown."""
    if not most:  # what the allocator holds back is given back first
        gc.collect()
        with suppress(AttributeError):  # of glibc; others do not hold it back
            ctypes.CDLL(None).malloc_trim(0)
    resident_bytes, allotted_bytes = 0, 0
    if _CAN_FORGET:
        resident_bytes = _resident_bytes("VmHWM" if most else "VmRSS")
    if device.name != "cpu" and _ALLOCATOR_COUNTS:
        counted_bytes = torch.accelerator.max_memory_allocated if most else torch.accelerator.memory_allocated
        allotted_bytes = counted_bytes(device.name)
    return resident_bytes, allotted_bytes

"""Runs one step under several policies on this machine, and puts what was predicted beside what was measured."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import orjson
import torch

from simulator.errors import insist
from simulator.execute.measured import measured_row
from simulator.execute.offloaded import Executed, Offloaded
from simulator.formats import graph_jsonl
from simulator.importers.torch_run import tensors
from simulator.report.files import folder_names, write_csv, write_summary, write_texts
from simulator.report.readings import by_place
from simulator.report.rows import quantity, with_measured
from simulator.report.tables import Column
from simulator.report.views import Section, SweepView
from simulator.run.provenance import as_run, provenance
from simulator.run.results import Result, writing
from simulator.run.sweep import Progress
from simulator.trace import Trace
from simulator.units import counted, human

_FIRST = 4
"""Calls before what is measured: two or three on demand, and one whose ops are timed for the last plan."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Predicted and measured steps of several policies.

    Attributes
    ----------
    name, budget_bytes
        Name of the step, and room of the compute tier [B].
    rows
        For each policy: ``policy``, ``step_ns``, ``stall_ns``, ``peak_bytes``, ``out_bytes``, ``in_bytes`` as
        predicted; the same with ``measured_`` before them, of which times are medians; ``least_ns`` and ``most_ns``,
        the shortest and the longest step; ``is_equal``, whether each loss is that of the first row to the last bit.
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

        def times(key: str) -> list[str]:
            return [quantity(row[key], "ns") for row in self.rows]

        def sizes(key: str) -> list[str]:
            return [human(row[key], "B") for row in self.rows]

        spread = [f"{quantity(row['least_ns'], 'ns')} to {quantity(row['most_ns'], 'ns')}" for row in self.rows]
        columns = [
            Column("policy", [row["policy"] for row in self.rows]),
            Column("step predicted", times("step_ns"), left=False),
            Column("measured", times("measured_step_ns"), left=False),
            Column("from to", spread, left=False),
            Column("stall predicted", times("stall_ns"), left=False),
            Column("measured", times("measured_stall_ns"), left=False),
            Column("peak predicted", sizes("peak_bytes"), left=False),
            Column("measured", sizes("measured_peak_bytes"), left=False),
            Column("moved out", sizes("measured_out_bytes"), left=False),
            Column("moved in", sizes("measured_in_bytes"), left=False),
        ]
        others = [row["policy"] for row in self.rows if not row["is_equal"]]
        same = "All losses are equal to the last bit." if not others else f"Other losses: {', '.join(others)}."
        times_run = counted(self.rows[0]["steps"], "step")
        sentence = f"{same} Times are medians of {times_run}, within {human(self.budget_bytes, 'B')}."
        return SweepView(self.name, [Section(columns=columns)], [sentence])

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
        """
        rows, labels = list(self.results.values()), [*self.results]
        shown = cast(Sequence[Result], with_measured(rows))
        loaded = rows[0].case.loaded
        scenario = loaded.scenario.model_copy(update={"name": self.name})
        more = {"sentences": self.view.sentences, "expectations": [], "provenance": provenance(loaded, labels)}
        more |= {"stalls": {row.label: by_place(row) for row in shown}}
        with writing(out, labels) as pages:
            sections = [pages.add(row) | {"row": row} for row in rows]
            for row, name in zip(rows, folder_names(labels).values(), strict=True):
                write_texts(pages.folder / name, as_run(row.case.loaded, {row.label: row}, is_changed=False))
                graph_jsonl.write(row.graph, pages.folder / name / "graph.jsonl")
            write_csv(pages.folder / "compared.csv", self.rows)
            pages.report(scenario, more, sections, [(self.view._replace(sentences=[]), None)], command)
            write_summary(pages.folder, [row.summary for row in shown], more)

    def json(self) -> str:
        """Return the rows as JSON."""
        rows = {"name": self.name, "budget_bytes": self.budget_bytes, "rows": self.rows}
        return orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def compare(
    name: str,
    make: Callable[[Any], tuple[Offloaded, Sequence[Any], Mapping[str, Any]]],
    policies: Sequence[Any],
    steps: int,
    tell: Progress,
) -> Comparison:
    """Run some steps under each policy, one policy after the other.

    Parameters
    ----------
    name
        Name of the step.
    make
        Called with a policy, makes the step anew, and returns it offloaded, with its inputs.
    policies, steps
        The policies; how many steps of each are measured.
    tell
        Called with the progress.
    """
    rows, results, first = list[dict[str, Any]](), dict[str, Result](), list[torch.Tensor]()
    for policy in policies:
        torch.manual_seed(0)
        step, args, kwargs = make(policy)
        with step:
            step.keep_traces()
            losses = list[torch.Tensor]()
            for done in range(_FIRST + steps):
                label = policy if isinstance(policy, str) else policy.get("label", policy["policy"])
                tell(f"{label}, steps", done, _FIRST + steps)
                losses += [tensor.detach().clone() for tensor in tensors([step(*args, **kwargs)])]
            first = first or losses
            is_equal = len(first) == len(losses) and all(map(torch.equal, map(_bits, first), map(_bits, losses)))
            must, do = "a step runs under its plan", "run it alone with strict=True, to see why it does not"
            insist(predicted := step.predicted, name, must, "no two calls alike", do)
            result, executed = cast(Result, predicted), step.steps[_FIRST:]
            rows.append(_row(result, executed, step.beside_bytes) | {"is_equal": is_equal})
            middle = sorted(executed, key=lambda step: step.step_s)[(len(executed) - 1) // 2]
            measured = measured_row(result, cast(Trace, middle.trace), round(middle.step_s * 1e9))
            results[result.label] = replace(result, measured=measured)
            budget_bytes = step.budget_bytes
        del step, args, kwargs
        gc.collect()
    return Comparison(name, budget_bytes, tuple(rows), results)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor: a loss that is no number equals itself."""
    return tensor.flatten().contiguous().view(torch.uint8)


def _row(result: Result, executed: Sequence[Executed], beside_bytes: int) -> dict[str, Any]:
    """Put what was predicted beside what was measured."""
    summary = result.summary
    took_ns = sorted(round(step.step_s * 1e9) for step in executed)
    return {
        "policy": result.label,
        "steps": len(executed),
        "step_ns": summary["step_ns"],
        "stall_ns": summary["stall_ns"],
        "peak_bytes": summary["peak_ram_bytes"] + beside_bytes,
        "out_bytes": summary["moved_d2h_bytes"],
        "in_bytes": summary["moved_h2d_bytes"],
        "measured_step_ns": statistics.median_low(took_ns),
        "least_ns": took_ns[0],
        "most_ns": took_ns[-1],
        "measured_stall_ns": statistics.median_low(round(step.stall_s * 1e9) for step in executed),
        "measured_peak_bytes": max(step.peak_bytes for step in executed),
        "measured_out_bytes": executed[-1].out_bytes,
        "measured_in_bytes": executed[-1].in_bytes,
    }

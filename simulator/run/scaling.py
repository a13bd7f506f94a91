"""The story of `hosim scaling`: the same step at each point of a curve, from a few ranks to many or over a field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator import catalog
from simulator.catalog import Loaded
from simulator.errors import ConfigError
from simulator.report import scaling as report
from simulator.report.scaling import POINT
from simulator.run import Progress, run_case
from simulator.run.case import Case, Policies, prepare
from simulator.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

    from simulator.report.drawing import Picture


@dataclass(frozen=True, eq=False)
class Scaling:
    """What came of it.

    Attributes
    ----------
    loaded
        The scenario, its machine and its workload.
    rows
        One per policy and point: the columns of `simulator.run`'s summary, what was set (``set <field>``), and

        ``ranks``
            Ranks of the job.
        ``tokens``, ``tokens_per_s``
            What all ranks train on, read or add in a step, and in a second; None of a graph from a file.
        ``efficiency``
            Tokens per second and rank, against those of the policy's first point that ran to its end. With as much
            for each rank everywhere (weak scaling) that is the step there over the step here.
    homes_are_given
        Whether the scenario says where a step begins with some tensor, so that bounds hold with these homes.
    """

    loaded: Loaded
    rows: Sequence[dict[str, Any]] = field(repr=False)
    homes_are_given: bool = False

    @cached_property
    def table(self) -> pd.DataFrame:
        """The rows, one a line; times [ns] and sizes [B] are whole numbers even where a row has none."""
        import pandas as pd  # noqa: PLC0415 - slow to import, and the text needs none

        frame = pd.DataFrame(list(self.rows))
        whole = [column for column in map(str, frame) if column.endswith(("_ns", "_bytes"))]
        return frame.astype(dict.fromkeys(whole, "Int64"))

    @cached_property
    def sentences(self) -> list[str]:
        """What is left of the first point's efficiency at the last one, and what became of the rest."""
        return report.sentences(self.rows, homes_are_given=self.homes_are_given)

    def figure(self) -> Picture:
        """Draw step and efficiency over ranks, or step and tokens per second over a field; and all `amounts`."""
        from simulator.report.scaling_figure import scaling_picture  # noqa: PLC0415 - drawing takes time to import

        return scaling_picture(self.rows, self.loaded.scenario.title or self.loaded.scenario.name, self.amounts)

    @cached_property
    def amounts(self) -> list[report.Amount]:
        """Which peaks and which bytes moved over links there are in any row."""
        hardware, budget = self.loaded.hardware, self.loaded.scenario.budget_bytes
        usable = hardware.tiers[hardware.compute_tier].usable_bytes
        return report.amounts(self.rows, hardware, usable if budget is None else budget)

    def __str__(self) -> str:
        return "\n\n".join(filter(None, (report.table(self.rows, self.amounts), "\n".join(self.sentences))))

    def write(self, out: str | Path) -> None:
        """Write the rows, the picture and the documents into a folder.

        Parameters
        ----------
        out
            The folder; filled beside its place and renamed. An earlier run's is replaced.
        """
        from simulator.run.folder import filled  # noqa: PLC0415

        with filled(out, self.loaded, self.rows, {"sentences": self.sentences}) as folder:
            picture = self.figure()
            for kind in ("png", "svg"):
                picture.write(str(folder / f"scaling.{kind}"), kind)


def scaling(
    scenario: str | Path | Scenario,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    unfolded: bool = False,
    progress: Progress | None = None,
) -> Scaling:
    """Run a scenario at each point of its ``scaling``.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, or the document itself.
    set, policies
        As in `simulator.run`.
    unfolded
        Whether every rank is simulated, though ranks that run the same may stand for one another; changes no time.
    progress
        Called now and then.

    Raises
    ------
    ConfigError
        If a document is wrong, a point cannot be, or points differ in ranks and do not go from fewer to more.
    HosimError
        If an option or a plan is wrong. What cannot fit and what blocks itself are rows, not errors.
    """
    loaded = catalog.resolve(scenario, set)
    if unfolded:
        loaded = replace(loaded, scenario=loaded.scenario.model_copy(update={"fold": "never"}))
    cases = [prepare(point, is_changed=bool(set)) for point in catalog.points(loaded)]
    _check_ranks(loaded, [case.job.ranks for case in cases])
    rows, given = [], False
    for number, case in enumerate(cases):
        about = {POINT + key: values[number] for key, values in loaded.scenario.scaling.items()}
        point = ", ".join(f"{key} {values[number]}" for key, values in loaded.scenario.scaling.items())
        said = partial(_said, progress, point)
        results = run_case(case, policies, said)
        given |= any(row.homes_are_given for row in results.values())
        rows += [about | _counted(row.summary, case) for row in results.values()]
    order = list(dict.fromkeys(row["policy"] for row in rows))
    return Scaling(loaded, _compared(sorted(rows, key=lambda row: order.index(row["policy"]))), given)


def _check_ranks(loaded: Loaded, ranks: Sequence[int]) -> None:
    """Refuse a mixture: all points have as many ranks, or each more than the one before it."""
    for fewer, more in pairwise(ranks if len(set(ranks)) > 1 else ()):
        if fewer >= more:
            must = "points go from fewer ranks to more"
            do = "order them, and with a model say 'parallel: {ranks: all}' in the workload"
            raise ConfigError(loaded.place("scaling"), must, f"{more:,} after {fewer:,}", do)


def _said(progress: Progress | None, point: str, label: str, done: int, total: int) -> None:
    if progress is not None:
        progress(f"{point}, {label}", done, total)


def _counted(summary: Mapping[str, Any], case: Case) -> dict[str, Any]:
    tokens, step = case.loaded.workload.tokens, summary.get("step_ns")
    per_s = tokens * 10**9 / step if tokens and step else None
    return {**summary, "ranks": case.job.ranks, "tokens": tokens, "tokens_per_s": per_s}


def _compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add how much of the first point's tokens per second and rank is left."""
    first: dict[str, float] = {}
    for row in rows:
        each = row["tokens_per_s"] and row["tokens_per_s"] / row["ranks"]
        row["efficiency"] = each and each / first.setdefault(row["policy"], each)
    return rows

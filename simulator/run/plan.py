"""The story of `hosim plan`: decide, check, replay, and say why the plan is as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulator import catalog, formats
from simulator.errors import CapacityError, ConfigError
from simulator.formats import augmented_json
from simulator.policies import static
from simulator.report import decisions, files, plan_files
from simulator.report.rows import percent
from simulator.run.case import prepare
from simulator.run.results import Result
from simulator.run.row import replayed
from simulator.units import human, nearest


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan of a scenario, with its reasons if its policy gives any.

    Attributes
    ----------
    result
        The row, as `hosim run` has it.
    explanation
        Why; None for policies other than `static`.
    """

    result: Result
    explanation: static.Explanation | None

    def text(self, tensor: str | None = None) -> str:
        """Tell the plan, or one tensor of it in full.

        Parameters
        ----------
        tensor
            Name of the tensor.

        Raises
        ------
        ConfigError
            If there is no such tensor, or the policy gives no reasons.
        """
        if self.explanation is None:
            if tensor is not None:
                must = "a tensor is told by a policy that gives its reasons"
                raise ConfigError("--tensor", must, repr(self.result.label), "plan with 'static'")
            return f"{self._head()}\n\nOnly 'static' says why; this plan is written as it is."
        if tensor is not None:
            return decisions.tensor_told(self.explanation, tensor)
        return f"{self._head()}\n\n{decisions.told(self.explanation)}"

    def _head(self) -> str:
        row, case = self.result.summary, self.result.case
        tier = case.hardware.compute_tier
        if row["status"] != "ok":
            return f"{self.result.label} on {case.loaded.scenario.name}: {row['status']}"
        step, peak = human(row["step_ns"], "ns"), human(row[f"peak_{tier}_bytes"], "B")
        above = f"{percent(row['gap_fraction'])} above the bound ({row['bound_kind']})"
        lines = [
            f"{self.result.label} on {case.loaded.scenario.name}: {step} a step, {above}",
            f"peak in {tier} {peak} of a budget of {human(case.problem.budget_bytes, 'B')}",
            *self.result.recorded.notes,
        ]
        return "\n".join(lines)

    def write(self, out: Path) -> None:
        """Write the plan, the augmented graph, its reasons as tables and text, a drawing and a picture.

        Parameters
        ----------
        out
            The folder, which is replaced as a whole.
        """
        with files.replaced(out) as folder:
            formats.plan_jsonl.write(self.result.recorded, self.result.graph, folder / "plan.jsonl")
            (folder / "explanation.txt").write_text(self.text() + "\n", encoding="utf-8")
            if self.explanation is not None:
                candidate = self.explanation.candidate
                path = folder / "augmented.json"
                augmented_json.write(self.explanation.problem, candidate.augmented, candidate.plan, path)
                plan_files.write(self.explanation, folder)
            files.write_summary(folder, [self.result.summary], {})


def plan(
    scenario: str | Path,
    policy: str = "static",
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
) -> Planned:
    """Plan a scenario with one policy, and explain the plan.

    Parameters
    ----------
    scenario
        A name in the catalogue, or a path that ends in ``.yaml``.
    policy
        A row of the scenario, or a policy with its default options.
    set
        Changes to the hardware.

    Raises
    ------
    HosimError
        If a document, an option or the plan is wrong, or nothing fits.
    """
    case = prepare(catalog.resolve(scenario, set), is_changed=bool(set))
    rows = case.rows([policy])
    if len(rows) > 1:
        raise ConfigError("--policy", "one row is planned", ", ".join(rows), nearest(policy, tuple(rows)))
    ((label, decide),) = rows.items()
    unfit = case.unfit(may_repeat=case.may_repeat(label))
    if unfit is not None:
        raise CapacityError(unfit)
    options = case.static_options(label)
    if options is None:
        return Planned(replayed(case, label, decide(case.problem)), None)
    found = static.explained(case.problem, options)
    return Planned(replayed(case, label, found.plan), replace(found, plan=replace(found.plan, policy=label)))

"""The story of `hosim plan`: decide, check, replay, and say why the plan is as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from simulator import catalog, formats
from simulator.errors import CapacityError, ConfigError
from simulator.formats import augmented_json
from simulator.plan import Plan
from simulator.policies import static
from simulator.policies.decide import Policy, decided
from simulator.policies.problem import Problem
from simulator.report import decisions, files
from simulator.report.files import folder_names
from simulator.report.rows import percent
from simulator.report.sentences import crowded
from simulator.run.case import Case, prepare
from simulator.run.results import Result
from simulator.run.row import Progress, enough, notes, plans_of, replayed, silent, tried
from simulator.scenario import PolicyChoice
from simulator.units import human, nearest


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan of a scenario, with its reasons if its policy gives any.

    Attributes
    ----------
    result
        The row, as `hosim run` has it.
    explanations
        Why, for each graph of the job; none for policies other than `static`.
    """

    result: Result
    explanations: tuple[static.Explanation, ...]

    def text(self, tensor: str | None = None) -> str:
        """Tell the plan, or one tensor of it in full.

        Parameters
        ----------
        tensor
            Name of the tensor; of several graphs that have it, the first one's is told.

        Raises
        ------
        ConfigError
            If there is no such tensor, or the policy gives no reasons.
        """
        if not self.explanations:
            if tensor is not None:
                must = "a tensor is told by a policy that gives its reasons"
                raise ConfigError("--tensor", must, repr(self.result.label), "plan with 'static'")
            return f"{self._head()}\n\nOnly 'static' says why its plan is as it is."
        if tensor is not None:
            having = (e for e in self.explanations if tensor in {t.name for t in e.problem.graph.tensors})
            return decisions.tensor_told(next(having, self.explanations[0]), tensor)
        told = [decisions.told(explanation) for explanation in self.explanations]
        if len(told) > 1:
            told = [f"{task.said}\n\n{text}" for task, text in zip(self.result.case.tasks, told, strict=True)]
        return "\n\n".join((self._head(), *told))

    def _head(self) -> str:
        row, case = self.result.summary, self.result.case
        tier = case.hardware.compute_tier
        if row["status"] != "ok":
            why = "".join(f"\n{line}" for line in self.result.blocked)
            return f"{self.result.label} on {case.loaded.scenario.name}: {row['status']}{why}"
        step, peak = human(row["step_ns"], "ns"), human(row[f"peak_{tier}_bytes"], "B")
        is_bounded = row.get("bound_ns") is not None
        above = (
            f"{percent(row['gap_fraction'])} above the bound ({row['bound_kind']})" if is_bounded else "no bound known"
        )
        lines = [
            f"{self.result.label} on {case.loaded.scenario.name}: {step} a step, {above}",
            f"peak in {tier} {peak} of a budget of {human(case.problem.budget_bytes, 'B')}",
            *notes(self.result.case, self.result.recordings),
            *crowded([self.result]),
        ]
        return "\n".join(lines)

    @property
    def file(self) -> str:
        """The plan in the folder that is written, as a row of a scenario names it; ``*`` stands for each graph."""
        return "plan.jsonl" if len(self.result.case.tasks) == 1 else "*/plan.jsonl"

    def write(self, out: Path) -> None:
        """Write the plan, the augmented graph, its reasons as tables and text, a drawing and a picture.

        Parameters
        ----------
        out
            The folder, which is replaced as a whole. Of a job of several graphs, each has a folder of its own in it.
        """
        with files.replaced(out) as folder:
            tasks = self.result.case.tasks
            names = [""] if len(tasks) == 1 else folder_names(self.result.job.labels).values()
            for number, name in enumerate(names):
                inner = folder / name
                inner.mkdir(exist_ok=True)
                formats.plan_jsonl.write(self.result.recordings[number], tasks[number].graph, inner / "plan.jsonl")
                if self.explanations:
                    _write_reasons(self.explanations[number], inner)
            (folder / "explanation.txt").write_text(self.text() + "\n", encoding="utf-8")
            files.write_summary(folder, [self.result.summary], {})


def _write_reasons(explanation: static.Explanation, folder: Path) -> None:
    candidate = explanation.candidate
    augmented_json.write(explanation.problem, candidate.augmented, candidate.plan, folder / "augmented.json")
    decisions.write(explanation, folder)


def plan(
    scenario: str | Path,
    policy: str = "static",
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    progress: Progress | None = None,
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
    progress
        Called now and then.

    Raises
    ------
    HosimError
        If a document, an option or the plan is wrong, or nothing fits.
    """
    progress = progress or silent
    case = prepare(catalog.resolve(scenario, set), is_changed=bool(set))
    rows = case.rows([policy])
    if len(rows) > 1:
        raise ConfigError("--policy", "one row is planned", ", ".join(rows), nearest(policy, tuple(rows)))
    ((label, decide),) = rows.items()
    case = case.of(label)
    try:
        return _planned(case, label, decide, progress)
    except CapacityError as error:
        raise CapacityError(enough(case, label, decide, error.report, progress)) from None


def _planned(case: Case, label: str, decide: Policy, progress: Progress) -> Planned:
    progress(label, 0, 0)
    unfit = case.unfit(label)
    if unfit is not None:
        raise CapacityError(unfit)
    options = case.static_options(label)
    if options is None:
        return Planned(replayed(case, label, plans_of(case, label, decide, progress), partial(progress, label)), ())
    found = []
    for task in case.tasks:
        with case.trials.told(partial(tried, progress, label)):
            found.append(_explained(case.choice(label), task.problem, options))
    result = replayed(case, label, [one.plan for one in found], partial(progress, label))
    return Planned(result, tuple(replace(one, plan=replace(one.plan, policy=label)) for one in found))


def _explained(choice: PolicyChoice, problem: Problem, options: static.Options) -> static.Explanation:
    """Plan one graph as the row does, and explain the plan that it chose."""
    found: list[static.Explanation] = []

    def decide(seen: Problem) -> Plan:
        found.append(static.explained(seen, options))
        return found[-1].plan

    plan = decided(choice, decide, problem)
    return replace(next(one for one in found if one.plan.steps is plan.steps), plan=plan)

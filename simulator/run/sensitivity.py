"""The story of `hosim sensitivity`: claims are recomputed with other values of what their sources leave open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator import catalog
from simulator.catalog import Loaded
from simulator.errors import ConfigError
from simulator.report import sensitivity as report
from simulator.report.expectations import Verdict
from simulator.report.sensitivity import Dependence
from simulator.report.summaries import dumped
from simulator.run import Progress
from simulator.run.case import prepare
from simulator.run.validate import Validation, judged, validate
from simulator.run.workers import spread
from simulator.scenario import LIMITS, Expectation

if TYPE_CHECKING:
    import pandas as pd

    from simulator.report.drawing import Picture

SCHEMA = "hosim-sensitivity/1"
"""The schema of what is written as JSON."""
_GRID = 4
"""Into so many parts a range is cut at first."""


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """What came of it.

    Attributes
    ----------
    found
        One per printed figure and parameter.
    loaded
        The scenarios by name.
    validation
        The same scenarios with what they take: how many free parameters explain how many printed figures.
    """

    found: Sequence[Dependence] = field(repr=False)
    loaded: Mapping[str, Loaded] = field(repr=False)
    validation: Validation = field(repr=False)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One per printed figure and parameter: see `simulator.report.sensitivity.rows`."""
        return report.rows(self.found)

    @cached_property
    def table(self) -> pd.DataFrame:
        """The rows, one a line."""
        import pandas as pd  # noqa: PLC0415 - slow to import, and the text needs none

        return pd.DataFrame(self.rows)

    @cached_property
    def sentences(self) -> list[str]:
        """What each figure depends on most, how that is meant, and how many free parameters explain how many."""
        return [*report.sentences(self.found), *self.validation.sentences]

    def figures(self) -> dict[str, Picture]:
        """Draw a tornado for each scenario, by its name."""
        from simulator.report.tornado import tornado  # noqa: PLC0415 - drawing takes time to import

        return {
            name: tornado([one for one in self.found if one.scenario == name], loaded.scenario.title or name)
            for name, loaded in self.loaded.items()
        }

    def json(self) -> bytes:
        """Write the rows and the sentences as JSON."""
        return dumped({"schema": SCHEMA, "rows": self.rows, "sentences": self.sentences})

    def __str__(self) -> str:
        return "\n\n".join((report.text(self.found), "\n".join(self.validation.sentences)))

    def write(self, out: str | Path) -> None:
        """Write the rows, the pictures and a page with both into a folder.

        Parameters
        ----------
        out
            The folder; filled beside its place and renamed. An earlier run's is replaced.
        """
        from simulator.report import files, pages  # noqa: PLC0415
        from simulator.run.origins import provenance  # noqa: PLC0415

        with files.replaced(Path(out)) as folder:
            pictures = {name: picture.png() for name, picture in self.figures().items()}
            for name, png in pictures.items():
                (folder / f"{name}.png").write_bytes(png)
            (folder / "report.html").write_text(
                pages.of_dependences(self.found, self.validation.checked, pictures), encoding="utf-8"
            )
            origins = {name: provenance(loaded) for name, loaded in self.loaded.items()}
            files.write_summary(folder, self.rows, {"sentences": self.sentences, "provenance": origins})


def open_claims() -> list[str]:
    """Name the scenarios of the catalogue whose claim leaves parameters open."""
    found = {name: catalog.read_scenario(name) for name in catalog.names("scenario")}
    return [name for name, one in found.items() if one.claim and one.claim.unstated]


def sensitivity(
    scenarios: Sequence[str | Path] | None = None, *, workers: int = 1, progress: Progress | None = None
) -> Sensitivity:
    """Recompute claims with other values of each parameter that their sources leave open, one at a time.

    Parameters
    ----------
    scenarios
        Names in the catalogue, or paths that end in ``.yaml``; default: all of the catalogue that say what is open.
    workers
        Processes; more than one needs ``if __name__ == "__main__":`` around the call in a script. The result does not
        depend on it.
    progress
        Called when a run is done.

    Raises
    ------
    ConfigError
        If a document is wrong, nothing is open or printed, or a document is not valid with a value.
    """
    names = open_claims() if scenarios is None else list(dict.fromkeys(map(str, scenarios)))
    loaded = {name: catalog.resolve(name) for name in names}
    searches = [_Search(name, number, one) for name, one in loaded.items() for number in range(_count(one))]
    if not searches:
        raise ConfigError("scenarios", "a scenario whose claim leaves something open is named", "none", "name one")
    validation, tried = validate(names, workers=workers, progress=progress), 0
    while tasks := list(dict.fromkeys(one.task(value) for one in searches for value in one.wanted())):

        def tell(done: int) -> None:
            if progress is not None:
                progress("values", tried + done, tried + len(tasks))  # noqa: B023 - called before either changes

        tell(0)
        outcomes = spread(_runner, tasks, workers, _lost, tell)
        tried += len(tasks)
        known = dict(zip(tasks, outcomes, strict=True))
        for one in searches:
            one.learn({value: known[one.task(value)] for value in one.wanted()})
    return Sensitivity(
        [dependence for one in searches for dependence in one.dependences()],
        {one.scenario.name: one for one in loaded.values()},
        validation,
    )


def _count(loaded: Loaded) -> int:
    """How many parameters are open; something must be, and printed as well."""
    claim = loaded.scenario.claim
    if claim is None or not claim.unstated:
        do = "list them under claim: unstated, with a range each"
        raise ConfigError(loaded.place("claim"), "the claim says which parameters its source leaves open", "none", do)
    if not _compared(loaded):
        must, do = (
            "something is held against a printed figure, or shown beside a number",
            "add printed to an expectation",
        )
        raise ConfigError(loaded.place("expect"), must, "nothing", do)
    return len(claim.unstated)


def _compared(loaded: Loaded) -> list[Expectation]:
    """What is held against a printed figure, or shown beside one number that it may be near to."""
    printed = (one for one in loaded.scenario.expect if one.printed is not None)
    return [one for one in printed if one.kind != "shown" or len(one.printed_ends) == 1]


@dataclass
class _Search:
    """The search for where the figures of a scenario hold, over one parameter.

    Attributes
    ----------
    name, number
        The scenario as it was asked for, and which of its parameters.
    loaded
        The scenario.
    known
        Verdicts on all its printed figures, by value.
    """

    name: str
    number: int
    loaded: Loaded
    known: dict[float, tuple[Verdict, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        claim = self.loaded.scenario.claim
        self.parameter = claim.unstated[self.number]  # type: ignore[union-attr]
        self.taken = catalog.taken(self.loaded, self.number)

    def task(self, value: float) -> Task:
        """How a value is tried; what the scenario takes is the same for all its parameters."""
        return (self.name, None) if value == self.taken else (self.name, (self.number, value))

    def wanted(self) -> list[float]:
        """Values to be tried next: at first a few over the range, then between those where a figure turns."""
        values = self.parameter.values
        if not self.known:
            last = len(values) - 1
            return sorted({self.taken, *(values[part * last // _GRID] for part in range(_GRID + 1))})
        ordered = sorted(self.known)
        turning = (pair for pair in pairwise(ordered) if self._turns(*pair))
        return [middle for low, high in turning if (middle := _between(values, low, high)) is not None]

    def _turns(self, low: float, high: float) -> bool:
        """Whether some figure holds with one of two values and not with the other, or passes what is printed."""
        return any(map(_turned, self.known[low], self.known[high]))

    def learn(self, found: Mapping[float, tuple[Verdict, ...]]) -> None:
        """Take in what came of some values."""
        self.known |= found

    def dependences(self) -> Iterator[Dependence]:
        """What came of it, by figure."""
        for place in range(len(self.known[self.taken])):
            verdicts = {value: self.known[value][place] for value in sorted(self.known)}
            yield Dependence(self.loaded.scenario.name, self.parameter, self.taken, verdicts)


def _turned(one: Verdict, other: Verdict) -> bool:
    if one.holds or other.holds or one.error is None or other.error is None:
        return one.holds != other.holds
    return (one.error < 0) != (other.error < 0)


def _between(values: Sequence[float], low: float, high: float) -> float | None:
    """The middle one of the values that lie between two others."""
    inside = [value for value in values if low < value < high]
    return inside[len(inside) // 2] if inside else None


Task = tuple[str, tuple[int, float] | None]
"""A scenario; which of its parameters gets another value, and which."""


def _runner() -> Callable[[Task], tuple[Verdict, ...]]:
    """Return what a worker does; nothing is shared between values."""
    return _tried


def _tried(task: Task) -> tuple[Verdict, ...]:
    """Run the rows with printed figures, and judge."""
    name, change = task
    case = prepare(catalog.resolve(name) if change is None else catalog.varied(name, *change), is_changed=True)
    compared = _compared(case.loaded)
    found = judged(case, [_beside(one) for one in compared])
    return tuple(replace(verdict, kind=one.kind) for verdict, one in zip(found, compared, strict=True))


def _beside(one: Expectation) -> Expectation:
    """What is only shown is held against what is printed, and not against ours, to say for what it is near."""
    ours: dict[str, object] = {**dict.fromkeys(LIMITS, None), "faster_than": None, "kind": "predicted"}
    return one.model_copy(update=ours) if one.kind == "shown" else one


def _lost(task: Task) -> tuple[Verdict, ...]:
    found = f"one that died twice ({task[1]})"
    raise ConfigError(task[0], "a claim is recomputed by a process", found, "run it alone: hosim run")

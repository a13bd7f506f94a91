"""The results of a run, one for each row; tables and pictures are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator import formats, metrics
from simulator.errors import CapacityError, ConfigError
from simulator.interrupts import no_garbage_search
from simulator.metrics.rows import Row, by_place
from simulator.plan import Actions, Plan
from simulator.processes import forked
from simulator.report import expectations, files
from simulator.report.card import Amounts, Card, cards, model_amounts, plain, texts
from simulator.report.files import plan_names
from simulator.report.junit import Check, check
from simulator.report.sentences import pointer, sentences
from simulator.report.tables import PIPE_WIDTH, folded
from simulator.report.views import Section, SweepView
from simulator.run.case import Case, asked_columns
from simulator.run.effects import hints
from simulator.run.provenance import as_run, files_named, provenance
from simulator.run.sweep import Progress, Sweep, silent
from simulator.trace import ISSUED, Trace
from simulator.units import nearest

if TYPE_CHECKING:
    import pandas as pd

    from simulator.report.drawing import Drawn, Given
    from simulator.report.html import Pages


def shown(title: str, rows: Sequence[Row], sentences: Sequence[str]) -> SweepView:
    """Return the view of rows that notebooks show: sentences, and the table.

    Parameters
    ----------
    title, rows, sentences
        What ran, its rows, and sentences about them.
    """
    return SweepView(title, [Section(columns=columns) for columns in folded(rows, PIPE_WIDTH)], sentences)


@dataclass(frozen=True, eq=False)
class Result(Row):
    """One row: one policy, with its plans, trace and figures.

    Attributes
    ----------
    case
        What ran.
    remarks, tries, seconds
        The referee's remarks that are no breach; how many plans the policy tried; how long planning and running took.
    section
        Its section of the page, if that was made where the row ran.
    """

    case: Case = field(repr=False, kw_only=True)
    remarks: tuple[str, ...] = field(default=(), repr=False)
    tries: int = field(default=0, repr=False)
    seconds: float = field(default=0.0, repr=False)
    section: dict[str, Any] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, case: Case, label: str, summary: dict[str, Any], **more: Any) -> Result:
        """Make the row of a case.

        Parameters
        ----------
        case, label, summary
            What ran, the name of the row, and its figures.
        **more
            Further attributes.
        """
        given = any(task.problem.gives_homes for task in case.tasks)
        about = (label, case.choice(label).policy, summary, case.job, case.hardware, max(case.rooms))
        return cls(*about, homes_are_given=given, case=case, **more)

    @property
    def status(self) -> str:
        """How it ended: ``ok``, ``infeasible``, ``blocked``, ``refused`` or ``failed`` (semantics, rule 13)."""
        return str(self.summary["status"])

    @cached_property
    def spans(self) -> pd.DataFrame:
        """Computes and transfers, one a line, with names and times [ns]."""
        return self.tables.spans()

    @cached_property
    def waits(self) -> pd.DataFrame:
        """Stalls of the compute streams, one a line, with their causes and times [ns]."""
        return self.tables.waits()

    @cached_property
    def memory(self) -> pd.DataFrame:
        """Contents of each tier after each change, by tensor kind [B]."""
        return self.tables.memory()

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """Ranks, one a line: their times [ns], shares, and peaks [B]."""
        return self.tables.ranks()

    @property
    def recorded(self) -> Plan:
        """The actions that rank 0 issued, as a fixed plan: the plan itself unless it is reactive."""
        return self.recordings[self.job.graph_of[0]]

    @cached_property
    def recordings(self) -> tuple[Plan, ...]:
        """For each graph of the job, the actions that its first rank issued, as a fixed plan."""
        trace, plans = self._trace, []
        for task, plan in zip(self.case.tasks, self.plans, strict=True):
            issued = trace.issued[task.ranks[0]].whole()
            actions = Actions.from_columns(*(issued[column].tolist() for column in ISSUED))
            plans.append(plan if plan.fixed is not None else replace(plan, actions=actions, repeats=1))
        return tuple(plans)

    def _repr_html_(self) -> str:
        return shown(self.label, [self], sentences([self]))._repr_html_()

    def timeline(self, ax: Given = None, *, window_ns: tuple[int, int] | None = None) -> Drawn:
        """Draw compute, stalls by cause, channels, and the memory of each tier.

        Parameters
        ----------
        ax
            Axes to draw the lanes into, or several, the others for memories; default: a picture of its own.
        window_ns
            First and last instant shown [ns]; the whole run if None.
        """
        from simulator.report import timeline  # noqa: PLC0415 - most runs of a sweep draw nothing

        _ = self._trace  # without one there is nothing to draw
        return timeline.timeline(self, ax, window_ns=window_ns)

    def by_rank(self, ax: Given = None) -> Drawn:
        """Draw what the step of each rank is spent on.

        Parameters
        ----------
        ax
            Axes to draw into; default: a picture of its own.
        """
        from simulator.report import pictures  # noqa: PLC0415 - as above

        _ = self._trace
        return pictures.by_rank(self, ax)

    @property
    def tables(self) -> metrics.Frames:
        """The tables, to be written or taken as columns."""
        return metrics.Frames(self.job, self.hardware, self._trace)

    @property
    def _trace(self) -> Trace:
        if self.trace is not None:
            return self.trace
        if self.shortfall is not None:
            raise CapacityError(self.shortfall)
        raise ConfigError(self.label, "a table is about a row that ran", self.status, "choose another row")


_ALWAYS = ("step_ns", "makespan_ns", "compute_ns", "stall_ns", "gap_fraction")
"""Columns that the summary has even if no row ran."""


class Results(dict[str, Result]):
    """The rows of one run by label, in the order of the scenario.

    Parameters
    ----------
    case
        What all rows share.
    rows
        The rows.
    largest
        The largest value of a field with which each row fits, if the scenario asks.
    sought
        Returns the searches of what would make the fastest row free, each for a sentence.
    also
        Makes the further sweeps of the page.

    Attributes
    ----------
    told
        Sentences on the bandwidth and the capacity that would make the fastest row free, once that is searched.
    """

    def __init__(
        self,
        case: Case,
        rows: Sequence[Result],
        largest: Sweep | None = None,
        sought: Callable[[], Sequence[Callable[[Progress], str]]] = tuple,
        also: Callable[[Progress], Sequence[Sweep]] = lambda _: (),
    ) -> None:
        super().__init__((row.label, row) for row in rows)
        self.case, self.largest, self._sought, self._also = case, largest, sought, also
        self.told: Sequence[str] = ()
        self._parts: Sequence[Sweep] | None = None

    def __missing__(self, label: str) -> Result:
        raise KeyError(f"no row {label!r}: {nearest(str(label), tuple(self))}")

    def _repr_html_(self) -> str:
        return shown(self.case.loaded.scenario.name, list(self.values()), self.sentences)._repr_html_()

    def __repr__(self) -> str:
        rows = ", ".join(f"{label!r}: {row.status}" for label, row in self.items())
        return f"<Results of {self.case.loaded.scenario.name}: {rows}>"

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per policy; times [ns] and sizes [B] are whole numbers, even where a row has none."""
        rows = list(self.summaries.values())
        absent = dict.fromkeys(column for column in _ALWAYS if not any(column in row for row in rows))
        return metrics.frame([row | absent for row in rows]).set_index("policy")

    @property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """The figures of each row by column, as in ``summary.json``."""
        return {label: row.summary for label, row in self.items()}

    @cached_property
    def said(self) -> list[str]:
        """Sentences about the rows, and hints; and how far each row fits, if that was asked."""
        rows, largest = list(self.values()), self.largest.sentences if self.largest else []
        return [*sentences(rows), *hints(self.case, rows), *largest, *pointer(self.case.loaded.scenario.sweep)]

    def search(self, progress: Progress = silent, *, for_page: bool = False) -> None:
        """Search what would make the fastest row free, if the run asks (`what_if`), which is then `told`.

        At once, what only a page shows is searched.

        Parameters
        ----------
        progress, for_page
            Called now and then; and whether a page is written.
        """
        calls: list[Callable[[Progress], Any]] = [*[self._also][:for_page], *self._sought()]
        with closing(forked(calls, progress)) as ended:
            outcomes = dict(ended)
        self._parts = outcomes.pop(0) if for_page else None  # begun first, as it takes longest
        self.told = [outcomes[position] for position in sorted(outcomes) if outcomes[position]]

    @property
    def sentences(self) -> list[str]:
        """All sentences: `said`, then `told`."""
        return [*self.said, *self.told]

    @cached_property
    def expectations(self) -> list[expectations.Verdict]:
        """Verdicts on the expectations of the scenario; none if the machine was changed."""
        scenario = self.case.loaded.scenario
        source = scenario.claim.source if scenario.claim else ""
        return [] if self.case.is_changed else expectations.verdicts(scenario.expect, self.summaries, source)

    @property
    def checks(self) -> list[Check]:
        """The conditions for `hosim run` to succeed: one that a row runs to its end, and one for each expectation."""
        states = {row.status for row in self.values()}
        failure = "" if "ok" in states else f"no row ran to its end: all are {' or '.join(sorted(states))}"
        by_question = {verdict.asks: check(verdict) for verdict in self.expectations}
        why = "this run changes its documents" if self.case.is_changed else "this run leaves rows of it out"
        seconds, of_rows = {label: row.seconds for label, row in self.items()}, list[Check]()
        for expected in self.case.loaded.scenario.expect:
            asked = by_question.get(asks := expectations.asks(expected), Check(asks, skipped=why))
            of_rows.append(asked._replace(seconds=seconds.pop(expected.row, 0.0)))  # later checks of the row take none
        return [Check("a row runs to its end", failure, seconds=sum(seconds.values())), *of_rows]

    @property
    def card(self) -> dict[str, Card]:
        """Cards of the ``model``, the ``machine`` and the ``software``: parameters, weights, peaks, tiers."""
        return {name: texts(amounts) for name, amounts in self._amounts.items()}

    @cached_property
    def _amounts(self) -> dict[str, Amounts]:
        loaded = self.case.loaded
        work = None if loaded.is_job_given else loaded.workload
        return cards(model_amounts(work, self.case.job), self.case.hardware, loaded.software)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Sources of every number: version, inputs, switches, and what was assumed or fitted."""
        return provenance(self.case.loaded, list(self), [verdict.asks for verdict in self.expectations])

    @cached_property
    def more(self) -> dict[str, Any]:
        """Contents of ``summary.json`` besides the rows, among them each row's stalls by cause and place."""
        loaded = self.case.loaded
        return {
            "card": {name: plain(amounts) for name, amounts in self._amounts.items()},
            "sentences": self.sentences,
            "expectations": [asdict(verdict) for verdict in self.expectations],
            "figures": files.figures_of(self.values(), asked_columns(loaded) if loaded.scenario.frontier else ()),
            "stalls": {label: by_place(row) for label, row in self.items() if row.status == "ok"},
            "provenance": self.provenance,
        }

    def json(self) -> bytes:
        """Return the contents of ``summary.json``, without the list of files."""
        return files.dumped(files.content(list(self.summaries.values()), self.more))

    def comparison(self, ax: Given = None) -> Drawn:
        """Draw the rows side by side: what each step is spent on, and the peak of each memory in use.

        Parameters
        ----------
        ax
            Axes to draw the steps into, or several, the others for peaks; default: a picture of its own.
        """
        from simulator.report.pictures import comparison  # noqa: PLC0415 - drawing takes time to import

        scenario = self.case.loaded.scenario
        return comparison(list(self.values()), scenario.heading, ax)

    def write(self, out: str | Path, command: str = "") -> None:
        """Write all results into a folder: tables, plans, pictures, Perfetto traces and a report.

        Parameters
        ----------
        out
            The folder. It is filled beside its place and renamed, so that it is complete or absent; that of an earlier
            run is replaced.
        command
            The command that gives the same again, for the page.
        """
        with writing(out, list(self)) as pages:
            with closing(forked([partial(pages.add, row) for row in self.values()], silent)) as written:
                sections = dict(written)
            self.finish(pages, [sections[position] for position in range(len(self))], command)

    def finish(self, pages: Pages, sections: Sequence[Any], command: str) -> None:
        """Write the documents, the report and the summary, once all rows are written.

        Parameters
        ----------
        pages, sections, command
            The folder, the section of each row (`Pages.add`), and the command that gives the same again, if known.
        """
        from simulator.report.drawing import picture  # noqa: PLC0415 - drawing takes time to import

        case, rows, folder = self.case, list(self.values()), pages.folder
        files.write_texts(folder, as_run(case.loaded, self, is_changed=case.is_changed))
        for role, name in files_named(case.loaded).items():
            (folder / name).write_bytes(case.loaded.paths[role].read_bytes())
        parts = self._also(silent) if self._parts is None else self._parts
        drawn = [(also.view, picture(also.figure()).png() if also.view.panels else None) for also in parts]
        of_rows = [section | {"row": row} for row, section in zip(rows, sections, strict=True)]
        pages.report(case.loaded.scenario, self.more | {"card": self.card}, of_rows, drawn, command)
        files.write_summary(folder, [row.summary for row in rows], self.more)


@contextmanager
def writing(out: str | Path, labels: Sequence[str]) -> Iterator[Pages]:
    """Open the folder of a result to add rows to; when the block ends it is complete, or absent.

    Parameters
    ----------
    out, labels
        As for `Results.write`, and the labels of all rows.
    """
    with files.replaced(Path(out)) as folder:
        with no_garbage_search():  # nothing of a module is garbage
            from simulator.report.html import Pages  # noqa: PLC0415 - imports matplotlib, which makes a folder

        yield Pages(folder, labels, _write_tables)


def _write_tables(row: Result, folder: Path) -> None:
    if isinstance(row.measured, Result):
        (folder / "measured").mkdir()
        _write_tables(row.measured, folder / "measured")
    names = plan_names(row.job.labels)
    for name, graph, plan in zip(names, row.job.graphs, row.recordings, strict=True):
        formats.plan_jsonl.write(plan, graph, folder / name)
    for table in ("spans", "waits", "memory", *(["ranks"] if row.job.ranks > 1 else [])):
        row.tables.write(table, folder / f"{table}.csv")

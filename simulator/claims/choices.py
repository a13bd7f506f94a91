"""The sweep of `hosim sensitivity --choices`: a claim under all combinations of choices that its source leaves open.

Nothing continuous is fitted. What is chosen is listed before the run, in the scenario; a figure then holds for so many
of so many settings. Where the claim says which figures select (``selects``), the settings that reproduce all of these
are shown with what they give for the other figures, which were not used. Other scenarios (``predicts``) are run with
these settings alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from simulator import builders, catalog
from simulator.catalog import Axis, Loaded
from simulator.claims import read
from simulator.claims.sensitivity import figures
from simulator.errors import ConfigError
from simulator.report.rows import ABSENT, listed, percent, present
from simulator.report.tables import Column
from simulator.report.views import Row as ShownRow
from simulator.report.views import Rows as ShownRows
from simulator.report.views import Section, View, by, texts
from simulator.run.sweep import Point, Progress, Rows, Study, Sweep, sweep
from simulator.scenario import Claim
from simulator.units import counted

MOST_SETTINGS = 10_000
"""Most combinations of the choices of a claim."""
_SHOWN = 24
"""So many selected settings are listed; all are in ``points.csv``."""


def enumerate_choices(
    scenarios: Sequence[str | Path] | None = None, *, workers: int = 1, progress: Progress | None = None
) -> Sweep:
    """Recompute claims under all combinations of the discrete choices that their sources leave open.

    Parameters
    ----------
    scenarios
        Names in the catalogue, or paths that end in ``.yaml``; default: all of the catalogue that list choices.
    workers
        Processes; more than one needs ``if __name__ == "__main__":`` around the call in a script. The result does not
        depend on it.
    progress
        Called when a setting was tried.

    Returns
    -------
    Sweep
        Its points: a verdict per setting and printed figure. Its rows: one per figure, see `distributions`.

    Raises
    ------
    ConfigError
        If a document is wrong, or nothing is to be chosen or printed.
    """
    must = "a scenario whose claim lists choices is named"
    loaded = read(scenarios, must, lambda one: one.claim and one.claim.choices)
    ahead = [[_other(one, name) for name in _claim(one).predicts] for one in loaded]
    bases = [_study(one, *_choices(one)) for one in loaded]
    if refused := [errors[0] for base, errors in bases if not base.points]:
        raise refused[0]
    points, unbuilt = _measured(bases, workers, progress)
    selections = {one.scenario.name: _selection(one, points) for one in loaded if _claim(one).selects}
    for row in points:
        held_to = [selections[row["scenario"]]] if row["scenario"] in selections else selections.values()
        row["selected"] = bool(held_to) and all(any(_agree(row, one) for one in own) for own in held_to)
    sections = [section for one in loaded for section in _sections(one, points)]
    for (base, _), others in zip(bases, ahead, strict=True):
        taken = _selected(base, points)
        for other in others:
            name = f"{other.scenario.name} with what {base.loaded.scenario.name} selects"
            more, unlike = _measured([_study(other, base.axes, taken)], workers, progress)
            points += [row | {"scenario": name, "selected": True} for row in more]
            sections += _spread(points, name, f"{name}: {other.scenario.title}")
            unbuilt += unlike
    rows = distributions(points)
    told = _sentences(loaded, rows)
    if unbuilt:
        told.append(f"{counted(len(unbuilt), 'combination')} of choices cannot be built, such as: {unbuilt[0]}.")
    return Sweep("choices", loaded, rows, View("Claims over all choices", sections, told), {"points": points})


def _claim(loaded: Loaded) -> Claim:
    return loaded.scenario.claim or Claim(sentence="", source="")


def _other(loaded: Loaded, name: str) -> Loaded:
    """A scenario that is run with the settings that another one selects."""
    other = catalog.resolve(catalog.path_of(name, "scenario", loaded.scenario_dir))
    if not _prints(other):
        must, do = "what is predicted prints numbers that ours are held against", "add printed to an expectation of it"
        raise ConfigError(loaded.place("claim", "predicts"), must, repr(name), do)
    return other


def _prints(loaded: Loaded) -> bool:
    return any(one.printed is not None for one in loaded.scenario.expect)


def _selection(loaded: Loaded, points: ShownRows) -> list[dict[str, Any]]:
    """The settings of a scenario, each as values by choice, that reproduce all figures that select."""
    names, selects = [one.choice for one in _claim(loaded).choices], _claim(loaded).selects
    own = by((row for row in points if row["scenario"] == loaded.scenario.name), *names)
    return [
        dict(zip(names, setting, strict=True))
        for setting, rows in own.items()
        if all(row["holds"] for row in rows if row["figure"] in selects)
    ]


def _agree(row: ShownRow, setting: ShownRow) -> bool:
    """Whether a point has the same value for every choice that it shares with a setting of this or another scenario."""
    return all(row[choice] == value for choice, value in setting.items() if choice in row)


def _selected(base: Study, points: ShownRows) -> list[Point]:
    """The settings of a scenario that are selected."""
    own = (row for row in points if row["selected"] and row["scenario"] == base.loaded.scenario.name)
    return list(by(own, *(axis.name for axis in base.axes)))


def _choices(loaded: Loaded) -> tuple[tuple[Axis, ...], list[Point]]:
    """What may be chosen, and all combinations of it."""
    choices = _claim(loaded).choices
    if not choices or not _prints(loaded):
        must = "a claim lists choices, and prints numbers that ours are held against"
        do = "list them under claim: choices, with their values, and add printed to an expectation"
        raise ConfigError(loaded.place("claim"), must, "none", do)
    axes = tuple(
        Axis(one.choice, one.fields, loaded.place("claim", "choices", str(number)), values=one.options)
        for number, one in enumerate(choices)
    )
    settings = [*product(*(one.options for one in choices))]
    if len(settings) > MOST_SETTINGS:
        must, do = f"choices have at most {MOST_SETTINGS:,} combinations", "list fewer values"
        raise ConfigError(loaded.place("claim", "choices"), must, f"{len(settings):,}", do)
    return axes, settings


def _study(loaded: Loaded, axes: tuple[Axis, ...], settings: Sequence[Point]) -> tuple[Study, list[ConfigError]]:
    """The settings that a document can state, and why others are none."""
    points, refused = list[Point](), list[ConfigError]()
    for setting in settings:
        try:
            builders.check(catalog.at(loaded, dict(zip(axes, setting, strict=True))).workload)
            points.append(setting)
        except ConfigError as error:
            refused.append(error)
    return Study(loaded, figures, axes, points), refused


def _measured(
    studies: Sequence[tuple[Study, list[ConfigError]]], workers: int, progress: Progress | None
) -> tuple[Rows, list[str]]:
    """Rows about printed figures, and why settings cannot be built, before they run or while."""
    found = sweep([study for study, _ in studies], workers, progress)
    unbuilt = [str(error) for _, refused in studies for error in refused]
    unbuilt += [row["notes"] for row in found if "figure" not in row]
    return [row for row in found if "figure" in row], unbuilt


def distributions(points: ShownRows) -> list[dict[str, Any]]:
    """Sum up what each printed figure becomes over all settings.

    Parameters
    ----------
    points
        One per scenario, setting and figure: see `sensitivity.figures`; ``selected`` says whether the setting
        reproduces all figures that select.

    Returns
    -------
    list of dict
        ``scenario``, ``claim``, ``figure``, ``printed``, ``tolerance``; ``settings``, how many there are, ``ran``, how
        many gave a number, ``held``, how many are within the tolerance, ``selected`` and ``held_selected``, the same of
        those that are selected; ``least``, ``median``, ``most``, for people, and ``error_least``, ``error_median``,
        ``error_most``, as shares of what is printed; ``selected_least`` and so on, of those that are selected.
    """
    rows = []
    for own in by(points, "scenario", "asks").values():
        selected = [row for row in own if row["selected"]]
        rows.append(
            {key: own[0][key] for key in ("scenario", "claim", "figure", "printed", "tolerance", "missed")}
            | {"settings": len(own), "held": _held(own)}
            | {"ran": sum(present(row["error"]) or row["holds"] for row in own)}
            | {"selected": len(selected), "held_selected": _held(selected)}
            | _ends(own)
            | {f"selected_{name}": value for name, value in _ends(selected).items()}
        )
    return rows


def _held(rows: ShownRows) -> int:
    return sum(row["holds"] for row in rows)


def _ends(rows: ShownRows) -> dict[str, Any]:
    """The least, the median and the most, for people and as shares of what is printed; nothing if none ran."""
    ran = sorted((row for row in rows if present(row["error"])), key=lambda row: row["error"])
    ends = {"least": 0, "median": len(ran) // 2, "most": -1} if ran else {}
    obtained = {name: ran[at]["obtained"] for name, at in ends.items()}
    return obtained | {f"error_{name}": ran[at]["error"] for name, at in ends.items()}


def _sections(loaded: Loaded, points: ShownRows) -> list[Section]:
    """What is chosen, what each figure becomes, and the settings that are selected."""
    choices, selects = _claim(loaded).choices, _claim(loaded).selects
    own = [row for row in points if row["scenario"] == loaded.scenario.name]
    chosen = [
        Column.texts("  choice", (f"  {one.choice}" for one in choices), left=True),
        Column.texts("values", (", ".join(one.options) for one in choices), left=True),
    ]
    sections = [
        Section(f"{loaded.scenario.name}: {loaded.scenario.title}", chosen),
        *_spread(points, loaded.scenario.name),
    ]
    if selected := [*by((row for row in own if row["selected"]), *(one.choice for one in choices)).values()]:
        settings = selected[:_SHOWN]
        firsts = [rows[0] for rows in settings]
        columns = [_column(one.choice, firsts, left=True) for one in choices]
        columns += [
            _column("obtained", [rows[at] for rows in settings], row["claim"])
            for at, row in enumerate(settings[0])
            if row["figure"] in selects
        ]
        some = f", {_SHOWN} of {len(selected)}" if len(selected) > _SHOWN else ""
        sections.append(Section(f"Selected settings{some}", columns))
    return sections


def _spread(points: ShownRows, scenario: str, head: str = "") -> list[Section]:
    """What each figure of a scenario becomes over all settings, and over those that are selected."""
    rows = distributions([row for row in points if row["scenario"] == scenario])
    columns = [
        texts("  figure", rows, lambda row: f"  {row['claim']}"),
        *(_column(name, rows) for name in ("printed", "least", "median", "most")),
        texts("holds for", rows, lambda row: _of(row["held"], row["ran"]), left=False),
    ]
    if any(row["selected"] for row in rows):
        columns.append(texts("selected", rows, lambda row: _of(row["held_selected"], row["selected"]), left=False))
        columns += [_column(f"selected_{name}", rows, name) for name in ("least", "median", "most")]
    return [Section(head, columns)] if rows else []


def _column(key: str, rows: ShownRows, head: str = "", *, left: bool = False) -> Column:
    return texts(head or key, rows, lambda row: row.get(key, ABSENT), left=left)


def _of(held: int, total: int) -> str:
    return f"{held} of {total}"


def _sentences(loaded: Sequence[Loaded], rows: ShownRows) -> list[str]:
    """Say how many settings reproduce what selects, and what these give for the other figures."""
    selects, bases = [figure for one in loaded for figure in _claim(one).selects], [one.scenario.name for one in loaded]
    names = listed([row["claim"] for row in rows if row["figure"] in selects and row["scenario"] in bases])
    told = []
    for (scenario,), own in by(rows, "scenario").items():
        total, selected = own[0]["settings"], own[0]["selected"]
        if selects and scenario in bases:
            ran = min(row["ran"] for row in own)
            those, listed_too = (" that ran", f"; {total:,} are listed") if ran < total else ("", "")
            share = f"{percent(selected / ran) if ran else ABSENT}{listed_too}"
            held = f"{selected} of {counted(ran, 'setting')}{those} ({share})"
            told.append(f"{scenario}: {held} reproduce {names} together.")
        else:
            told.append(f"{scenario}: {counted(total, 'setting')}.")
        for row in own:
            if selected and (row["figure"] not in selects or scenario not in bases):
                held = f"holds for {row['held_selected']} of {counted(selected, 'selected setting')}"
                chance = f"; of all, for {row['held']} of {row['ran']} ({percent(row['held'] / row['ran'])})"
                by_chance = chance if scenario in bases and row["ran"] else ""
                told.append(f"{row['claim']}, {row['printed']} printed: {held}{by_chance}.")
    return told

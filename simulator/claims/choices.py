"""The sweep of `hosim sensitivity --choices`: a claim under all combinations of choices that its source leaves open.

Nothing continuous is fitted. What is chosen is listed before the run, in the scenario; a figure then holds for so many
of so many settings. Where the claim says which figures select (``selects``), the settings that reproduce all of these
are shown with what they give for the other figures, which were not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product
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
from simulator.run.sweep import Point, Progress, Study, Sweep, sweep
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
    studies, unbuilt = zip(*map(_study, loaded), strict=True)
    found = sweep(studies, workers, progress)
    points = [row for row in found if "figure" in row]
    refused = [*chain(*unbuilt), *(row["notes"] for row in found if "figure" not in row)]
    selections = [_selection(one, points) for one in loaded if _claim(one).selects]
    for row in points:
        row["selected"] = bool(selections) and all(any(_agree(row, one) for one in own) for own in selections)
    rows = distributions(points)
    sections = [section for one in loaded for section in _sections(one, points)]
    told = _sentences(loaded, rows)
    if refused:
        told.append(f"{counted(len(refused), 'combination')} of choices cannot be built, such as: {refused[0]}.")
    return Sweep("choices", loaded, rows, View("Claims over all choices", sections, told), {"points": points})


def _claim(loaded: Loaded) -> Claim:
    return loaded.scenario.claim or Claim(sentence="", source="")


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


def _study(loaded: Loaded) -> tuple[Study, list[str]]:
    """All combinations of choices that a document can state, and why others are no settings."""
    choices = _claim(loaded).choices
    if not choices or not any(one.printed is not None for one in loaded.scenario.expect):
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
    points, refused = list[Point](), list[ConfigError]()
    for setting in settings:
        try:
            builders.check(catalog.at(loaded, dict(zip(axes, setting, strict=True))).workload)
            points.append(setting)
        except ConfigError as error:
            refused.append(error)
    if not points:
        raise refused[0]
    return Study(loaded, figures, axes, points), list(map(str, refused))


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
        ``error_most``, as shares of what is printed.
    """
    rows = []
    for own in by(points, "scenario", "asks").values():
        ran = sorted((row for row in own if present(row["error"])), key=lambda row: row["error"])
        ends = {"least": 0, "median": len(ran) // 2, "most": -1} if ran else {}
        selected = [row for row in own if row["selected"]]
        rows.append(
            {key: own[0][key] for key in ("scenario", "claim", "figure", "printed", "tolerance", "missed")}
            | {"settings": len(own), "ran": len(ran), "held": _held(own)}
            | {"selected": len(selected), "held_selected": _held(selected)}
            | {name: ran[at]["obtained"] for name, at in ends.items()}
            | {f"error_{name}": ran[at]["error"] for name, at in ends.items()}
        )
    return rows


def _held(rows: ShownRows) -> int:
    return sum(row["holds"] for row in rows)


def _sections(loaded: Loaded, points: ShownRows) -> list[Section]:
    """What is chosen, what each figure becomes, and the settings that are selected."""
    choices, own = _claim(loaded).choices, [row for row in points if row["scenario"] == loaded.scenario.name]
    rows = distributions(own)
    chosen = [
        Column.texts("  choice", (f"  {one.choice}" for one in choices), left=True),
        Column.texts("values", (", ".join(one.options) for one in choices), left=True),
    ]
    spread = [
        texts("  figure", rows, lambda row: f"  {row['claim']}"),
        *(_column(head, rows) for head in ("printed", "least", "median", "most")),
        texts("holds for", rows, lambda row: f"{row['held']} of {row['ran']}", left=False),
    ]
    settings = [*by((row for row in own if row["selected"]), *(one.choice for one in choices)).values()][:_SHOWN]
    sections = [Section(f"{loaded.scenario.name}: {loaded.scenario.title}", chosen), Section("", spread)]
    if settings:
        firsts, heads = [rows[0] for rows in settings], [row["claim"] for row in settings[0]]
        columns = [_column(one.choice, firsts, left=True) for one in choices]
        columns += [_column("obtained", [rows[at] for rows in settings], head) for at, head in enumerate(heads)]
        sections.append(Section("Selected settings", columns))
    return sections


def _column(key: str, rows: ShownRows, head: str = "", *, left: bool = False) -> Column:
    return texts(head or key, rows, lambda row: row.get(key, ABSENT), left=left)


def _sentences(loaded: Sequence[Loaded], rows: ShownRows) -> list[str]:
    """Say how many settings reproduce what selects, and what these give for the other figures."""
    selects = [figure for one in loaded for figure in _claim(one).selects]
    names = listed([row["claim"] for row in rows if row["figure"] in selects])
    told = []
    for (scenario,), own in by(rows, "scenario").items():
        total, selected = own[0]["settings"], own[0]["selected"]
        if not selects:
            told.append(f"{scenario}: {counted(total, 'setting')}.")
            continue
        share = f"{selected} of {counted(total, 'setting')} ({percent(selected / total)})"
        told.append(f"{scenario}: {share} reproduce {names} together.")
        told += [
            f"{row['claim']}, {row['printed']} printed: {row['held_selected']} of these {selected} hold, "
            f"and {row['held']} of all {row['ran']} that ran."
            for row in own
            if selected and row["figure"] not in selects
        ]
    return told

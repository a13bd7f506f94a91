"""A claim under all combinations of choices that its source leaves open: ``python tests/choices.py NAME ...``.

Nothing continuous is fitted. The choices are listed in the scenario before the run; the result says for how many of the
settings each figure holds. If the claim names figures that select (``selects``), the settings that reproduce all of
them are shown, with their values of the other figures, which were not used. Other scenarios (``predicts``) run with the
selected settings only. If one of the selecting figures is a peak, known before a run, and screens (``screens``), only
settings that may reproduce it run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sensitivity import compared_to_printed, figures, main, read, screened
from unstated import OpenClaim, Opened, opened

from simulator import builders, catalog
from simulator.catalog import Axis, Loaded
from simulator.errors import ConfigError, insist
from simulator.metrics.figures import present
from simulator.metrics.statistics import by
from simulator.policies import POLICIES
from simulator.report.tables import Column
from simulator.report.views import Row as ShownRow
from simulator.report.views import Rows as ShownRows
from simulator.report.views import Section, SweepView
from simulator.report.words import ABSENT, percent
from simulator.run.sweep import Point, Progress, Rows, Study, Sweep, sweep
from simulator.units import counted, listed, nearest

MOST_SETTINGS = 10_000
"""Most settings of a claim: each is a run of about a second."""
_PLACEBOS = 1024
"""Number of placebo figures, which nobody printed: enough to resolve shares of a thousandth."""
_MIDDLE = (0.05, 0.95)
"""Quantiles of the settings' values between which placebos lie: at the tails they would be easy to miss."""
_SHOWN = 24
"""Most selected settings in the table: about a screen; ``points.csv`` has all."""


def enumerate_choices(
    scenarios: Sequence[str | Path] | None = None, *, workers: int = 1, progress: Progress | None = None
) -> Sweep:
    """Recompute claims under all combinations of the discrete choices that their sources leave open.

    Parameters
    ----------
    scenarios
        Names in the catalogue, or paths that end in ``.yaml``; default: all whose claims list choices.
    workers
        Processes; more than one needs ``if __name__ == "__main__":`` around the call in a script. The result does not
        depend on it.
    progress
        Called after each setting that is tried.

    Returns
    -------
    Sweep
        Points: a verdict per setting and printed figure. Rows: one per figure, see `distributions`.

    Raises
    ------
    ConfigError
        If a document is wrong, or a claim lists no choices or no printed figure.
    """
    loaded = read(scenarios, lambda stated: stated.claim.choices)
    ahead = [[_read_predicted(opened(base), name) for name in _claim(base).predicts] for base in loaded]
    studies = [_study(base, *_choices(base)) for base in loaded]
    for study, refused in studies:
        _insist_values_valid(study, refused)
    listed_by = {study.loaded.scenario.name: len(study.points) for study, _ in studies if _claim(study.loaded).screens}
    studies = [(screened(study, workers, progress), refused) for study, refused in studies]
    points, unbuilt = _measure_settings(studies, workers, progress)
    selections = {base.scenario.name: _selection(base, points) for base in loaded if _claim(base).selects}
    for row in points:
        held_to = [selections[row["scenario"]]] if row["scenario"] in selections else selections.values()
        row["selected"] = bool(held_to) and all(_agrees(row, settings) for settings in held_to)
    sections = [section for base in loaded for section in _sections(base, points)]
    for (study, _), others in zip(studies, ahead, strict=True):
        taken = [setting for setting, rows in _settings(study.loaded, points).items() if rows[0]["selected"]]
        for other in others:
            name = f"{other.scenario.name} with what {study.loaded.scenario.name} selects"
            more, others_unbuilt = _measure_settings([_study(other, study.axes, taken)], workers, progress)
            points += [row | {"scenario": name, "selected": True, "role": ""} for row in more]
            sections += _value_sections(points, name, f"{name}: {other.scenario.title}")
            unbuilt += others_unbuilt
    rows = distributions(points)
    lines = _sentences(loaded, rows, points, listed_by)
    for base in loaded:
        lines += [f"{base.scenario.name} records otherwise: {was}" for was in _counted(base) if was not in lines]
    for name in sorted(listed_by.keys() - {row["scenario"] for row in rows}):
        lines.append(f"{name}: 0 of {counted(listed_by[name], 'setting')} may have the peaks that select.")
    if unbuilt:
        lines.append(f"{counted(len(unbuilt), 'combination')} of choices cannot be built, such as: {unbuilt[0]}.")
    return Sweep("choices", loaded, rows, SweepView("Claims over all choices", sections, lines), {"points": points})


def _agrees(row: ShownRow, settings: Sequence[Mapping[str, Any]]) -> bool:
    return any(all(row.get(choice, value) == value for choice, value in setting.items()) for setting in settings)


def _claim(loaded: Loaded) -> OpenClaim:
    return opened(loaded).claim


def _counted(loaded: Loaded) -> Sequence[str]:
    return loaded.scenario.claim.counted if loaded.scenario.claim else ()


def _read_predicted(stated: Opened, name: str) -> Loaded:
    """Read a scenario that runs with the settings that another one selects."""
    loaded = stated.loaded
    other = catalog.resolve(catalog.path_of(name, "scenario", loaded.scenario_dir))
    must = "what is predicted is another scenario, which prints numbers to compare ours with"
    place, is_other = stated.place("predicts"), other.scenario.name != loaded.scenario.name
    insist(is_other and _has_printed(other), place, must, repr(name), "drop it, or add printed there")
    return other


def _has_printed(loaded: Loaded) -> bool:
    return any(expectation.printed is not None for expectation in loaded.scenario.expect)


def _settings(loaded: Loaded, points: ShownRows) -> dict[Point, list[ShownRow]]:
    """Group the rows of a scenario by setting."""
    rows = (row for row in points if row["scenario"] == loaded.scenario.name)
    return by(rows, *(choice.choice for choice in _claim(loaded).choices))


def _selection(loaded: Loaded, points: ShownRows) -> list[dict[str, Any]]:
    """List the settings (values by choice) of a scenario that reproduce all selecting figures."""
    names, settings = [choice.choice for choice in _claim(loaded).choices], _settings(loaded, points).items()
    held = [setting for setting, rows in settings if all(row["holds"] for row in rows if row["role"] == SELECTS)]
    return [dict(zip(names, setting, strict=True)) for setting in held]


def _choices(loaded: Loaded) -> tuple[tuple[Axis, ...], list[Point]]:
    """Return an axis for each choice of a claim, and all settings."""
    stated = opened(loaded)
    choices, where = stated.claim.choices, stated.place("choices")
    must = "a claim lists choices, and prints numbers to compare ours with"
    do = "list them under choices, with their values, and add printed to an expectation"
    insist(choices and _has_printed(loaded), loaded.place("claim"), must, "none", do)
    places = [stated.place("choices", str(index)) for index in range(len(choices))]
    axes = tuple(Axis(c.choice, c.fields, place, values=c.options) for c, place in zip(choices, places, strict=True))
    settings = [*product(*(choice.options for choice in choices))]
    must, found = f"choices have at most {MOST_SETTINGS:,} combinations", f"{len(settings):,}"
    insist(len(settings) <= MOST_SETTINGS, where, must, found, "list fewer values")
    return axes, settings


Stated = tuple[Study, dict[Point, ConfigError]]
"""The study of the settings that are valid documents, and the errors of the others."""


def _study(loaded: Loaded, axes: tuple[Axis, ...], settings: Sequence[Point]) -> Stated:
    """Make the study of the settings that are valid documents, and return the errors of the others."""
    points, refused, place = list[Point](), dict[Point, ConfigError](), opened(loaded).place("choices")
    for setting in settings:
        try:
            stated = catalog.at(loaded, dict(zip(axes, setting, strict=True)))
            if not _claim(loaded).screens:  # settings left after screening are checked before they run
                builders.check(stated.workload)
            for row in stated.scenario.policies:
                must, do = "a policy is one that hosim has", nearest(row.policy, tuple(POLICIES))
                insist(row.policy in POLICIES or row.is_file, place, must, repr(row.policy), do)
                _ = row.is_file or POLICIES[row.policy].read_options(row.options)
            points.append(setting)
        except ConfigError as error:
            refused[setting] = error
    probes = None if _claim(loaded).screens else ()  # unscreened settings were checked above
    return Study(loaded, judged_setting, axes, points, probes=probes), refused


def _insist_values_valid(study: Study, refused: Mapping[Point, ConfigError]) -> None:
    """Refuse a value that no valid setting has: it is a mistake in the list, and must not just reduce the settings."""
    for index, axis in enumerate(study.axes):
        for value in axis.values:
            if all(point[index] != value for point in study.points):
                raise next(error for setting, error in refused.items() if setting[index] == value)


SELECTS, FOLLOWS, ALIKE = "selects", "follows", "alike"
"""Roles of a figure: it selects settings; follows from selecting figures, being made of their columns; or is alike in
all settings."""


def judged_setting(loaded: Loaded, point: Point) -> Rows:
    """Judge a setting, and give each figure its role.

    Parameters
    ----------
    loaded, point
        The documents at a setting.

    Returns
    -------
    list of dict
        As from `sensitivity.figures`, with ``role``, and ``fits``: whether a peak fits in the machine's compute tier,
        which rows may enlarge for themselves.
    """
    machine, compared, selects = loaded.hardware, compared_to_printed(loaded), _claim(loaded).selects
    made_of = [{(row, expectation.column) for row in expectation.rows.values()} for expectation in compared]
    pairs = list(zip(compared, made_of, strict=True))
    alone = set().union(*(cells for expectation, cells in pairs if expectation.figure in selects and len(cells) == 1))
    peak, room = f"peak_{machine.compute_tier}_bytes", machine.tiers[machine.compute_tier].usable_bytes
    rows = figures(loaded, point)
    for row, (expectation, cells) in zip(rows, pairs, strict=True):
        row["role"] = SELECTS if expectation.figure in selects else FOLLOWS if cells <= alone else ""
        is_peak = expectation.column == peak and expectation.over is None and row["error"] is not None
        row["fits"] = not is_peak or float(expectation.ends("printed")[0]) * (1 + row["error"]) <= room
    return rows


def _measure_settings(studies: Sequence[Stated], workers: int, progress: Progress | None) -> tuple[Rows, list[str]]:
    """Measure settings; return the rows of printed figures, and why other settings cannot be built."""
    rows = sweep([study for study, _ in studies], workers, progress)
    unbuilt = [str(error) for _, refused in studies for error in refused.values()]
    unbuilt += [row["notes"] for row in rows if "figure" not in row]
    return [row for row in rows if "figure" in row], unbuilt


def distributions(points: ShownRows) -> list[dict[str, Any]]:
    """Summarise the values of each printed figure over all settings.

    Parameters
    ----------
    points
        One per scenario, setting and figure: see `sensitivity.figures`; ``selected`` says whether the setting
        reproduces all selecting figures.

    Returns
    -------
    list of dict
        ``scenario``, ``claim``, ``figure``, ``printed``, ``tolerance``; the numbers of ``settings``, of those that
        ``ran`` (gave a value) and ``held`` (were within the tolerance), and of ``selected`` and ``held_selected`` ones;
        ``role``, `ALIKE` if the figure is the same in all settings; ``least``, ``median``, ``most``, for people, and
        ``error_least``, ``error_median``, ``error_most``, as shares of the printed figure; ``selected_least`` and so
        on, over the selected settings.
    """
    rows = []
    for group in by(points, "scenario", "asks").values():
        selected = [row for row in group if row["selected"]]
        is_alike = (
            group[0]["error"] is not None and len({row["error"] for row in group}) == 1 and len(selected) < len(group)
        )
        rows.append(
            {key: group[0][key] for key in ("scenario", "claim", "figure", "printed", "tolerance", "missed")}
            | {"role": group[0]["role"] or ALIKE * is_alike}
            | {"settings": len(group), "held": _count_held(group), "ran": sum(map(_ran, group))}
            | {"selected": len(selected), "held_selected": _count_held(selected)}
            | _extremes(group)
            | {f"selected_{name}": value for name, value in _extremes(selected).items()}
        )
    return rows


def _ran(row: ShownRow) -> bool:
    return row["holds"] or present(row["error"])


def _count_held(rows: ShownRows) -> int:
    return sum(row["holds"] for row in rows)


def _extremes(rows: ShownRows) -> dict[str, Any]:
    """Return least, median and most, for people and as shares of the printed figure; nothing if none ran."""
    ran = sorted((row for row in rows if present(row["error"])), key=lambda row: row["error"])
    ends = {"least": ran[0], "median": ran[len(ran) // 2], "most": ran[-1]} if ran else {}
    obtained = {name: row["obtained"] for name, row in ends.items()}
    return obtained | {f"error_{name}": row["error"] for name, row in ends.items()}


def _sections(loaded: Loaded, points: ShownRows) -> list[Section]:
    """Show the choices, the values of each figure, and the selected settings."""
    choices = _claim(loaded).choices
    chosen = [
        Column("  choice", (f"  {choice.choice}" for choice in choices), left=True),
        Column("values", (", ".join(choice.options) for choice in choices), left=True),
    ]
    story = loaded.scenario
    sections = [Section(f"{story.name}: {story.title}", chosen), *_value_sections(points, story.name)]
    if selected := [rows for rows in _settings(loaded, points).values() if rows[0]["selected"]]:
        settings, distinct = selected[:_SHOWN], {_outcome(rows) for rows in selected}
        columns = [_column(choice.choice, [rows[0] for rows in settings], left=True) for choice in choices]
        by_figure = [rows for rows in zip(*settings, strict=True) if rows[0]["role"] == SELECTS]
        columns += [_column("obtained", rows, rows[0]["claim"]) for rows in by_figure]
        some = f", {_SHOWN} of {len(selected)}" if len(selected) > _SHOWN else ""
        alike = f"; {counted(len(distinct), 'outcome')}" if distinct != {()} and len(distinct) < len(selected) else ""
        sections.append(Section(f"Selected settings{some}{alike}", columns))
    return sections


def _value_sections(points: ShownRows, scenario: str, head: str = "") -> list[Section]:
    """Show the values of each figure of a scenario over all settings, and over the selected ones."""
    rows = distributions([row for row in points if row["scenario"] == scenario])
    columns = [
        Column("  figure", (f"  {row['claim']}" for row in rows)),
        *(_column(name, rows) for name in ("printed", "least", "median", "most")),
        Column("holds for", map(_holds_for, rows), left=False),
    ]
    if any(row["selected"] for row in rows):
        held = [row["role"] or f"{row['held_selected']} of {row['selected']}" for row in rows]
        columns.append(Column("selected", held, left=False))
        columns += [_column(f"selected_{name}", rows, name) for name in ("least", "median", "most")]
    return [Section(head, columns)] if rows else []


def _holds_for(row: ShownRow) -> str:
    if row["role"] == ALIKE:
        return "any choice" if row["held"] else "no choice"
    return f"{row['held']} of {row['ran']}"


def _column(key: str, rows: ShownRows, head: str = "", *, left: bool = False) -> Column:
    return Column(head or key, (row.get(key, ABSENT) for row in rows), left=left)


def _sentences(loaded: Sequence[Loaded], rows: ShownRows, points: ShownRows, listed_by: Mapping[str, int]) -> list[str]:
    """Say how many settings reproduce the selecting figures, and whether the other figures hold for these."""
    bases, lines = {base.scenario.name: base for base in loaded}, []
    who = listed([name for name, base in bases.items() if _claim(base).selects])
    for (scenario,), group in by(rows, "scenario").items():
        total, selected, ran = group[0]["settings"], group[0]["selected"], min(row["ran"] for row in group)
        names = listed([row["claim"] for row in group if row["role"] == SELECTS])
        if not who or scenario not in bases:
            lines.append(f"{scenario}: {counted(total, 'setting')}.")
        elif scenario in listed_by:
            many = listed_by[scenario]
            share = f"{selected:,} of {counted(many, 'setting')} ({percent(selected / many)})"
            lines.append(f"{scenario}: {share} reproduce {names} together; {total:,} were run, the others cannot.")
        else:
            settings = [of_it for of_it in _settings(bases[scenario], points).values() if all(map(_ran, of_it))]
            fit = [of_it for of_it in settings if all(row["fits"] for row in of_it)]
            those = " that fit the device" if len(fit) < len(settings) else " that ran" if ran < total else ""
            of, held = len(fit) if settings else ran, sum(of_it[0]["selected"] for of_it in fit)
            share = f"{percent(held / of) if of else ABSENT}{f'; {total:,} are listed' if of < total else ''}"
            did = f"reproduce {names} together" if names else f"agree with what {who} selects"
            lines.append(f"{scenario}: {held} of {counted(of, 'setting')}{those} ({share}) {did}.")
            lines += _chance_sentences(settings, fit) if names else []
        for row in group if selected else ():
            if row["role"] == ALIKE:
                holds = "holds" if row["held"] else "does not hold"
                lines.append(
                    f"{row['claim']}, {row['printed']} printed: {holds}, and depends on none of these choices."
                )
            elif row["role"] != SELECTS:
                how = "follows from what selects," if row["role"] == FOLLOWS else "holds for"
                held = f"{how} {row['held_selected']} of {counted(selected, 'selected setting')}"
                is_base = scenario in bases and scenario not in listed_by and row["ran"]
                by_chance = f"; of all, for {_share(row['held'], row['ran'])}" if is_base else ""
                lines.append(f"{row['claim']}, {row['printed']} printed: {held}{by_chance}.")
    return lines


def _chance_sentences(ran: Sequence[ShownRows], fit: Sequence[ShownRows]) -> list[str]:
    """Say how many distinct settings are selected, how many do not fit, and how many a placebo would select."""
    unique = {_outcome(rows): rows[0]["selected"] for rows in ran}
    lines = [f"Settings whose figures that select are equal count once: {_share(sum(unique.values()), len(unique))}."]
    if len(fit) < len(ran):
        lines.append(f"{_share(len(ran) - len(fit), len(ran))} fit no device, as a peak is above what it has.")
    return [*lines, *_placebo(fit)]


def _outcome(rows: ShownRows) -> tuple[float | None, ...]:
    """Return the errors of the selecting figures, as shares of the printed ones."""
    return tuple(row["error"] for row in rows if row["role"] == SELECTS)


def _placebo(settings: Sequence[ShownRows]) -> list[str]:
    """Say how often placebos would have been reproduced: figures from a grid over the settings' own values.

    The first figure, and the ratio of each other figure to the first, are spaced evenly in their logarithms over the
    middle nine tenths of these settings, so no placebo has a value that is rare or that no setting has.
    """
    outcomes = np.array([[1 + (error or 0) for error in _outcome(rows)] for rows in settings])
    if len(outcomes) < 2 or outcomes.min() <= 0:
        return []
    logs = np.log(outcomes)
    logs[:, 1:] -= logs[:, :1]
    ends, within = np.quantile(logs, _MIDDLE, axis=0), [row["within"] for row in settings[0] if row["role"] == SELECTS]
    aims = np.array([*product(*np.linspace(ends[0], ends[1], round(_PLACEBOS ** (1 / len(within)))).T)])
    aims[:, 1:] += aims[:, :1]
    hits = np.array([(abs(outcomes / aim - 1) <= within).all(axis=1).sum() for aim in np.exp(aims)])
    held = max(sum(rows[0]["selected"] for rows in settings), 1)
    hit, many, mean = (
        percent(share) for share in ((hits > 0).mean(), (hits >= held).mean(), hits.mean() / len(outcomes))
    )
    tried = (
        f"{len(aims):,} other sets of figures, over the middle nine tenths of what these settings give, some setting"
    )
    return [f"Placebo: for {hit} of {tried} matches, too; for {many} of them {held} or more do; {mean} do on average."]


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({percent(part / whole) if whole else ABSENT})"


if __name__ == "__main__":
    main(enumerate_choices)

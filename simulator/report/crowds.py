"""What a person would say about ranks that crowd what they share."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.report.rows import Row, is_ok, listed, present, quantity

_CROWDED = 1.05
"""Transfers that take so many times as long as alone are told of."""


def crowded(rows: Sequence[Row]) -> list[str]:
    """Say what ranks crowd: how much longer transfers take than alone, how many pull at once, and who takes turns.

    Parameters
    ----------
    rows
        The rows.

    Returns
    -------
    list of str
        Parts of sentences; none if no transfers take much longer than alone.
    """
    running = [row for row in rows if is_ok(row)]
    worst = _largest(running, "crowding_")
    if worst is None or worst[0] <= _CROWDED:
        return _turns(running)
    link = worst[1]
    slow = [(row, float(row.summary.get(f"crowding_{link}") or 0)) for row in running]
    times = [f"{factor:.2f} times as long as alone under {row.label}" for row, factor in slow if factor > _CROWDED]
    said = [f"ranks crowd what they share: transfers over {link} take {listed(times)}"]
    machine = rows[0].hardware
    buses = [name for name, bus in machine.buses.items() if link in machine.passing(bus.links)]
    asked = _largest(running, *(f"demand_{bus}" for bus in buses))
    return [*said, *([] if asked is None else [_pulling(running, asked[1])]), *_turns(running)]


def _turns(rows: Sequence[Row]) -> list[str]:
    """Under which rows ranks begin one after another."""
    late = [(row.label, row.plan.starts_ns) for row in rows if row.plan is not None and any(row.plan.starts_ns)]
    parts = [f"{len(starts)} turns under {label}, up to {quantity(max(starts), 'ns')} late" for label, starts in late]
    return [f"ranks begin in {listed(parts)}, once"] if parts else []


def _largest(rows: Sequence[Row], *starts: str) -> tuple[float, str] | None:
    """The largest figure in columns with such a name, and the rest of the name after the first underscore."""
    found = [
        (float(value), column.partition("_")[2])
        for row in rows
        for column, value in row.summary.items()
        if starts and column.startswith(starts) and present(value)
    ]
    return max(found, default=None)


def _pulling(rows: Sequence[Row], bus: str) -> str:
    """How many transfers pull on a bus at once, and how much more than it carries they ask for, row by row."""
    groups: dict[tuple[int, float], list[str]] = {}
    for row in rows:
        if present(row.summary.get(f"demand_{bus}")):
            found = row.summary[f"pulling_{bus}"], row.summary[f"demand_{bus}"]
            groups.setdefault(found, []).append(row.label)
    parts = [
        f"{count:,} transfers that ask for {demand:.2f} times what it carries under {listed(labels)}"
        for (count, demand), labels in groups.items()
    ]
    return f"at once, {bus} has up to {listed(parts)}"

"""A timeline as a page draws it by itself: bars and memory as numbers, in few bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.columns import NONE, Ints, lasts
from simulator.graph import Graph
from simulator.report.readings import Usage
from simulator.report.rows import Row
from simulator.report.timeline import COPIES, Scene, kind_name, scene
from simulator.trace import Block


def zoomable(row: Row, most: int) -> dict[str, Any] | None:
    """Write what `simulator.report.timeline.timeline` draws as numbers; None if there are too many.

    Parameters
    ----------
    row
        A row with a trace.
    most
        So many bars and changes of memory are shown, and no more.

    Returns
    -------
    dict
        ``from``, ``to`` [ns]; ``looks``, each with its colour, and those that are ``shown``; ``names``; ``lanes``;
        ``bands`` of lanes, whose bars have a ``gap`` to the one before [ns], a ``length`` [ns], a ``look`` and a
        ``name``; ``memories``, with a ``gap`` between changes [ns] and the ``change`` of each kind [B].
    """
    shown = scene(row)
    bars = [one for parts in shown.lanes.values() for _, one in parts]
    memories = [_memory(shown, usage) for usage in shown.memories]
    if sum(len(one["look"]) for one in bars) + sum(len(one["gap"]) for one in memories) > most:
        return None
    names: dict[str, int] = {}
    bands: list[dict[str, Any]] = []
    for lane, (view, parts) in enumerate(zip(_whose(shown), shown.lanes.values(), strict=True)):
        for (top, bottom), one in parts:
            bands.append({"lane": lane, "top": top, "high": bottom - top, **_bars(view.graph, one, names)})
    looks = {number for band in bands for number in band["look"]} | {k for one in memories for k in one["kinds"]}
    return {
        "from": shown.first,
        "to": shown.last,
        "looks": list(shown.looks.items()),
        "shown": sorted(looks),
        "names": list(names),
        "lanes": list(shown.lanes),
        "bands": bands,
        "memories": memories,
    }


def _whose(shown: Scene) -> list[Row]:
    """The rank that each lane is of."""
    return shown.views if len(shown.views) > 1 else shown.views * len(shown.lanes)


def _bars(graph: Graph, bars: Block, names: dict[str, int]) -> dict[str, list[int]]:
    """The bars of a band by start; names that are new are added."""
    order = np.argsort(bars["start_ns"], kind="stable")
    start, end, look, item, lacks, lane, is_wait = (
        bars[column][order] for column in ("start_ns", "end_ns", "look", "item", "lacks", "lane", "is_wait")
    )
    told = []
    copies: list[bool] = ((lane >= COPIES) & (is_wait == 0)).tolist()
    for number, tensor, is_copy in zip(item.tolist(), lacks.tolist(), copies, strict=True):
        name = graph.tensors[number].name if is_copy else graph.ops[number].name
        lacked = f" lacks {graph.tensors[tensor].name}" if tensor != NONE else ""
        told.append(names.setdefault(name + lacked, len(names)))
    return {"gap": _gaps(start, end), "length": (end - start).tolist(), "look": look.tolist(), "name": told}


def _gaps(start: Ints, end: Ints) -> list[int]:
    """How long after the end of the one before each begins [ns]; below 0 if they overlap."""
    found: list[int] = (start - np.append(0, end[:-1])).tolist()
    return found


def _memory(shown: Scene, usage: Usage) -> dict[str, Any]:
    """What lies in a tier, from change to change within the window."""
    at = np.flatnonzero(lasts(usage.time_ns))
    at = at[max(0, np.searchsorted(usage.time_ns[at], shown.first, "right") - 1) :]
    held, looks = usage.kind_bytes[usage.kinds][:, at], [*shown.looks]
    return {
        "tier": usage.tier,
        "limit": usage.limit_bytes if usage.allowed else 0,
        "allowed": usage.allowed,
        "kinds": [looks.index(kind_name(kind)) for kind in usage.kinds],
        "gap": np.diff(usage.time_ns[at], prepend=0).tolist(),
        "change": np.diff(held, prepend=0).tolist(),
    }

"""Makes tables with names, one line for each span, wait, change of memory, or residency; and breaks down peaks."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.graph import Graph, Job, TensorKind
from simulator.hardware import Hardware
from simulator.metrics.figures import figure_of
from simulator.metrics.ranks import by_rank
from simulator.metrics.steps import Instances, with_steps
from simulator.outputs import written
from simulator.plan import COMPUTE
from simulator.trace import CAUSES, Block, Trace, ordinals, pick, running

if TYPE_CHECKING:
    import pandas as pd


Columns = dict[str, Any]
"""A table before it is a data frame: column name -> values, as a list or an array."""


@dataclass(frozen=True, slots=True)
class Frames:
    """The tables of one run, each made when it is asked for.

    Only ranks that were simulated have rows, except in `ranks`.

    Attributes
    ----------
    what
        What ran: a job, or the graph of all ranks.
    """

    what: Graph | Job
    hardware: Hardware
    trace: Trace

    @property
    def job(self) -> Job:
        """The job that ran."""
        return self.what if isinstance(self.what, Job) else Job.of(self.what, len(self.trace.issued))

    def spans(self) -> pd.DataFrame:
        """Make a table of the computes and transfers, by start, then rank and issue.

        Returns
        -------
        DataFrame
            ``rank``; ``step`` (training step, from 0); ``kind`` (compute, delay or transfer); ``name``
            (``step1/L03/fwd/...``, a second compute of an op in a step is ``...#2``; for a transfer the tensor);
            ``track`` (``stream 0`` or the link); ``channel``; ``phase``; ``source`` and ``target`` tier; ``issue``;
            ``issued_ns``, ``start_ns``, ``end_ns``; ``size_bytes`` of a transfer.
        """
        return _frame(self.columns("spans"))

    def waits(self) -> pd.DataFrame:
        """Make a table of the waits of the compute streams, by start, then rank and stream.

        Returns
        -------
        DataFrame
            ``rank``, ``stream``, ``step``; ``op`` that waited, named as in `spans`; ``cause``; ``tensor`` that it
            lacked; ``on``, the link (cause transfer), tier (capacity) or rank (peer) that it waited for; ``blocker``,
            the tensor, or the collective, under way; ``issue``, ``start_ns``, ``end_ns``. Empty names where there is
            none.
        """
        return _frame(self.columns("waits"))

    def residencies(self) -> pd.DataFrame:
        """Make a table of the residencies of tensors (and workspaces) in tiers, by start.

        Returns
        -------
        DataFrame
            ``rank``, ``tensor``, ``kind``, ``tier``, ``start_ns``, ``end_ns``, ``size_bytes``. What is still held ends
            with the run.
        """
        return _frame(self.columns("residencies"))

    def ranks(self) -> pd.DataFrame:
        """Make a table of the ranks, one line each; times are of the measured step.

        Returns
        -------
        DataFrame
            ``rank``; ``stands_in``, the rank that was simulated in its place (itself unless ranks were folded);
            ``program``, what it runs; and the columns of `by_rank`, where the peak of a shared tier counts only what
            the rank itself holds.
        """
        return frame(self._rows())

    def write(self, table: str, path: Path) -> None:
        """Write a table as CSV, which needs no pandas.

        Parameters
        ----------
        table
            Name of the method that makes it.
        path
            The file.
        """
        columns = self.columns(table)
        with written(path) as (part,), part.open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(columns)
            plain = (column.tolist() if isinstance(column, np.ndarray) else column for column in columns.values())
            lines.writerows(zip(*plain, strict=True))

    def columns(self, table: str) -> Columns:
        """Make a table as columns by name, which needs no pandas.

        Parameters
        ----------
        table
            Name of the method that makes it.
        """
        end_ns = int(self.trace.spans.whole()["end_ns"].max(initial=0))
        make: dict[str, Callable[[], Columns]] = {
            "spans": partial(self._joined, _spans, ("issue", "rank", "start_ns")),
            "waits": partial(self._joined, _waits, ("stream", "rank", "start_ns")),
            "residencies": partial(self._joined, partial(_residencies, end_ns), ("rank", "start_ns")),
            "memory": self._memory,
            "ranks": self._ranks,
        }
        return make[table]()

    def _rows(self) -> list[dict[str, Any]]:
        job, rows = self.job, by_rank(self.job, self.hardware, self.trace)
        for rank, (by, graph_id) in enumerate(zip(self.trace.stands_in, job.graph_of, strict=True)):
            rows[rank] = {"rank": rank, "stands_in": by, "program": job.labels[graph_id], **rows[rank]}
        return rows

    def _ranks(self) -> Columns:
        rows = self._rows()
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def _joined(self, make: Callable[[Graph, Hardware, Trace], Columns], keys: tuple[str, ...]) -> Columns:
        """Join the tables of all simulated ranks, sorted by these columns, the last of which counts most."""
        parts = []
        for rank, (alone, by) in enumerate(zip(self.trace.by_rank(), self.trace.stands_in, strict=True)):
            if by == rank:
                parts.append(make(self.job.graph(rank), self.hardware, alone))
                parts[-1]["rank"] = np.full(len(parts[-1]["rank"]), rank)
        if len(parts) == 1:
            return parts[0]
        joined = {name: list(chain.from_iterable(part[name] for part in parts)) for name in parts[0]}
        order = np.lexsort([joined[key] for key in keys]).tolist()
        return {name: [values[i] for i in order] for name, values in joined.items()}

    def memory(self) -> pd.DataFrame:
        """Make a table of what each tier holds, with a line for each change, in order.

        Returns
        -------
        DataFrame
            ``time_ns``, ``rank``, ``tier``, ``kind`` of the tensor whose place was taken or freed, ``kind_bytes`` held
            of this kind and ``used_bytes`` held in all after the change, in the rank's instance of the tier. A peak may
            lie between changes of one instant: keep them all.
        """
        return _frame(self.columns("memory"))

    def _memory(self) -> Columns:
        rows, instances, job = self.trace.residencies.whole(), Instances(self.hardware, self.trace), self.job
        held = [*zip(rows["rank"].tolist(), rows["tensor"].tolist(), strict=True)]
        kind_at = {(rank, tensor): kind_of(job.graph(rank), tensor) for rank, tensor in set(held)}
        kinds, tiers = [*map(kind_at.__getitem__, held)], self.hardware.tier_names
        different, kind = np.unique(kinds, return_inverse=True)
        instance, delta = instances.of(rows), instances.delta_bytes(rows)
        return {
            "time_ns": rows["time_ns"],
            "rank": rows["rank"],
            "tier": [tiers[i] for i in rows["tier"].tolist()],
            "kind": kinds,
            "kind_bytes": running(instance * len(different) + kind, delta),
            "used_bytes": running(instance, delta),
        }


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Make a table of rows; whole numbers stay whole, even if a row lacks one, and a figure that all lack is one."""
    table = _frame(rows)

    def is_whole(name: Any, kind: str) -> bool:
        is_counted = bool(figure_of(name).meaning) and figure_of(name).unit in ("ns", "B", "count")
        may_lack = kind == "f" or (kind == "O" and is_counted)
        return kind == "i" or (may_lack and all(type(row.get(name)) in (int, type(None)) for row in rows))

    return table.astype({name: "Int64" for name, dtype in table.dtypes.items() if is_whole(name, dtype.kind)})


def _frame(rows: Columns | Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415 - slow to import, and needed for nothing else

    return pd.DataFrame(rows)


def _spans(graph: Graph, hardware: Hardware, trace: Trace) -> Columns:
    spans = _sorted(with_steps(graph, hardware, trace)[0], "start_ns", "rank", "issue")
    compute = spans["kind"] == COMPUTE
    links = [*hardware.links.items()]
    item, track = spans["item"].tolist(), spans["track"].tolist()
    named = zip(compute.tolist(), item, spans["step"].tolist(), spans["run"].tolist(), strict=True)
    names = [f"step{k}/{op_name(graph, i, n)}" if c else graph.tensors[i].name for c, i, k, n in named]
    return {
        "rank": spans["rank"],
        "step": spans["step"],
        "kind": np.select([compute & np.isin(item, [*graph.delays]), compute], ["delay", "compute"], "transfer"),
        "name": names,
        "track": [f"stream {k}" if c else links[k][0] for c, k in zip(compute, track, strict=True)],
        "channel": spans["channel"],
        "phase": [graph.ops[i].phase if c else "" for c, i in zip(compute, item, strict=True)],
        "source": [None if c else links[k][1].source for c, k in zip(compute, track, strict=True)],
        "target": [None if c else links[k][1].target for c, k in zip(compute, track, strict=True)],
        "issue": spans["issue"],
        "issued_ns": spans["issued_ns"],
        "start_ns": spans["start_ns"],
        "end_ns": spans["end_ns"],
        "size_bytes": [0 if c else graph.tensors[i].size_bytes for c, i in zip(compute, item, strict=True)],
    }


def _waits(graph: Graph, hardware: Hardware, trace: Trace) -> Columns:
    waits = _sorted(with_steps(graph, hardware, trace)[1], "start_ns", "rank", "stream")
    tensors, causes = [*(t.name for t in graph.tensors), ""], waits["cause"].tolist()
    ops = zip(waits["op"].tolist(), waits["step"].tolist(), waits["run"].tolist(), strict=True)
    on = zip(causes, waits["on"].tolist(), strict=True)
    blockers = zip(causes, waits["blocker"].tolist(), strict=True)
    under_way = [graph.ops if cause in ("collective", "host_compute") else graph.tensors for cause in CAUSES]
    return {
        "rank": waits["rank"],
        "stream": waits["stream"],
        "step": waits["step"],
        "op": [f"step{step}/{op_name(graph, op, run)}" for op, step, run in ops],
        "cause": [CAUSES[i] for i in causes],
        "tensor": [tensors[i] for i in waits["tensor"].tolist()],
        "on": [place_name(hardware, cause, i) for cause, i in on],
        "blocker": [under_way[cause][i].name if i >= 0 else "" for cause, i in blockers],
        "issue": waits["issue"],
        "start_ns": waits["start_ns"],
        "end_ns": waits["end_ns"],
    }


def place_name(hardware: Hardware, cause: int, on: int) -> str:
    """Name the link, tier or rank that a wait with this cause was for; empty if it has none."""
    if on < 0:
        return ""
    if CAUSES[cause] == "peer":
        return f"rank {on}"
    is_tier = CAUSES[cause] in ("capacity", "compaction")
    return hardware.tier_names[on] if is_tier else hardware.link_names[on]


def _residencies(end_ns: int, graph: Graph, hardware: Hardware, trace: Trace) -> Columns:
    rows = trace.residencies.whole()
    place, is_taken = rows["tensor"] * len(hardware.tiers) + rows["tier"], rows["delta_bytes"] > 0
    taken, freed = place[is_taken], place[~is_taken]
    order, ends = np.argsort(taken, kind="stable"), np.full(len(taken), end_ns)
    ends[order[np.searchsorted(taken, freed, sorter=order) + ordinals(freed)]] = rows["time_ns"][~is_taken]
    stays = {name: values.tolist() for name, values in pick(rows, is_taken).items()}
    return {
        "rank": stays["rank"],
        "tensor": [_name_of(graph, t) for t in stays["tensor"]],
        "kind": [kind_of(graph, t) for t in stays["tensor"]],
        "tier": [hardware.tier_names[tier] for tier in stays["tier"]],
        "start_ns": stays["time_ns"],
        "end_ns": ends.tolist(),
        "size_bytes": stays["delta_bytes"],
    }


def _sorted(rows: Block, *keys: str) -> Block:
    """Return rows sorted by these columns, the first of which counts most."""
    return pick(rows, np.lexsort([rows[key] for key in reversed(keys)]))


def op_name(graph: Graph, op: int, run: int) -> str:
    """Name a compute: the op, and from its second run in the step on ``#2`` and so on."""
    return graph.ops[op].name + (f"#{run}" if run > 1 else "")


@dataclass(frozen=True, slots=True)
class Peak:
    """What a tier holds when it is fullest.

    Attributes
    ----------
    tier, time_ns, used_bytes
        Where, when [ns] and how much [B].
    by_kind
        Tensor kind -> bytes, the largest first.
    largest
        ``(tensor name or workspace of an op, bytes)``, the largest first.
    """

    tier: str
    time_ns: int
    used_bytes: int
    by_kind: dict[str, int]
    largest: tuple[tuple[str, int], ...]


def peak_breakdown(graph: Graph, hardware: Hardware, trace: Trace, tier: str, most: int = 10) -> Peak:
    """Find what rank 0's instance of a tier holds when it is fullest for the first time.

    Parameters
    ----------
    graph, hardware, trace
        The graph, the machine and the trace.
    tier
        Name of the tier.
    most
        How many of the largest are named.
    """
    rows = trace.residencies.whole()
    is_in_tier = rows["tier"] == hardware.tier_names.index(tier)
    if hardware.tiers[tier].scope == "device":
        is_in_tier &= rows["rank"] == 0
    time, rank, tensor, delta = (rows[name][is_in_tier] for name in ("time_ns", "rank", "tensor", "delta_bytes"))
    if not len(delta):
        return Peak(tier, 0, 0, {}, ())
    used = np.cumsum(delta)
    fullest = int(used.argmax())
    held, by_kind = Counter[tuple[int, int]](), Counter[str]()
    for t, holder, size in zip(*(column[: fullest + 1].tolist() for column in (tensor, rank, delta)), strict=True):
        held[t, holder] += size
    largest = sorted(((-size, t, holder) for (t, holder), size in held.items() if size))
    for size, t, _ in largest:
        by_kind[kind_of(graph, t)] -= size
    names = tuple((_name_of(graph, t), -size) for size, t, _ in largest[:most])
    return Peak(tier, int(time[fullest]), int(used[fullest]), dict(by_kind.most_common()), names)


def kind_of(graph: Graph, tensor: int) -> str:
    """Return the kind of a tensor by its id in the residencies; negative ids are workspaces."""
    return graph.tensors[tensor].kind.value if tensor >= 0 else TensorKind.WORKSPACE.value


def _name_of(graph: Graph, tensor: int) -> str:
    """Name a tensor by its id in the residencies; negative ids are workspaces."""
    return graph.tensors[tensor].name if tensor >= 0 else f"workspace of {graph.ops[-1 - tensor].name}"

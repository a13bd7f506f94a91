"""Tidy tables with names: one line a span, a wait, a change of memory, a stay of a tensor in a tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.graph import Graph, TensorKind
from simulator.hardware import Hardware
from simulator.metrics.peaks import name_of
from simulator.metrics.steps import run_numbers, steps_of
from simulator.plan import COMPUTE
from simulator.trace import CAUSES, Block, Trace

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Frames:
    """The tables of one run; each is made when it is asked for.

    Attributes
    ----------
    graph, hardware, trace
        What ran, where, and what happened.
    """

    graph: Graph
    hardware: Hardware
    trace: Trace

    def spans(self) -> pd.DataFrame:
        """Make a table of the computes and transfers, by start, then rank and issue.

        Returns
        -------
        DataFrame
            ``rank``; ``step`` (training step, from 0); ``kind`` (compute or transfer); ``name`` (``step1/L03/fwd/...``,
            a second compute of an op in a step is ``...#2``; for a transfer the tensor); ``track`` (``stream 0`` or the
            link); ``channel``; ``phase``; ``source`` and ``target`` tier; ``issue``; ``issued_ns``, ``start_ns``,
            ``end_ns``; ``size_bytes`` of a transfer.
        """
        import pandas as pd  # noqa: PLC0415 - slow to import, and not needed for the summary

        runs, _ = run_numbers(self.graph, self.hardware, self.trace)
        spans = _sorted({**self.trace.spans.whole(), "run": runs}, "start_ns", "rank", "issue")
        steps = steps_of(self.graph, self.hardware, self.trace, spans)
        compute = spans["kind"] == COMPUTE
        links = [*self.hardware.links.items()]
        item, track = spans["item"].tolist(), spans["track"].tolist()
        named = zip(compute.tolist(), item, steps.tolist(), spans["run"].tolist(), strict=True)
        names = [f"step{k}/{op_name(self.graph, i, n)}" if c else self.graph.tensors[i].name for c, i, k, n in named]
        ends = [
            (None, None) if c else (links[k][1].source, links[k][1].target) for c, k in zip(compute, track, strict=True)
        ]
        return pd.DataFrame(
            {
                "rank": spans["rank"],
                "step": steps,
                "kind": np.where(compute, "compute", "transfer"),
                "name": names,
                "track": [f"stream {k}" if c else links[k][0] for c, k in zip(compute, track, strict=True)],
                "channel": spans["channel"],
                "phase": [self.graph.ops[i].phase if c else "" for c, i in zip(compute, item, strict=True)],
                "source": [source for source, _ in ends],
                "target": [target for _, target in ends],
                "issue": spans["issue"],
                "issued_ns": spans["issued_ns"],
                "start_ns": spans["start_ns"],
                "end_ns": spans["end_ns"],
                "size_bytes": [
                    0 if c else self.graph.tensors[i].size_bytes for c, i in zip(compute, item, strict=True)
                ],
            }
        )

    def waits(self) -> pd.DataFrame:
        """Make a table of the waits of the compute streams, by start, then rank and stream.

        Returns
        -------
        DataFrame
            ``rank``, ``stream``, ``step``; ``op`` that waited, named as in `spans`; ``cause``; ``tensor`` that it
            lacked; ``on``, the link (cause transfer) or tier (capacity) that it waited for; ``blocker``, the tensor
            under way; ``issue``, ``start_ns``, ``end_ns``. Empty names where there is none.
        """
        import pandas as pd  # noqa: PLC0415

        _, runs = run_numbers(self.graph, self.hardware, self.trace)
        waits = _sorted({**self.trace.waits.whole(), "run": runs}, "start_ns", "rank", "stream")
        tensors = [*(t.name for t in self.graph.tensors), ""]
        tiers, links = [*self.hardware.tier_names, ""], [*self.hardware.link_names, ""]
        causes = [CAUSES[i] for i in waits["cause"].tolist()]
        places = {"transfer": links, "capacity": tiers, "compaction": tiers}
        steps = steps_of(self.graph, self.hardware, self.trace, waits)
        ops = zip(waits["op"].tolist(), steps.tolist(), waits["run"].tolist(), strict=True)
        return pd.DataFrame(
            {
                "rank": waits["rank"],
                "stream": waits["stream"],
                "step": steps,
                "op": [f"step{step}/{op_name(self.graph, op, run)}" for op, step, run in ops],
                "cause": causes,
                "tensor": [tensors[i] for i in waits["tensor"].tolist()],
                "on": [
                    places.get(cause, [""])[i] if i >= 0 else ""
                    for cause, i in zip(causes, waits["on"].tolist(), strict=True)
                ],
                "blocker": [tensors[i] for i in waits["blocker"].tolist()],
                "issue": waits["issue"],
                "start_ns": waits["start_ns"],
                "end_ns": waits["end_ns"],
            }
        )

    def memory(self) -> pd.DataFrame:
        """Make a table of what each tier holds, one line a change, in the order of the changes.

        Returns
        -------
        DataFrame
            ``time_ns``, ``rank``, ``tier``, ``kind`` of the tensor that came or went, ``kind_bytes`` held of this kind
            and ``used_bytes`` held in all after the change. A peak lies between changes of one instant: keep them all.
        """
        import pandas as pd  # noqa: PLC0415

        rows = self.trace.residencies.whole()
        kinds = [kind.value for kind in TensorKind]
        kind_of = np.array(
            [*(kinds.index(t.kind.value) for t in self.graph.tensors), kinds.index("workspace")], np.int64
        )
        kind = kind_of[np.maximum(rows["tensor"], -1)]
        own = np.array([tier.scope == "device" for tier in self.hardware.tiers.values()])
        instance = rows["tier"] * len(self.trace.issued) + np.where(own[rows["tier"]], rows["rank"], 0)
        return pd.DataFrame(
            {
                "time_ns": rows["time_ns"],
                "rank": rows["rank"],
                "tier": [self.hardware.tier_names[i] for i in rows["tier"].tolist()],
                "kind": [kinds[i] for i in kind.tolist()],
                "kind_bytes": _running(instance * len(kinds) + kind, rows["delta_bytes"]),
                "used_bytes": _running(instance, rows["delta_bytes"]),
            }
        )

    def residencies(self) -> pd.DataFrame:
        """Make a table of the stays of tensors (and workspaces) in tiers, by start.

        Returns
        -------
        DataFrame
            ``rank``, ``tensor``, ``kind``, ``tier``, ``start_ns``, ``end_ns``, ``size_bytes``. What is still held ends
            with the run.
        """
        import pandas as pd  # noqa: PLC0415

        rows: dict[str, Any] = {name: values.tolist() for name, values in self.trace.residencies.whole().items()}
        end = max((int(block["end_ns"].max()) for block in self.trace.spans.blocks()), default=0)
        open_: dict[tuple[int, int, int], list[int]] = {}
        found: list[list[int]] = []
        columns = ("time_ns", "rank", "tier", "tensor", "delta_bytes")
        for time, rank, tier, tensor, delta in zip(*(rows[name] for name in columns), strict=True):
            if delta > 0:
                found.append([rank, tensor, tier, time, end, delta])
                open_.setdefault((rank, tier, tensor), []).append(len(found) - 1)
            else:
                found[open_[rank, tier, tensor].pop(0)][4] = time
        kinds = [TensorKind.WORKSPACE.value if row[1] < 0 else self.graph.tensors[row[1]].kind.value for row in found]
        return pd.DataFrame(
            {
                "rank": [row[0] for row in found],
                "tensor": [name_of(self.graph, row[1]) for row in found],
                "kind": kinds,
                "tier": [self.hardware.tier_names[row[2]] for row in found],
                "start_ns": [row[3] for row in found],
                "end_ns": [row[4] for row in found],
                "size_bytes": [row[5] for row in found],
            }
        )


def _sorted(rows: Block, *keys: str) -> Block:
    """The rows by these columns, the first of them first."""
    order = np.lexsort([rows[key] for key in reversed(keys)])
    return {name: values[order] for name, values in rows.items()}


def op_name(graph: Graph, op: int, run: int) -> str:
    """Name a compute: the op, and from its second run in the step on ``#2`` and so on."""
    return graph.ops[op].name + (f"#{run}" if run > 1 else "")


def _running(group: Ints, delta: Ints) -> Ints:
    """Running sums within groups, in the order of the rows."""
    order = np.argsort(group, kind="stable")
    total = np.cumsum(delta[order])
    first = np.ones(len(order), bool)
    first[1:] = group[order][1:] != group[order][:-1]
    before = (total - delta[order])[first]
    found = np.empty(len(order), np.int64)
    found[order] = total - before[np.cumsum(first) - 1] if len(order) else total
    return found

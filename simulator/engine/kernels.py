"""How long a kernel takes that depends on others: collectives, and kernels from which copies take bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import simpy

from simulator.cost import arithmetic_ns, chosen_op, expected_op, memory_rate_cap, memory_work
from simulator.engine.meeting import Communicator
from simulator.engine.rounds import Recurring
from simulator.engine.sharing import Network, Path
from simulator.engine.stream import Compute, Stream
from simulator.graph import Collective, Graph
from simulator.hardware import Hardware

Kernel = Callable[[Stream, Compute], None]
"""Begins a kernel now, and sooner or later the stream's span."""


def with_meetings(meets: Mapping[int, tuple[Communicator, Collective]], other: Kernel | None) -> Kernel:
    """Let ops come to meetings.

    Parameters
    ----------
    meets
        By op, with whom it meets for what.
    other
        What begins the other kernels; None: they take their time alone.
    """

    def begin(stream: Stream, compute: Compute) -> None:
        if compute.op in meets:
            communicator, collective = meets[compute.op]
            communicator.arrive(stream, collective)
        elif other is not None:
            other(stream, compute)
        else:
            stream.end_after(stream.columns.duration_ns[compute.op])

    return begin


class ContendedKernels:
    """Each kernel is arithmetic and a flow of memory traffic side by side, after its launch.

    Parameters
    ----------
    graph, hardware
        For traffic and arithmetic of each op; a measured duration counts as arithmetic.
    path, network
        Where the traffic flows.
    """

    def __init__(self, graph: Graph, hardware: Hardware, path: Path, network: Network) -> None:
        self._graph, self._hardware, self._path, self._network = graph, hardware, path, network
        self._launch_ns, self._cap = hardware.compute.launch_ns, memory_rate_cap(hardware)
        sizes = [tensor.size_bytes for tensor in graph.tensors]
        self._least_ns = [
            self._launch_ns + arithmetic_ns(op, hardware) if op.duration_ns is None else op.duration_ns
            for op in graph.ops
        ]
        self._work = [
            memory_work(expected_op(op, sizes), hardware) if op.duration_ns is None else 0 for op in graph.ops
        ]

    def begin(self, stream: Stream, compute: Compute) -> None:
        """Begin a kernel now; its launch takes no bandwidth."""
        work, least_ns, rounds = self._work[compute.op], self._least_ns[compute.op], stream.places.rounds
        if work and compute.duration_ns >= 0:
            work = memory_work(chosen_op(self._graph.ops[compute.op], compute.chosen_bytes), self._hardware)
        if not work:
            stream.end_after(least_ns)
            return
        until_ns = rounds.clock.now + least_ns
        key = stream.running[0] if stream.running else 0

        def end() -> None:
            stream.end_after(max(0, until_ns - rounds.clock.now))

        flow = partial(self._network.join, self._path, self._cap, work, key, end)
        if not self._launch_ns:
            flow()
            return

        def launched(event: simpy.Event) -> None:
            flow()
            rounds.close()

        rounds.clock.at(rounds.clock.now + self._launch_ns, Recurring(rounds.clock, launched))

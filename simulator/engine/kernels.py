"""How long a kernel takes when copies take bandwidth of the compute tier from it (a switch)."""

from __future__ import annotations

from simulator.cost import arithmetic_ns, chosen_op, expected_op, memory_rate_cap, memory_work
from simulator.engine.rounds import Rounds
from simulator.engine.sharing import Network, Path
from simulator.engine.stream import Stream
from simulator.graph import Graph
from simulator.hardware import Hardware


class MemoryTraffic:
    """The memory side of one kernel, as the owner of a flow in the compute tier's bandwidth."""

    __slots__ = ("_least_end_ns", "_stream")

    def __init__(self, stream: Stream, least_end_ns: int) -> None:
        self._stream, self._least_end_ns = stream, least_end_ns

    def end(self) -> None:
        """The traffic is over; the kernel ends with its arithmetic, if that takes longer."""
        self._stream.span.begin(max(0, self._least_end_ns - self._stream.places.rounds.clock.now))


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
        self._path, self._network = path, network
        launch = hardware.compute.launch_ns
        self._cap = memory_rate_cap(hardware)
        self._least = [
            op.duration_ns if op.duration_ns is not None else launch + arithmetic_ns(op, hardware) for op in graph.ops
        ]
        sizes = [tensor.size_bytes for tensor in graph.tensors]
        ops = [expected_op(op, sizes) for op in graph.ops]
        self._work = [0 if op.duration_ns is not None else memory_work(op, hardware) for op in ops]
        self._launch, self._graph, self._hardware = launch, graph, hardware

    def begin(self, stream: Stream, op: int) -> None:
        """Begin a kernel now; its launch takes no bandwidth."""
        clock, work = stream.places.rounds.clock, self._work[op]
        step = stream.running[2] if stream.running else None
        if step is not None and work and step.duration_ns >= 0:
            work = memory_work(chosen_op(self._graph.ops[op], step.chosen_bytes), self._hardware)
        if not work:
            stream.span.begin(self._least[op])
            return
        traffic = MemoryTraffic(stream, clock.now + self._least[op])
        key = stream.running[0] if stream.running else 0
        if self._launch:
            timer = clock.timeout(self._launch)
            timer.callbacks.append(lambda event: self._join(work, key, traffic, stream.places.rounds))
        else:
            self._join(work, key, traffic, None)

    def meeting(self, op: int) -> None:
        """No kernel here is a collective."""

    def _join(self, work: int, key: int, traffic: MemoryTraffic, rounds: Rounds | None) -> None:
        self._network.join(self._path, self._cap, work, key, traffic)
        if rounds is not None:
            rounds.close()

"""Where the training steps of a reactive run begin, from what its host issues, as it issues it.

A training step is over at the first place, once all its ops have run, where what is held is what was held at time 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.graph import Graph
from simulator.plan import COMPUTE, COPY, DETACH
from simulator.trace import ISSUED, Block


class IssuedSteps:
    """The training steps of a run whose host decides as it goes.

    Parameters
    ----------
    graph
        What runs.
    home
        Tier of each tensor at time 0, or `NOWHERE`.
    compute_tier
        Id of the tier that computes write to.

    Attributes
    ----------
    starts
        Issue number at which each step begins that began, from 0.
    """

    def __init__(self, graph: Graph, home: Sequence[int], compute_tier: int) -> None:
        self._ops, self._here, self._steps, self._home = len(graph.ops), compute_tier, graph.steps, home
        self._writes = [op.writes for op in graph.ops]
        self._exists, self._may_stay = [tensor.size_bytes > 0 for tensor in graph.tensors], graph.cacheable
        self._unlike = set[tuple[int, int]]()
        self._ran = set[int]()
        self._streams = dict[int, int]()
        self._in_order = self._one_stream = True
        self._issued = 0
        self.starts: list[int] = [0]

    def take(self, codes: Block) -> None:
        """Follow what is issued next."""
        for kind, a, b, c in zip(*(codes[name].tolist() for name in ISSUED), strict=True):
            self._issued += 1
            if kind == COMPUTE:
                self._run(a, b)
            elif kind == COPY:
                self._hold(a, c, held=True)
            elif kind == DETACH:
                self._hold(a, b, held=False)
            if len(self._ran) == self._ops and not self._unlike and len(self.starts) < self._steps:
                self.starts.append(self._issued)
                self._ran.clear()

    def keeps_program(self, streams: Sequence[int]) -> bool:
        """Whether in each step the first runs of its ops were in program order, each op on its stream.

        Parameters
        ----------
        streams
            By op, the stream that it should run on.
        """
        complete = len(self.starts) == self._steps and len(self._ran) == self._ops
        return complete and self._in_order and self._one_stream and self._streams == dict(enumerate(streams))

    def _run(self, op: int, stream: int) -> None:
        if op not in self._ran:
            self._in_order = self._in_order and op == len(self._ran)
            self._ran.add(op)
        self._one_stream = self._one_stream and self._streams.setdefault(op, stream) == stream
        for tensor in self._writes[op]:
            self._hold(tensor, self._here, held=True)

    def _hold(self, tensor: int, tier: int, *, held: bool) -> None:
        """Note whether a place is held, and whether that is unlike at time 0.

        Copies that may outlast a step, because late reads may choose them again, do not count.
        """
        is_home = self._home[tensor] == tier
        if self._exists[tensor] and (is_home or tensor not in self._may_stay):
            if held == is_home:
                self._unlike.discard((tensor, tier))
            else:
                self._unlike.add((tensor, tier))

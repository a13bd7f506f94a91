"""The engine as SimPy processes: the rules of the semantics, in the words of SimPy."""

from simulator.engine.reference.simulation import Progress, run

__all__ = ["Progress", "run"]

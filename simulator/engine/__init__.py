"""The only room with a clock: programs on a machine in, a trace out. It executes and never decides."""

from simulator.engine.folding import obstacle
from simulator.engine.program import Program
from simulator.engine.simulation import run

__all__ = ["Program", "obstacle", "run"]

"""The only room with a clock: programs on a machine in, a trace out. It executes and never decides."""

from simulator.engine.program import Program, folding_obstacle, programs_of
from simulator.engine.simulation import run

__all__ = ["Program", "folding_obstacle", "programs_of", "run"]

"""The only room with a clock: programs on a machine in, a trace out. It executes and never decides."""

from simulator.engine.choice import chosen, hint, in_use, run, using
from simulator.engine.program import Own, Program, folding_obstacle, programs_of

__all__ = ["Own", "Program", "chosen", "folding_obstacle", "hint", "in_use", "programs_of", "run", "using"]

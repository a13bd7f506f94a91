"""Writers of plans in the forms of other programs; `hosim export` names them.

A form NAME has a module ``to_NAME`` with ``write(case, task, plan, path)``: it writes the file whole, or raises a
`ConfigError` that says what of the plan the form cannot say. It returns sentences about what the file leaves to its
reader.
"""

from __future__ import annotations

TARGETS = {
    "sac": "a policy for torch.utils.checkpoint: save, offload or recompute, by op (Python)",
    "residency": "a schedule for HyperParallel's ResidencySchedule, with its trace (JSON)",
    "chakra": "an execution trace of Chakra with memory nodes, for ASTRA-sim (.et)",
}
"""Name on the command line -> what is written."""

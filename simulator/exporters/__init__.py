"""Writers of plans in the forms of other programs; `hosim export` names them.

A form NAME has a module ``to_NAME`` with ``write(case, task, plan, path)``: it writes the file whole, or raises a
`ConfigError` that says what of the plan the form cannot say. It returns sentences about what the file leaves to its
reader.
"""

from __future__ import annotations

from simulator.plan import COPY, NOWHERE, Plan

TARGETS = {
    "sac": "a policy for torch.utils.checkpoint: save, offload or recompute, by op (Python)",
    "residency": "a schedule for HyperParallel's ResidencySchedule, with its trace (JSON)",
    "chakra": "an execution trace of Chakra with memory nodes, for ASTRA-sim (.et)",
}
"""Name on the command line -> what is written."""


def leaving(plan: Plan, device: int) -> tuple[set[int], set[int]]:
    """Return the tensors that are ever elsewhere than on the device, and the tiers that copies name beside it.

    Parameters
    ----------
    plan, device
        A fixed plan, and the id of the compute tier.
    """
    copies = [code for code in plan.fixed or () if code[0] == COPY]
    tensors = {tensor for tensor, home in enumerate(plan.home) if home not in (device, NOWHERE)}
    return tensors | {a for _, a, _, _ in copies}, {tier for _, _, *ends in copies for tier in ends} - {device}

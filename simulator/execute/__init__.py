"""``hosim.torch``: captures a PyTorch step as a graph, and runs it within a budget under hosim's plans.

>>> import torch, hosim
>>> step = hosim.torch.offload(model, optimizer=optimizer, budget="6 GB")
>>> for tokens, labels in loader:
...     loss = step(tokens, labels)  # the same numbers as without, in less memory
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from simulator.errors import ConfigError, import_extra, insist
from simulator.importers.torch import capture as capture
from simulator.importers.torch import fake as fake
from simulator.importers.torch import parts_of
from simulator.units import FieldError, parse

if TYPE_CHECKING:
    from simulator.execute.comparison import Comparison
    from simulator.execute.offloaded import Offloaded
    from simulator.importers.imported import Imported
    from simulator.scenario import PolicyChoice

_TIMED = 7
"""Steps of which the times of a recorded op are medians: they stand if three are disturbed."""

__all__ = ["capture", "compare", "execute", "fake", "offload", "record"]


def offload(  # noqa: PLR0913 - a step, and how it runs
    step: Callable[..., Any],
    *,
    budget: str | float,
    policy: str | Mapping[str, Any] | PolicyChoice = "static",
    optimizer: Any = None,
    loss: Callable[[Any], Any] | None = None,
    homes: Mapping[str, str] | None = None,
    hardware: str | Path | None = None,
    device: Any = None,
    tier: Literal["disk", "memory"] | None = None,
    folder: str | Path | None = None,
    pace: tuple[str, str] | None = None,
    strict: bool = False,
) -> Offloaded:
    """Make a training step run within a budget of memory, with the same numbers to the last bit.

    Storages that do not fit leave for a lower tier, and come back before they are used. The model stays as it is.

    Parameters
    ----------
    step
        A module, for which a training step is made; or a function that runs a whole step, with loss and optimizer.
    budget
        Most bytes of storages in memory, such as ``"6 GB"``: weights, gradients, states and activations.
    device
        Where the step computes, such as ``"cuda"`` or a ``torch.device``: the budget is of its memory. Default: that of
        a module's parameters; of a function, the accelerator that there is, or else the CPU.
    policy
        A policy, or a row of a scenario, such as ``{"policy": "reactive", "options": {"look_ahead": 0}}``, or the path
        of a plan.
    optimizer, loss
        For a module, as for `capture`; an optimizer that was made, or a function that makes one.
    homes
        Where tensors live between steps, as in a scenario: ``{"optimizer_state": "disk"}``, or ``"free"``, where the
        policy decides; default: in memory. While they are below only the step may use them; see ``step.here()``.
    hardware
        A profile of this machine, as `hosim calibrate` writes it, or its name; default: the lower tier alone is
        measured, now.
    tier
        The lower tier: a file, or memory (pinned, of an accelerator's host; on the CPU, a second place). Default:
        memory with an accelerator, a file on the CPU. Plans call the tiers ``hbm`` and ``ram`` or ``disk``; on the
        CPU, ``ram`` and ``disk``.
    folder
        Where the file lies; default: the system's folder of temporary files. Nothing is left in it.
    pace
        Bandwidth of copies out and in, such as ``("1 GB/s", "1 GB/s")``: they take so long, so that a slower link can
        be tried. Default: as fast as they are.
    strict
        Whether a step that no plan fits, or that cannot go on under its plan, is an error; else it goes on without one,
        with a warning.

    Returns
    -------
    Offloaded
        Call it as the step; ``with hosim.torch.offload(...) as step:`` closes it at the end.

    Raises
    ------
    ConfigError
        If torch is not installed, the budget is no size, the folder cannot hold a file, or the machine has other tiers.
    """
    parts = ("execute.offloaded", "execute.planning", "importers.torch_run", "execute.accelerator")
    steps, profile, torch_run, devices = map(_part, parts)
    where, is_module = "hosim.torch.offload", isinstance(step, torch_run.torch.nn.Module)
    scenario = profile.scenario_of(where, [policy], homes)
    must, do = "a function runs its own loss and optimizer", "call them in the function"
    insist(is_module or (optimizer is None and loss is None), where, must, "one beside it", do)
    insist(callable(step), where, "a step is a module or a function", repr(step), "give it one")
    budget_bytes, paces = _numbers(where, budget, pace)
    name = getattr(step, "__name__", type(step).__name__)
    if is_module:
        device = device or next((held.device for held in step.parameters()), None)  # type: ignore[attr-defined]
        made = optimizer(step.parameters()) if callable(optimizer) else optimizer  # type: ignore[attr-defined]
        step = torch_run.step_of(step, made, loss)
    with ExitStack() as stack:
        computes = devices.device_of(device)
        tier = tier or ("disk" if folder else computes.below)
        must, found = "a folder is of tier disk", f"one of tier {tier!r}"
        insist(tier in ("disk", "memory"), where, "a lower tier is disk or memory", repr(tier), "name one of them")
        insist(tier == "disk" or folder is None, where, must, found, "drop folder")
        lower = computes.lower(None if tier == "memory" else folder or tempfile.gettempdir(), paces)
        memory = steps.StepMemory(budget_bytes, lower, computes)
        stack.callback(memory.close)
        machine = profile.machine_of(where, hardware, memory, paces)
        offloaded: Offloaded = steps.Offloaded(step, name, memory, machine, scenario, strict=strict)
        stack.pop_all()  # the step closes it
    return offloaded


def record(step: Callable[..., Any], *inputs: Any, optimizer: Any = None, loss: Any = None, **named: Any) -> Imported:
    """Record a training step as it runs here, in memory: a workload whose ops have the times that they took.

    The step runs some ten times, for real: give it a copy of what must not change. What it records is what
    `hosim.torch.capture` tells without running it.

    Parameters
    ----------
    step, optimizer, loss
        As for `offload`.
    *inputs, **named
        Arguments of the step.

    Returns
    -------
    Imported
        A graph, whose times are medians that add up to the median step, and a workload, which ``.write`` writes.

    Raises
    ------
    HosimError
        As for `offload`; if no two steps in a row are alike.
    """
    with offload(
        step, budget=inf, policy="resident", optimizer=optimizer, loss=loss, tier="memory", strict=True
    ) as runs:
        runs.timed = _TIMED
        for _ in range(3 + _TIMED):
            runs(*inputs, **named)
        do = "give it inputs with which it does the same each time"
        insist(runs.recorded, "hosim.torch.record", "two steps in a row are alike", "no two", do)
        return cast("Imported", runs.recorded)


def execute(step: Callable[..., Any], plan: str | Path, *, budget: str | float = inf, **more: Any) -> Offloaded:
    """Make a training step run under a plan that exists; otherwise as `offload`.

    Parameters
    ----------
    step, budget
        As there; without a budget the plan takes the room that it takes.
    plan
        A ``hosim-plan/1`` file, as ``step.write_plan`` and `hosim run` write it, for this step on the tiers that
        `offload` names.
    **more
        Other parameters of `offload`; `homes` are those of the plan.

    Raises
    ------
    ConfigError
        As there; when the step is planned, if the plan is of another graph, or does not fit.
    """
    must, do = "a plan is a file", "write one with step.write_plan"
    insist(Path(plan).is_file(), "hosim.torch.execute", must, f"none at {plan}", do)
    return offload(step, budget=budget, policy=str(Path(plan).resolve()), **{"homes": {"*": "free"}, **more})


def _numbers(where: str, budget: Any, pace: Any) -> tuple[float, tuple[float, float] | None]:
    """Return a budget [B] and a pace [B/s] as numbers."""
    is_pace = pace is None or (isinstance(pace, tuple | list) and len(pace) == 2)
    insist(is_pace, where, "a pace is of copies out and in", repr(pace), 'write ("1 GB/s", "1 GB/s")')
    try:
        budget_bytes = parse(budget, "B") if isinstance(budget, str) else budget
        paces = pace and (parse(pace[0], "B/s"), parse(pace[1], "B/s"))
    except FieldError as error:
        raise ConfigError(where, error.must, error.found, error.do) from None
    is_size = isinstance(budget_bytes, int | float) and not isinstance(budget_bytes, bool) and budget_bytes > 0
    insist(is_size, where, "a budget is a size above 0", repr(budget), 'write for example "6 GB"')
    insist(paces is None or min(paces) > 0, where, "a pace is above 0", repr(pace), "write a higher one")
    return budget_bytes, paces


def compare(
    make: Callable[[], tuple[Any, ...]],
    *,
    budget: str | float,
    policies: Sequence[Any] = ("static", "reactive"),
    steps: int = 5,
    progress: Callable[[str, int, int], None] | None = None,
    **more: Any,
) -> Comparison:
    """Run a step under several policies within a budget, and put what was predicted beside what was measured.

    Policies have a step each, made anew under the same seed, and run in turns: what else the machine does meets them
    all alike. Between its turns all that a step holds lies in the lower tier, which has room for that of all.

    Parameters
    ----------
    make
        Makes the step: it returns a module, or a function that runs a step, and its inputs, as for ``hosim import
        torch``: ``return model, tokens, {"optimizer": torch.optim.AdamW}``.
    budget, policies
        As for `offload`, which runs each policy. Besides, what PyTorch does by itself, with no regard to the budget:
        ``resident``, the step as it is; ``saved_tensors_hooks``, what is saved for backward goes to the lower tier at
        once; ``checkpointing``, each child of the module's longest ``ModuleList`` or ``Sequential`` is checkpointed.
    steps
        How many steps of each are measured, after those that are needed to plan.
    progress
        Called now and then with a label, the steps done, and their number.
    **more
        Options of `offload`, such as ``folder``; a step that cannot go on under its plan is an error.

    Raises
    ------
    HosimError
        As for `offload`, and for the steps that it makes.
    """
    where = "hosim.torch.compare"
    insist(callable(make), where, "a function makes the step", repr(make), "give it one")
    planning, unplanned = map(_part, ("execute.planning", "execute.unplanned"))
    choices = planning.scenario_of(where, policies, others=unplanned.ROWS).policies
    insist(steps >= 1, where, "at least one step is measured", str(steps), "write steps=1 or more")

    def made(choice: PolicyChoice) -> tuple[Offloaded, tuple[Any, ...], dict[str, Any]]:
        (step, *args), options = parts_of(where, make())
        training = {key: options.pop(key) for key in ("optimizer", "loss") if key in options}
        if choice.row == unplanned.CHECKPOINTING:
            unplanned.checkpoint_blocks(step)
        if choice.row in unplanned.ROWS:
            choice = choice.model_copy(update={"policy": "resident", "label": choice.row})
        return offload(step, budget=budget, policy=choice, **training, **{"strict": True, **more}), tuple(args), options

    name, run = getattr(make, "__name__", type(make).__name__), _part("execute.comparison").compare
    compared: Comparison = run(name, made, choices, steps, progress or (lambda *_: None))
    return compared


def _part(module: str) -> Any:
    """Import a module that needs torch."""
    rule, install = "a step of PyTorch runs where torch is installed", 'run: pip install "hosim[torch]"'
    return import_extra("hosim.torch", rule, install, f"simulator.{module}")[0]

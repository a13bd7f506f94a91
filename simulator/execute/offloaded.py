"""Runs training steps of PyTorch within a budget: on demand until they can be planned, then under the plan."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, cast

import torch

from simulator.errors import insist
from simulator.execute.accelerator import Processor
from simulator.execute.held import ExecutionError, HeldStorage
from simulator.execute.measured import trace_of
from simulator.execute.mode import PlannedStep
from simulator.execute.on_demand import OnDemand, may_leave
from simulator.execute.planning import Planning, UnfitError, typical
from simulator.execute.storages import StepMemory
from simulator.formats import plan_jsonl
from simulator.hardware import Hardware
from simulator.importers.imported import Imported
from simulator.importers.torch_machine import tensors
from simulator.importers.torch_run import ModuleWatch
from simulator.outputs import written
from simulator.plan import COMPUTE, Actions
from simulator.run.results import Result
from simulator.scenario import Scenario
from simulator.trace import Trace

_Key = tuple[Any, ...]  # shapes and types of the inputs
_ONE = Lock()
"""Held while a step runs: two at once would share the machine, and neither plan knows of the other."""


@dataclass(frozen=True, slots=True)
class Executed:
    """A step that ran.

    Attributes
    ----------
    plan
        The row whose plan it was; ``on demand`` before there was one.
    step_s, stall_s
        How long it took; how long it waited for copies and for room, until its last op had ended [s].
    peak_bytes
        Most bytes of storages in the compute tier [B].
    trace
        What happened when; None unless a step under a plan was asked to keep it.
    """

    plan: str
    step_s: float
    stall_s: float
    peak_bytes: int
    out_bytes: int
    in_bytes: int
    trace: Trace | None = field(default=None, repr=False)


class Guard:
    """A hook of a module or an optimizer that refuses to use, save or load it while some of it lives below.

    Without it PyTorch would read memory that is not there, or save nothing. A copy of a guard guards nothing.

    Parameters
    ----------
    offloaded
        The step whose memory is looked at; None for a copy.
    """

    def __init__(self, offloaded: Offloaded | None = None) -> None:
        self._of = None if offloaded is None else weakref.ref(offloaded)

    def __reduce__(self) -> tuple[type[Guard], tuple[()]]:
        return Guard, ()

    def __call__(self, *_: Any) -> None:
        """Raise an `ExecutionError` if something lives below and no step runs."""
        offloaded = None if self._of is None else self._of()
        if offloaded is not None and not _ONE.locked() and offloaded._memory.moved:
            must, do = "only its step uses a tensor in the lower tier", "write `with step.here():` around it"
            raise ExecutionError(f"model of {offloaded._name}", must, "a use of it between steps", do)


class Offloaded:
    """A training step that runs within a budget: call it as the step itself, and close it at the end.

    The first calls run on demand: what an op uses comes in, and what was not used for longest leaves. Once two calls in
    a row are alike the step is planned; the first calls under the plan time its ops, and it is planned again. Each
    further call executes that plan. Inputs of other shapes have a plan of their own.

    Parameters
    ----------
    step, name
        Runs a whole step; its name in messages.
    memory
        Its storages, and their room; closed with it.
    machine, scenario
        The machine on which it is planned; its row, and the homes between steps.
    strict
        Whether a step that no plan fits, or that cannot go on under its plan, is an error; else a warning.

    Attributes
    ----------
    timed
        How many steps under a plan are timed for the last plan: it takes the median time of each op.
    steps
        What was measured, call by call.
    budget_bytes, beside_bytes
        The budget; how much of it storages take that no op of the graph uses, such as counts of steps [B].
    """

    timed = 3

    def __init__(
        self,
        step: Callable[..., Any],
        name: str,
        memory: StepMemory,
        machine: Hardware,
        scenario: Scenario,
        *,
        strict: bool,
    ) -> None:
        self._step, self._name, self._memory, self._strict = step, name, memory, strict
        self._machine, self._scenario = machine, scenario
        self._records, self._plannings = dict[_Key, OnDemand](), dict[_Key, Planning]()
        self._watch, self._process = ModuleWatch(has_memory=True), os.getpid()
        self._unplanned, self._guarded = set[_Key](), weakref.WeakSet[Any]()
        self._left = set[HeldStorage]()  # what the last step has left below, and no plan need know
        self.steps, self.budget_bytes, self.beside_bytes = list[Executed](), memory.budget_bytes, 0
        self._ends = ExitStack()
        self._ends.callback(self._memory.close)
        self.close = weakref.finalize(self, self._ends.close)
        self.close.atexit = False  # nothing need come back for a process that ends

    def __enter__(self) -> Offloaded:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _last(self) -> Planning | None:
        return next(reversed(self._plannings.values()), None)

    @property
    def device(self) -> Processor:
        """Where it computes."""
        return self._memory.device

    @property
    def row(self) -> str:
        """Name of its row."""
        return self._scenario.policies[0].row

    @property
    def predicted(self) -> Result | None:
        """The row that was planned last, with all that is predicted; None while nothing is planned."""
        return None if self._last is None else self._last.result

    @property
    def recorded(self) -> Imported | None:
        """The step that was planned last, as a workload whose ops have the times that were measured."""
        return None if self._last is None else self._last.imported

    def write_plan(self, out: str | Path) -> None:
        """Write the plan that was made last, which `hosim.torch.execute` takes in place of a policy.

        Parameters
        ----------
        out
            The file, whose name ends in ``.jsonl`` or ``.jsonl.gz``.

        Raises
        ------
        ConfigError
            If nothing is planned yet, or the file cannot be written.
        """
        do = "run the step three times before"
        insist(self._last, f"plan of {self._name}", "a step that was planned has a plan", "none yet", do)
        planning = cast(Planning, self._last)
        plan, graph = planning.result.recorded, planning.recorded
        codes = [code for code in planning.codes if code[:2] != (COMPUTE, len(graph.ops))]
        with written(Path(out), option="plan") as (part,):
            plan_jsonl.write(replace(plan, actions=Actions.from_columns(*zip(*codes, strict=True))), graph, part)

    def keep_traces(self) -> None:
        """Keep the trace of each step under a plan from now on (`Executed.trace`)."""
        self._memory.notes = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step, and return what it returns.

        Raises
        ------
        ConfigError
            If it was closed, another one runs, or the process is a fork; if policy or homes are wrong; with `strict`,
            if no plan fits the budget.
        ExecutionError
            If one op needs more than the budget; with `strict`, if the step cannot go on under its plan.
        """
        where = f"step {self._name}"
        insist(self.close.alive, where, "an offloaded step is open", "a closed one", "offload it again")
        do = "run it where it was made"
        insist(os.getpid() == self._process, where, "it runs in the process that made it", "a fork", do)
        must, do = "one offloaded step runs at a time", "run it after the other"
        inputs = list(tensors((args, kwargs)))
        insist(_ONE.acquire(blocking=False), where, must, "another in the midst of its run", do)
        try:
            key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in inputs)
            call = partial(self._step, *args, **kwargs)
            if key in self._plannings:
                return self._run_planned(key, call, inputs)
            return self._run_on_demand(key, call, (args, kwargs))
        finally:
            self._memory.let_go(tensor.untyped_storage() for tensor in inputs)
            _ONE.release()

    def _run_on_demand(self, key: _Key, call: Callable[[], Any], given: Any) -> Any:
        before = self._records.get(key)
        with self._watch as watch:
            record = OnDemand(watch, given, self._memory, before)
            made = self.measured("on demand", record, call, self._away)
        must, do = f"a step has tensors on {self.device.name}", "name the device where they are: device="
        insist(self._memory.peak_bytes, f"step {self._name}", must, "none", do)
        if self._scenario.homes:
            self._guard()
            self._left = {block for block, kind in self._owned().items() if kind == "gradient"}
        self._records[key] = record
        if key not in self._unplanned and before is not None and before.functions() == record.functions():
            self._plan(key, Planning(self._name, record), record.took_ns)
            if self._watch.compiled:
                warnings.warn(f"Compiled parts of {self._name} run as they are written, op by op.", stacklevel=3)
        return made

    def _run_planned(self, key: _Key, call: Callable[[], Any], inputs: Sequence[torch.Tensor]) -> Any:
        planning = self._plannings[key]
        mode = PlannedStep(planning, self._memory, inputs)
        old = self._left.difference(mode.lasting.values())  # gradients of the step before
        made = self.measured(self.row, mode, call, lambda: {*old, *mode.alive(planning.below)})
        self._left = mode.alive(planning.below)
        if planning.below:
            self._guard()
        if self._memory.notes is not None and mode.stopped is None:
            self.steps[-1] = replace(self.steps[-1], trace=trace_of(mode))
        if mode.stopped is not None:
            del self._plannings[key], self._records[key]
            if self._strict:
                raise mode.stopped
            how = "It went on without a plan; the next calls are recorded again."
            warnings.warn(f"{mode.stopped}. {how}", stacklevel=3)
        elif len(planning.took_ns) < self.timed:
            planning.took_ns.append(mode.took_ns)
            if len(planning.took_ns) == self.timed:
                self._plan(key, planning, typical(planning.took_ns))
        return made

    def _owned(self) -> dict[HeldStorage, str]:
        """Return what is followed of what modules and optimizers hold, and its kind."""
        owned = ((kind, part) for _, kind, tensor in self._watch.owned() for part in tensors([tensor]))
        blocks = {self._memory.find(part.untyped_storage()): kind for kind, part in owned}
        return {block: kind for block, kind in blocks.items() if block is not None}

    def _away(self) -> set[HeldStorage]:
        return {block for block in self._owned() if block.is_away} if self._scenario.homes else set()

    def _guard(self) -> None:
        """Guard modules and optimizers of which something may live below."""
        for owner in {*(root for _, root in self._watch._roots), *self._watch._optimizers}.difference(self._guarded):
            self._guarded.add(owner)
            hooks = [owner.register_state_dict_pre_hook, owner.register_load_state_dict_pre_hook]
            hooks += [owner.register_forward_pre_hook] if isinstance(owner, torch.nn.Module) else []
            for register in hooks:
                self._ends.callback(register(Guard(self)).remove)

    @contextmanager
    def here(self) -> Iterator[None]:
        """Bring everything back while the block runs, whatever the budget: to save the model, or to look at it."""
        self._memory.settle()
        yield

    def make_way(self) -> Callable[[], None]:
        """Send below all that may leave, so that another step has the room; return what brings it back."""
        before = [*self._memory.moved.values()]
        self._memory.settle([block for block in self._memory.blocks() if block.is_away or may_leave(block)])
        return partial(self._memory.settle, before)

    def measured(
        self,
        plan: str,
        mode: AbstractContextManager[Any],
        call: Callable[[], Any],
        below: Callable[[], set[HeldStorage]],
    ) -> Any:
        """Run a step in a mode, note what it took, and return what it returns.

        Parameters
        ----------
        plan, mode, call
            What it runs under, and what runs it.
        below
            Returns what lives below between steps; all else is in the compute tier in the end.
        """
        memory = self._memory
        memory.begin(below())
        begun_s = perf_counter()
        try:
            with mode:
                made = call()
            waits = len(memory.waits)
        finally:
            memory.settle(below())
        self.device.finish()
        stall_s = memory.waited_s()[waits]
        took_s, (out_bytes, in_bytes) = perf_counter() - begun_s, memory.moved_bytes.values()
        self.steps.append(Executed(plan, took_s, stall_s, memory.peak_bytes, out_bytes, in_bytes))
        return made

    def _plan(self, key: _Key, planning: Planning, took_ns: list[int]) -> None:
        """Plan a step whose ops take so long; if no plan fits, go on on demand, unless that is to be an error."""
        try:
            planning.plan(took_ns, self._machine, self._scenario, self._memory)
        except UnfitError as error:
            if self._strict:
                raise
            self._unplanned.add(key)  # the step itself was done, and fits on demand, or under the plan that it has
            warnings.warn(f"{error}. Its steps run on demand.", stacklevel=4)
        else:
            self._plannings[key], self.beside_bytes = planning, planning.beside_bytes

"""``hosim.torch``: captures a PyTorch step as a graph, under fake tensors, which have shapes but no memory.

>>> import torch, hosim
>>> with hosim.torch.fake():
...     model = MyModel()
...     tokens = torch.randint(0, 32000, (8, 4096))
>>> hosim.torch.capture(model, tokens, loss=my_loss, optimizer=torch.optim.AdamW).write("mine.yaml")
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from glob import escape
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, Literal, cast
from unittest.mock import patch

from simulator import inputs
from simulator.errors import ConfigError, import_extra, insist
from simulator.graph import HOST, Graph, TensorKind
from simulator.graph_builder import GraphBuilder
from simulator.importers.imported import Imported, named
from simulator.importers.recordings import Storage, graph_of, unique
from simulator.lifetime import live_bytes
from simulator.report.card import amount
from simulator.units import human, nearest
from simulator.workload import Workload

__all__ = ["capture", "fake"]

Captured = Literal["train", "prefill", "decode"]
"""What a step is."""
_PHASES = {"train": "forward", "prefill": "prefill", "decode": "decode"}
_TITLES = {"prefill": "A prefill", "decode": "A step of decode"}


def fake(ranks: int | None = None) -> AbstractContextManager[None]:
    """Create models, optimizers and inputs of any size in this context: their tensors have shapes but no memory.

    Parameters
    ----------
    ranks
        Number of ranks that a step is for, of which the first runs; default: those of the process group that there is.

    Raises
    ------
    ConfigError
        If torch is not installed.
    """
    return cast(AbstractContextManager[None], _part("torch_run").fake_mode(ranks))


def capture(
    step: Callable[..., Any],
    *inputs: Any,
    optimizer: Any = None,
    loss: Callable[[Any], Any] | None = None,
    name: str = "",
    free_early: bool = False,
    phase: Captured = "train",
    **named_inputs: Any,
) -> Imported:
    """Capture a training step as a graph: forward, backward and the optimizer's step; or a step of inference.

    The step runs twice under fake tensors, which use no memory; the second run is recorded, as the optimizer then has
    its state. A module that was made outside `fake` is copied and stays unchanged. Ops are those of a real step on the
    CPU; where code asks for CUDA, attention and autocast are those of CUDA. An LSTM's layer runs once on real zeros, as
    its workspace has no size under fake tensors.

    Parameters
    ----------
    step
        A module, for which a training step is made; or a function that runs a whole step, with loss and optimizer.
        Everything that the function uses besides its inputs must be made in `fake`.
    *inputs
        Arguments of the step: tensors, of which only shape and type matter, or other values.
    optimizer
        For a module: an optimizer over its parameters, or a function that makes one from them, or its name, such as
        ``torch.optim.AdamW``; default: none, the step ends with the gradients.
    loss
        For a module: computes the loss from what the module returns; default: its attribute ``loss``, or else that
        itself.
    name
        Name of the workload; default: that of the module's class, or of the function.
    free_early
        Whether to free each storage after its last use, even if PyTorch keeps it longer.
    phase
        What the step is: training (train); or, without gradients, reading prompts (prefill) or adding tokens (decode).
        What its caches hold is then a KV cache: inputs of a class named so, or given as ``past_key_values`` or
        ``cache``.
    **named_inputs
        Keyword arguments of the step, such as ``labels``.

    Returns
    -------
    Imported
        A graph, and a workload that runs it.

    Raises
    ------
    ConfigError
        If torch is not installed, or the step cannot run under fake tensors, such as when it asks for a tensor's value;
        the message has file and line.
    """
    run, recorder = _part("torch_run"), _part("torch_recorder")
    compiled, step = run.is_compiled(step), getattr(step, "_orig_mod", step)
    is_module, kind = isinstance(step, run.torch.nn.Module), getattr(step, "__name__", type(step).__name__)
    must, do = "a function runs its own loss and optimizer", "call them in the function"
    insist(is_module or (optimizer is None and loss is None), "capture", must, "one beside it", do)
    if isinstance(optimizer, str):
        kinds = {name.lower(): made for name, made in vars(run.torch.optim).items() if isinstance(made, type)}
        must, names = "an optimizer is one of torch.optim", tuple(made.__name__ for made in kinds.values())
        where, do = f"capture of {kind}, optimizer", nearest(optimizer, names)
        insist(optimizer.lower() in kinds, where, must, repr(optimizer), do)
        optimizer = kinds[optimizer.lower()]
    insist(phase in _PHASES, f"capture of {kind}, phase", f"it is {', '.join(_PHASES)}", repr(phase), "choose one")
    must, found = f"a step of {phase} has neither loss nor optimizer", "one beside it"
    insist(phase == "train" or (optimizer is None and loss is None), f"capture of {kind}", must, found, "remove it")
    for option, given, such in (("optimizer", optimizer, "torch.optim.AdamW"), ("loss", loss, "my_loss")):
        fits = given is None or callable(given) or isinstance(given, run.Optimizer)
        must, found = f"{option} is a function, such as {such}", repr(given)
        insist(fits, f"capture of {kind}, {option}", must, found, "write it without quotes, or leave it out")
    with run.config_errors(kind), run.fake_mode():
        if is_module:
            module, optimizer = run.copied(step, optimizer)
            step = run.step_of(module, optimizer, loss) if phase == "train" else module
        step = step if phase == "train" else run.torch.no_grad()(step)
        args, kwargs = run.faked((inputs, named_inputs))
        with run.ModuleWatch() as watched:
            watched.compiled = compiled
            step(*args, **kwargs)
            with recorder.OpRecorder(watched, (args, kwargs), _PHASES[phase]) as record:
                returned = step(*args, **kwargs)  # alive until the step ends
                record.grow(returned)
    how = "The second of two steps was recorded, on fake CPU tensors; code that asks for CUDA gets these, too."
    return imported(name or kind, record, free_early=free_early, how=how)


def read_torch(
    source: str, *, phase: Captured | None = None, name: str = "", free_early: bool = False, ranks: int = 1
) -> Imported:
    """Run a function that makes a model and its inputs under fake tensors, and capture a training step of it.

    The function's code runs with your permissions: name only one that you trust. It returns a module, or a function
    that runs a step, and its inputs: ``return model, tokens``. A dictionary at the end holds keyword inputs and options
    of `hosim.torch.capture`: ``return model, tokens, {"optimizer": torch.optim.AdamW}``.

    Of a program that `torch.export.save` wrote, one run on its example inputs is captured, without gradients. PyTorch
    loads it, weights alone where it would unpickle, but evaluates what the file states as a symbolic size.

    Parameters
    ----------
    source
        The function, as ``package.module:function``, or the program, a file whose name ends in ``.pt2``.
    phase
        What the step is: training (train; the default, but of a program); or, without gradients, reading prompts
        (prefill) or adding tokens (decode).
    name
        Name of the workload; default: that of the module's class, or of the step.
    free_early
        Whether to free each storage after its last use, even if PyTorch keeps it longer.
    ranks
        Number of ranks that the step is for, of which the first runs.

    Raises
    ------
    ConfigError
        If there is no such function, or as for `hosim.torch.capture`.
    """
    where = f"import torch {source}"
    if source.endswith(".pt2"):
        do = "say --phase prefill, or import the module"
        insist(phase != "train", f"{where}, phase", "an exported program has no loss", "train", do)
        step, args, named_inputs = _program(Path(source))
        options: dict[str, Any] = {"name": name or named(Path(source).stem), "free_early": free_early}
        return capture(step, *args, **named_inputs, **options, phase=phase or "train")
    phase = phase or "train"
    with finding(source, where) as find, redirect_stdout(sys.stderr):  # the command's output must not mix with prints
        with _part("torch_run").config_errors(where), fake(ranks):
            make = find()
            made = make() if phase == "train" else _part("torch_run").torch.no_grad()(make)()
        if isinstance(made, Imported):
            return made
        parts, options = parts_of(where, made)
        return capture(*parts, **{"phase": phase, "name": name, "free_early": free_early, **options})


def _program(path: Path) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return what runs a program of torch.export, with fake weights, and its example inputs by position and name."""
    run, where, level = _part("torch_run"), inputs.shown(path), logging.root.manager.disable
    must, do = "torch.export.load reads the file", "save it again, by the PyTorch that is installed here"
    try:
        with inputs.opened(path) as file, zipfile.ZipFile(file) as archive:
            unpacked, size = sum(item.file_size for item in archive.infolist()), path.stat().st_size
        insist(unpacked <= size, where, "tensors of a program are stored as they are", "packed", do)
        logging.disable()  # it also logs what is raised
        with patch.dict(os.environ, TORCH_FORCE_WEIGHTS_ONLY_LOAD="1"), warnings.catch_warnings(action="ignore"):
            program = run.torch.export.load(path)
            module = run.torch.export.unflatten(program)
        args, named_inputs = program.example_inputs
    except ConfigError:
        raise
    except Exception as error:
        found = error.__context__ or error  # PyTorch raises another one
        raise ConfigError(where, must, f"{type(found).__name__}: {found}", do) from None
    finally:
        logging.disable(level)
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            held.update(run.faked(held))
    return run.torch.no_grad()(module), args, named_inputs


@contextmanager
def finding(source: str, where: str) -> Iterator[Callable[[], Callable[[], Any]]]:
    """Yield what imports a function that the user names as ``package.module:function``, from this folder or installed.

    Raises
    ------
    ConfigError
        If there is none.
    """
    module, _, function = source.partition(":")
    must = "a step is named as package.module:function"
    do = f"write for example {Path(source).stem}:FUNCTION" if source.endswith(".py") else "write for example mine:step"
    insist(all(map(str.isidentifier, [*module.split("."), function])), where, must, repr(source), do)

    def find() -> Any:
        content, absent = import_module(module), f"module {module!r} has no attribute {function!r}"
        insist(hasattr(content, function), where, "the module has such a function", absent, "correct its name")
        return getattr(content, function)

    with patch.object(sys, "path", [str(Path.cwd()), *sys.path]):
        top, *parts = module.split(".")  # none of its code runs before the import of torch, which takes seconds
        spec, do = find_spec(top), "run this in the folder that holds it, and name it without .py: mine:step"
        for part in parts:  # without the names of packages around it, which are not imported yet
            inside = spec and spec.submodule_search_locations
            spec = PathFinder.find_spec(part, [*inside]) if inside else None
        insist(spec is not None, where, "the module is there", f"No module named {module!r}", do)
        yield find


def parts_of(where: str, made: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the step and its inputs, and the named inputs and options, of what a function that makes them returned.

    Raises
    ------
    ConfigError
        If it returned no step.
    """
    parts = list(made) if isinstance(made, tuple) else [made]
    options = parts.pop() if parts and isinstance(parts[-1], dict) else {}
    must, do = "the function returns a module or a step, and its inputs", "end it with a `return model, tokens`"
    insist(parts and callable(parts[0]), where, must, type(made).__name__, do)
    return parts, options


def _part(module: str) -> Any:
    """Import a module that needs torch."""
    rule, install = "a step of PyTorch is captured where torch is installed", 'run: pip install "hosim[torch]"'
    return import_extra("hosim.torch", rule, install, f"simulator.importers.{module}")[0]


def imported(name: str, record: Any, *, free_early: bool, how: str) -> Imported:
    """Make the graph from a record, and report on it; `how` says how it was recorded."""
    insist(record.calls, f"capture of {name}", "a step runs some op", "none", "call the module in it")
    held_bytes = [0] * len(record.calls) if free_early else _held_bytes(record)
    graph, parameters = _graph(name, record, held_bytes), record.watch.parameters()
    kept = {"parameters": amount(parameters)} if parameters else {}
    on_device = (t for t in range(len(graph.tensors)) if t not in graph.made_on_host)
    kept["peak of live tensors in PyTorch"] = human(int(live_bytes(graph, on_device).max()), "B")
    kept["ops with a source line"] = f"{record.lines:,} of {len(graph.ops):,}"
    stays, held = human(sum(graph.tensors[t].size_bytes for t in graph.outputs), "B"), human(max(held_bytes), "B")
    derived = [
        how,
        "FLOPs are those of torch.utils.flop_counter: of matmuls, convolutions and attention, half of them if causal.",
        f"Tensors not freed when the step ends, {stays}, are outputs; 'outputs: freed' frees them after use.",
        f"Storages freed later than after their last use, up to {held}, are workspace of the ops until then.",
    ]
    if free_early:
        derived[-2:] = ["All is freed after its last use, and not when PyTorch frees it (free_early)."]
    derived += _notes(record, graph)
    kind = "A training step" if any(op.phase == "backward" for op in graph.ops) else _TITLES.get(record.phase, "A run")
    about = {"name": named(name), "title": f"{kind} of {name}, captured from PyTorch", "graph": ".jsonl"}
    assumed = dict.fromkeys(record.batch, "the shape of input_ids, or else of the first input")
    outputs = "freed" if free_early else "kept"
    remote = [escape(storage.name) for storage in record.below if storage.persistent]
    more = record.batch | ({"remote": remote} if remote else {})
    workload = Workload.model_validate({**about, "outputs": outputs, "assumed": assumed, **more})
    return Imported({".yaml": workload, ".jsonl": graph}, kept, tuple(derived), +record.folded)


def _notes(record: Any, graph: Graph) -> Iterator[str]:
    """Yield what else is to be known of a record, and of its graph."""
    left = [graph.tensors[t].size_bytes for index in graph.on_host for t in graph.ops[index].writes]
    met, shares = sum(map(len, next(iter(record.groups.values()), []))), prod(record.shares.values())
    record.batch.update({"batch": record.batch["batch"] * shares} if record.batch else {})
    batch = " and ".join(f"{key} {size:,}" for key, size in record.batch.items())
    apart = sum("/_safe_softmax" in op.name for op in graph.ops)
    below = [storage.size_bytes for storage in record.below if storage.persistent]
    watch, is_copied = record.watch, record.copied and not record.watch.has_memory
    caches = sum(tensor.size_bytes for tensor in graph.tensors if tensor.kind == TensorKind.KV_CACHE)
    brought = "Tensors there are copied in where they are read; ops on them run on the accelerator."
    has_one = "With dropout it has one on CUDA: make the model there."
    grown = "one that grows by copies is one tensor, and its old copy a workspace."
    notes = (
        (left, f"Copies to the host, {len(left):,} of {human(sum(left), 'B')}, are ops of the host. {brought}"),
        (below, f"Copies from the host, {len(below):,} of {human(sum(below), 'B')}: these tensors are at home below."),
        (watch.compiled, "Functions under torch.compile are captured as eager: ops that it would fuse stand apart."),
        (met, f"All {met:,} ranks do what the first does{f'; {shares:,} share gradients' * (shares > 1)}."),
        (batch, f"A step is of {batch}: the shape of input_ids, or else of the first input."),
        (apart, f"Softmax ops in attention, where PyTorch has no fused CPU kernel: {apart:,}. {has_one}"),
        (is_copied, f"Updates in place of views: {record.copied:,} ops of backward, more or fewer in a real step."),
        (record.again, f"{record.again:,} ops of backward run forward again (activation checkpointing)."),
        (caches, f"Caches, {human(caches, 'B')}, are as long as they are after this step; {grown}"),
    )
    return (text for holds, text in notes if holds)


def _held_bytes(record: Any) -> list[int]:
    """Return, for each op, the bytes of storages that PyTorch still holds after their last use [B]."""
    last = dict.fromkeys(record.before, -1)  # unless an op uses them
    last |= {old: index - 1 for old, index in record.replaced.items()}
    last |= {storage: index for index, call in enumerate(record.calls) for storage in (*call.reads, *call.writes)}
    to_host = (call for call in record.calls if call.more.get("device") == HOST)
    change, on_host = [0] * (len(record.calls) + 1), {storage for call in to_host for storage in call.writes}
    for storage, use in last.items():
        died = record.died.get(storage, 0)
        if died > use + 1 and (use < 0 or not storage.persistent) and storage not in on_host:
            change[use + 1] += storage.size_bytes
            change[died] -= storage.size_bytes
    return list(accumulate(change[:-1]))


def _graph(name: str, record: Any, held_bytes: list[int]) -> Graph:
    """Make the graph, in which each storage has a unique name."""
    storages, taken = dict[Storage, None](), Counter[str]()
    for call, size_bytes in zip(record.calls, held_bytes, strict=True):
        call.more["workspace_bytes"] = size_bytes
        storages |= call.reads | call.writes
    storages |= {storage: None for storage in record.before if storage not in record.died}  # perhaps no op uses them
    for storage in storages:
        storage.stays = storage.is_written and storage not in record.died
        storage.name = unique(storage.name, taken)
    return graph_of(GraphBuilder(name, f"capture of {name}"), storages, record.calls, record.groups)

"""Runs a user's PyTorch step on fake tensors, and watches its modules.

PyTorch chooses kernels there as it does on the CPU. Code that asks for CUDA gets the CPU, too, and only then is PyTorch
made to do what it does on CUDA: attention applies dropout inside its kernel, and autocast runs the same functions in
fp32 (documentation of PyTorch, *Automatic Mixed Precision*, "CUDA Ops that can autocast to float32"). A watch follows
modules and optimizers, and so knows the source of an op in the user's code and the owner of a tensor.
"""

from __future__ import annotations

import copy
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import init
from torch.nn.modules import module as modules
from torch.optim import Optimizer
from torch.optim import optimizer as optimizers
from torch.utils._pytree import tree_map_only

from simulator.errors import ConfigError, insist
from simulator.importers.torch_machine import Accelerated, alone, is_cuda, on_cpu, tensors

_TORCH = str(Path(torch.__file__).parent)
_OURS, _PARTS = str(Path(__file__).parents[1]), str(Path(__file__).with_name("torch_"))
_NOT_USERS = (_TORCH, _OURS, str(Path(importlib.__file__).parent), "<")
_LAYERS = (f"{_TORCH}/nn/", f"{_TORCH}/optim/")
_CLIPS, _SCALES = f"{_TORCH}/nn/utils/clip_grad.py", f"{_TORCH}/amp/grad_scaler.py"


class Site(NamedTuple):
    """Source of an op in the user's code: path of the module; file and line."""

    path: str
    line: str


@cache
def _is_users(code: CodeType) -> bool:
    return not code.co_filename.startswith(_NOT_USERS)


@cache
def _is_end(code: CodeType) -> bool:
    calls_step = code.co_filename.startswith(_OURS) and not code.co_filename.startswith(_PARTS)
    return calls_step or code.co_name == "_engine_run_backward"


def line_of(frame: FrameType | None) -> str:
    """Return file and line of the innermost frame in the user's code; empty if none, or if backward began since."""
    while frame is not None and not _is_users(frame.f_code):
        frame = None if _is_end(frame.f_code) else frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""


def _line_of_error(error: BaseException) -> str:
    """Return file and line of the failure in the user's code, or else in a PyTorch layer or optimizer; or empty."""
    lines = [(frame.f_code, f"{frame.f_code.co_filename}:{line}") for frame, line in walk_tb(error.__traceback__)]
    of_users = [line for code, line in lines if _is_users(code)]
    of_layers = [line for _, line in lines if line.startswith(_LAYERS)]
    return (of_users or of_layers or [""])[-1]


def is_compiled(step: Any) -> bool:
    """Tell whether a module, or a part of it, was compiled by ``torch.compile``; copies lose that mark."""
    parts = step.modules() if isinstance(step, torch.nn.Module) else ()
    return any(hasattr(part, "_orig_mod") or part._compiled_call_impl is not None for part in parts)


class ModuleWatch:
    """Follows which module runs, and whether an optimizer runs; removes its hooks on exit.

    Attributes
    ----------
    stack
        Paths of the running modules, the innermost last.
    compiled
        Whether any code that ran was compiled.

    Parameters
    ----------
    has_memory
        Whether modules may have memory, as those of a step that runs for real.
    """

    def __init__(self, *, has_memory: bool = False) -> None:
        self.has_memory, self.compiled = has_memory, False
        self.stack, self._paths, self._roots = list[str](), dict[int, str](), list[tuple[str, torch.nn.Module]]()
        self._optimizers, self._hooks = dict[Optimizer, None](), ExitStack()

    def __enter__(self) -> ModuleWatch:
        self._hooks.enter_context(patch.multiple(Accelerated, in_step=True, in_update=False))
        for hook in (
            modules.register_module_forward_pre_hook(self._enter_module),
            modules.register_module_forward_hook(self._leave_module, always_call=True),
            optimizers.register_optimizer_step_pre_hook(self._enter_update),
            optimizers.register_optimizer_step_post_hook(lambda *_: setattr(Accelerated, "in_update", False)),
        ):
            self._hooks.callback(hook.remove)
        # Compiled code asks for the stance's callback each time that it is called (the stance forces eager).
        compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
        if asked := getattr(compiler, "_callback_from_stance", None):
            note = partial(self._note_compiled, asked)
            self._hooks.enter_context(patch.object(compiler, "_callback_from_stance", note))
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def _note_compiled(self, asked: Callable[[Any], Any], callback: Any) -> Any:
        self.compiled |= callback not in (None, False)
        return asked(callback)

    def _enter_module(self, module: torch.nn.Module, _inputs: object) -> None:
        if id(module) not in self._paths:
            path = f"{self.stack[-1]}.{type(module).__name__}" if self.stack else type(module).__name__
            if self.stack and next(module.parameters(), None) is None:  # perhaps made in forward, and gone after it
                self.stack.append(path)
                return
            self._add(module, path)
        self.stack.append(self._paths[id(module)])

    def _leave_module(self, *_: object) -> None:
        if self.stack:  # empty if a module was refused
            self.stack.pop()

    def _add(self, module: torch.nn.Module, path: str) -> None:
        """Add a module that is part of no known one, with all its submodules."""
        alike = sum(type(root) is type(module) for _, root in self._roots)
        prefix = f"{path}{alike or ''}." if self._roots else ""
        parts = ((name, part) for name, parameter in module.named_parameters() for part in tensors([parameter]))
        real = next((name for name, part in parts if not isinstance(part, FakeTensor)), None)
        must, do = "tensors of a step were made in `with hosim.torch.fake():`", "make module and optimizer there"
        insist(self.has_memory or real is None, f"{path}.{real}", must, "a parameter with memory", do)
        self._roots.append((prefix, module))
        for name, part in module.named_modules():
            self._paths.setdefault(id(part), prefix + name if name else prefix[:-1] or path)

    def _enter_update(self, optimizer: Optimizer, *_: object) -> None:
        self._optimizers[optimizer] = None
        Accelerated.in_update = True

    def is_update(self, frame: FrameType | None) -> bool:
        """Tell whether an optimizer runs, or a caller between this frame and the user's code clips gradients for it."""
        while not (Accelerated.in_update or self.stack or frame is None or _is_users(frame.f_code)):
            if frame.f_code.co_filename == _CLIPS:
                return True
            frame = frame.f_back
        return Accelerated.in_update

    def _parameters(self) -> dict[int, tuple[str, torch.Tensor]]:
        """Return names and parameters of modules and optimizers by id, each parameter once."""
        parameters: dict[int, tuple[str, torch.Tensor]] = {}
        for prefix, root in self._roots:
            for name, parameter in root.named_parameters():
                parameters.setdefault(id(parameter), (prefix + name, parameter))
        for group in (group for optimizer in self._optimizers for group in optimizer.param_groups):
            for parameter in group["params"]:
                parameters.setdefault(id(parameter), (f"parameter{len(parameters)}", parameter))
        return parameters

    def parameters(self) -> int:
        """Count the elements of all parameters of modules and optimizers."""
        return sum(parameter.numel() for _, parameter in self._parameters().values())

    def owned(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Yield name, kind and tensor of everything that modules and optimizers hold, gradients included."""
        for prefix, root in self._roots:
            for name, buffer in root.named_buffers():
                yield prefix + name, "weight", buffer
        parameters = self._parameters()
        for name, parameter in parameters.values():
            yield name, "weight", parameter
            if parameter.grad is not None:
                yield f"{name}.grad", "gradient", parameter.grad
        for parameter, state in (pair for optimizer in self._optimizers for pair in optimizer.state.items()):
            for name, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    yield f"{parameters[id(parameter)][0]}.{name}", "optimizer_state", value


class _OneMode(FakeTensorMode):  # type: ignore[misc]
    """A mode that a copy of a fake tensor shares: under one of its own, its views had storages of their own."""

    def __deepcopy__(self, _memo: object) -> _OneMode:
        return self


@cache
def mode() -> FakeTensorMode:
    """Return the process's only mode, so that fake tensors of different calls can be mixed."""
    return _OneMode(allow_non_fake_inputs=True)


@contextmanager
def fake_mode(ranks: int | None = None) -> Iterator[None]:
    """Make all new tensors fake; run code for an accelerator on the CPU, uncompiled, as the first of `ranks`."""
    if any(isinstance(entered, Accelerated) for entered in torch.overrides._get_current_function_mode_stack()):
        with alone(ranks):  # all else is as it should be
            yield
        return
    swap, make, log = torch.utils.swap_tensors, torch.autocast.__init__, logging.getLogger(FakeTensorMode.__module__)
    accelerated, overrides = Accelerated(), torch.overrides.has_torch_function
    run_backward = torch.autograd._engine_run_backward

    def swap_unheld(tensor: Any, other: Any) -> None:
        """Swap tensors for ``module.to(dtype)``, which fails if the mode's memo still refers to one of them."""
        mode().fake_tensor_converter.meta_converter.tensor_memo.clear()
        swap(tensor, other)

    def autocast(self: Any, device_type: str, dtype: Any = None, *more: Any, **options: Any) -> None:
        """Cast on the CPU, by default to the type of the device that is asked for."""
        accelerated.is_asked |= is_cuda(device_type) and options.get("enabled", True)  # a checkpoint disables it
        make(self, on_cpu(device_type), dtype or torch.get_autocast_dtype(device_type), *more, **options)

    def backward(*given: Any, **options: Any) -> Any:
        """Run backward, and what a checkpoint runs again there: PyTorch calls it without the mode."""
        with accelerated if accelerated.is_asked else nullcontext():  # it slows what fake tensors do there
            return run_backward(*given, **options)

    def has_override(given: Any) -> bool:
        """Answer attention layers, which choose a kernel by it, as without the mode."""
        is_alone = torch._C._len_torch_function_stack() == 1
        with torch.overrides._pop_mode_temporarily() if is_alone else nullcontext():
            return bool(overrides(given))

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.utils, "swap_tensors", swap_unheld))
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)  # it also logs what is raised
        stack.enter_context(warnings.catch_warnings())  # about PyTorch's own access to fake tensors
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        stack.enter_context(patch.object(torch.autocast, "__init__", autocast))
        # it draws until all values are in bounds
        stack.enter_context(patch.object(init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor))
        stack.enter_context(patch.object(torch.autograd, "_engine_run_backward", backward))
        stack.enter_context(patch.object(torch.overrides, "has_torch_function", has_override))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(alone(ranks))
        stack.enter_context(accelerated.hooked())
        stack.enter_context(mode())
        yield


def faked(values: Any) -> Any:
    """Return the nested containers with each tensor replaced by a fake one."""
    return tree_map_only(torch.Tensor, _fake, values)


def _fake(tensor: Any) -> Any:
    """Return a fake tensor like this one, on the CPU."""
    if all(isinstance(part, FakeTensor) and part.fake_mode is mode() for part in tensors([tensor])):
        return tensor
    if tensor.device.type == "cpu":
        return mode().from_tensor(tensor, static_shapes=True)
    device = tensor.device if is_cuda(tensor.device) else "cpu"
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made


def copied(module: Any, optimizer: Any) -> tuple[Any, Any]:
    """Return the module with fake tensors (a copy if it has real ones), and its optimizer or None."""
    held, is_made = [*module.parameters(), *module.buffers()], isinstance(optimizer, torch.optim.Optimizer)
    if is_made:
        held += tensors(list(optimizer.state.values()))
    fakes = {id(tensor): _fake(tensor) for tensor in held}
    if any(fakes[id(tensor)] is not tensor for tensor in held):
        module, optimizer = copy.deepcopy((module, optimizer), fakes)
    return module, optimizer if is_made or optimizer is None else optimizer(module.parameters())


def step_of(module: Any, optimizer: Any, loss: Callable[[Any], Any] | None) -> Callable[..., Any]:
    """Return the usual training step: it frees gradients first, and the module's output before backward."""

    def step(*args: Any, **kwargs: Any) -> Any:
        module.zero_grad(set_to_none=True)
        made = module(*args, **kwargs)
        value = loss(made) if loss else getattr(made, "loss", made)
        del made
        must, found = "the loss is a tensor of one element", type(value).__name__
        is_loss = isinstance(value, torch.Tensor) and value.numel() == 1
        insist(is_loss, type(module).__name__, must, found, "pass loss=, a function of the module's output")
        value.backward()
        if optimizer is not None:
            optimizer.step()
        return value.detach()

    return step


_NO_SCALER = "make the GradScaler with enabled=False: it asks whether gradients are finite, and a capture takes them so"

_NO_GROUP = ("environment variable RANK", "environment variable WORLD_SIZE", "process group has not been initialized")
_OF_RANKS = "say for how many ranks the step is: --ranks 8, or hosim.torch.fake(ranks=8)"


@contextmanager
def config_errors(name: str) -> Iterator[None]:
    """Turn an error in the user's code, which fails under fake tensors, into one with file and line.

    Raises
    ------
    ConfigError
        For whatever the code raises.
    """
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        where, found = _line_of_error(error) or name, f"{type(error).__name__}: {error}"
        must, is_lone = "the step runs under fake tensors", not any(words in str(error) for words in _NO_GROUP)
        do = "correct it there" if is_lone else _OF_RANKS
        if isinstance(error, fake_tensor.DataDependentOutputException | fake_tensor.DynamicOutputShapeException):
            must, found = "nothing in a step depends on the values of tensors", f"{error.func} there"
            do = "leave it out of the step (.item(), a condition on a tensor), or put a fixed value there"
            is_of_scaler = any(frame.f_code.co_filename == _SCALES for frame, _ in walk_tb(error.__traceback__))
            do = _NO_SCALER if is_of_scaler else do
        elif isinstance(error, fake_tensor.UnsupportedOperatorException) or "no fake impl" in str(error):
            must, found = "each kernel runs under fake tensors", str(getattr(error, "func", error)).partition(". ")[0]
            do = "give it a form there (torch.library.register_fake), or run it for real: hosim.torch.offload"
        raise ConfigError(where, must, found, do) from error

"""The origin of an op of PyTorch in the user's code, and the owner of a tensor: modules, parameters and optimizers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as modules
from torch.optim import Optimizer
from torch.optim import optimizer as optimizers

from simulator.errors import insist

_TORCH = str(Path(torch.__file__).parent)
_NOT_USERS = (_TORCH, str(Path(__file__).parent), str(Path(importlib.__file__).parent), "<")
# The caller of the user's step, or of the function that makes it.
_OUTSIDE = str(Path(__file__).with_name("torch.py"))
_LAYERS = (f"{_TORCH}/nn/", f"{_TORCH}/optim/")
_CLIPS, _SCALES = f"{_TORCH}/nn/utils/clip_grad.py", f"{_TORCH}/amp/grad_scaler.py"


class Site(NamedTuple):
    """The origin of an op in the user's code: path of the module, and file and line."""

    path: str
    line: str


@cache
def _is_users(code: CodeType) -> bool:
    return not code.co_filename.startswith(_NOT_USERS)


@cache
def _is_end(code: CodeType) -> bool:
    return code.co_name == "_engine_run_backward" or code.co_filename == _OUTSIDE


def line_of(frame: FrameType | None) -> str:
    """Return file and line of the innermost frame that is the user's; empty if none, or none since backward began."""
    while frame is not None and not _is_users(frame.f_code):
        frame = None if _is_end(frame.f_code) else frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""


def line_of_error(error: BaseException) -> str:
    """Return file and line where a user's code went wrong, or else a layer or an optimizer of PyTorch; or empty."""
    lines = [(frame.f_code, f"{frame.f_code.co_filename}:{line}") for frame, line in walk_tb(error.__traceback__)]
    of_users = [line for code, line in lines if _is_users(code)]
    of_layers = [line for _, line in lines if line.startswith(_LAYERS)]
    return (of_users or of_layers or [""])[-1]


def is_of_scaler(error: BaseException) -> bool:
    """Tell whether a GradScaler raised it, or a function that it called."""
    return any(frame.f_code.co_filename == _SCALES for frame, _ in walk_tb(error.__traceback__))


def is_compiled(step: Any) -> bool:
    """Tell whether a module, or a part of it, was given to ``torch.compile``; a copy of it does not tell."""
    parts = step.modules() if isinstance(step, torch.nn.Module) else ()
    return any(hasattr(part, "_orig_mod") or part._compiled_call_impl is not None for part in parts)


class ModuleWatch:
    """Follows which module runs, and whether an optimizer does; its hooks go when it ends.

    Attributes
    ----------
    stack
        Paths of the modules that run, the innermost last.
    in_update
        Whether an optimizer runs.
    compiled
        Whether any code that ran was compiled.
    """

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.in_update = self.compiled = False
        self._paths: dict[int, str] = {}
        self._roots: list[tuple[str, torch.nn.Module]] = []
        self._optimizers: dict[Optimizer, None] = {}
        self._hooks: list[Any] = []

    def __enter__(self) -> ModuleWatch:
        self._hooks = [
            modules.register_module_forward_pre_hook(self._enter_module),
            modules.register_module_forward_hook(self._leave_module, always_call=True),
            optimizers.register_optimizer_step_pre_hook(self._enter_update),
            optimizers.register_optimizer_step_post_hook(self._leave_update),
        ]
        # Compiled code asks the stance (it is to run eager) for its callback each time that it is called.
        compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
        if asked := getattr(compiler, "_callback_from_stance", None):
            compiler._callback_from_stance = partial(self._note_compiled, asked)
            self._hooks.append(SimpleNamespace(remove=partial(setattr, compiler, "_callback_from_stance", asked)))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _note_compiled(self, asked: Callable[[Any], Any], callback: Any) -> Any:
        self.compiled |= callback not in (None, False)
        return asked(callback)

    def _enter_module(self, module: torch.nn.Module, _inputs: object) -> None:
        if id(module) not in self._paths:
            path = f"{self.stack[-1]}.{type(module).__name__}" if self.stack else type(module).__name__
            if self.stack and next(module.parameters(), None) is None:  # made in forward, perhaps, and gone after it
                self.stack.append(path)
                return
            self._add(module, path)
        self.stack.append(self._paths[id(module)])

    def _leave_module(self, *_: object) -> None:
        if self.stack:  # it is empty where a module was refused
            self.stack.pop()

    def _add(self, module: torch.nn.Module, path: str) -> None:
        """Enter a module that no known one holds, and all that it holds."""
        alike = sum(type(root) is type(module) for _, root in self._roots)
        prefix = f"{path}{alike or ''}." if self._roots else ""
        real = next((name for name, p in module.named_parameters() if not isinstance(p, FakeTensor)), None)
        must, do = "what a step uses was made in `with hosim.torch.fake():`", "make the module and its optimizer there"
        insist(real is None, f"{path}.{real}", must, "a parameter with memory", do)
        self._roots.append((prefix, module))
        for name, part in module.named_modules():
            self._paths.setdefault(id(part), prefix + name if name else prefix[:-1] or path)

    def _enter_update(self, optimizer: Optimizer, *_: object) -> None:
        self._optimizers[optimizer] = None
        self.in_update = True

    def _leave_update(self, *_: object) -> None:
        self.in_update = False

    def is_update(self, frame: FrameType | None) -> bool:
        """Tell whether an optimizer runs, or a function called from this frame on clips gradients for it."""
        while not (self.in_update or self.stack or frame is None or _is_users(frame.f_code)):
            if frame.f_code.co_filename == _CLIPS:
                return True
            frame = frame.f_back
        return self.in_update

    def _parameters(self) -> dict[int, tuple[str, torch.Tensor]]:
        """Return names and parameters of modules and optimizers, each parameter once, by its id."""
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
        """Iterate over name, kind and tensor of all that modules and optimizers hold, gradients as well."""
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

"""The package under the name of its command: ``import hosim``, and ``import hosim.torch``."""

import sys
from types import ModuleType

import simulator


class _Torch(ModuleType):
    """``hosim.torch``, which is loaded when something of it is used, as the rest of the package."""

    def __getattr__(self, name: str) -> object:
        return getattr(simulator.torch, name)


sys.modules[__name__] = simulator
sys.modules[f"{__name__}.torch"] = _Torch(f"{__name__}.torch")

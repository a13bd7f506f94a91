"""A storage that a step holds, and what was issued on it."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from simulator.errors import HosimError

OUT, IN, FREE, FORGET, ROOM, HELD, BELOW = "copy out", "copy in", "free", "forget", "room", "held", "below"


class ExecutionError(HosimError):
    """A step cannot go on under its plan."""


def insist_step(holds: object, where: str, must: str, found: str, do: str) -> None:
    """Raise an `ExecutionError` if a rule of a step that runs does not hold."""
    if not holds:
        raise ExecutionError(where, must, found, do)


def failing(do: Callable[..., None], *arguments: Any) -> BaseException | None:
    """Do something, and return its error: a thread of copies must not end with it."""
    try:
        do(*arguments)
    except BaseException as error:
        return error
    return None


class HeldStorage:
    """A storage that is followed: its size, and where its bytes are.

    Attributes
    ----------
    name, size_bytes
        Its name in messages; its size [B].
    is_away, is_kept
        Whether, once all actions issued so far have ended, the compute tier holds nothing of it; whether the lower
        tier holds its bytes.
    below
        Its place in the lower tier, where its bytes are unless they are on their way there; None if they are not.
    used_at
        When it was last used, as a count of calls.
    remake
        Makes its bytes again; None unless the plan has given them up without a copy.
    """

    __slots__ = ("below", "held_bytes", "is_away", "is_kept", "jobs", "name", "ref", "remake", "size_bytes", "used_at")

    def __init__(self, ref: weakref.ref[Any], name: str, size_bytes: int) -> None:
        self.ref, self.name, self.size_bytes, self.held_bytes = ref, name, size_bytes, size_bytes
        self.is_away, self.is_kept, self.used_at = False, False, 0
        self.jobs: deque[Issued] = deque()  # ``deque[Issued]()`` takes five times as long, and each op makes one
        self.below: int | None = None
        self.remake: Callable[[], None] | None = None

    def resize(self, size_bytes: int, resize: Callable[[Any, int], None]) -> int:
        """Give it its size in the compute tier, or none; return how many bytes more it then has there [B].

        Parameters
        ----------
        size_bytes
            Its size, or 0.
        resize
            Gives a storage a size; not called for one that takes no room here, such as one of the host.

        Raises
        ------
        ExecutionError
            If that cannot be, as another library shows its bytes, too.
        """
        storage = self.ref() if self.size_bytes else None
        if storage is not None and not storage.resizable():
            self.is_away = not self.held_bytes
            must, do = "a storage that moves can be resized", "give numpy a copy of it: .clone().numpy()"
            raise ExecutionError(self.name, must, "one that numpy or such shows, too", do)
        if storage is not None:
            resize(storage, size_bytes)
        before, self.held_bytes = self.held_bytes, size_bytes
        return size_bytes - before


class Issued(NamedTuple):
    """An action on a block that has been issued; it holds the storage, so that PyTorch cannot free it meanwhile.

    A copy out has the moment `after` which it starts.
    """

    kind: str
    block: HeldStorage
    storage: Any
    after: Any

"""What interrupts a program: the signals that end a command, and Python's search for garbage."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

INTERRUPTS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGXCPU") if hasattr(signal, name)
)
"""Ctrl-C, a stop, a terminal that is closed, a limit on processor time; as far as the system has them."""

complete: list[str] = []
"""What a command has written, such as folders, so that it can name them when it is interrupted after all."""


@contextmanager
def waiting() -> Iterator[None]:
    """Hold back interrupts within the block; what is started meanwhile inherits that. What is ignored stays so."""
    came: list[int] = []
    is_main = current_thread() is main_thread()
    handlers = {signum: signal.getsignal(signum) for signum in INTERRUPTS} if is_main else {}
    handlers = {signum: handler for signum, handler in handlers.items() if handler is not signal.SIG_IGN}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    for signum in handlers:  # another thread may take the signal; its handler runs in this one all the same
        signal.signal(signum, lambda signum, frame: came.append(signum))
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def no_garbage_search() -> Iterator[None]:
    """Pause Python's search for garbage: for code that makes many objects, of which most stay to the end."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

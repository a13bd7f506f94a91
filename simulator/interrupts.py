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
"""What a command has written, such as folders, so that it can say so when it is interrupted after all."""


@contextmanager
def waiting() -> Iterator[None]:
    """Let interrupts wait; what is started meanwhile inherits that. What is ignored stays so."""
    came: list[int] = []
    is_main = current_thread() is main_thread()
    handlers = {number: signal.getsignal(number) for number in INTERRUPTS} if is_main else {}
    handlers = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    for number in handlers:  # another thread may take the signal; its handler runs in this one all the same
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def no_garbage_search() -> Iterator[None]:
    """Let Python not look for garbage meanwhile: for code that makes many objects, of which most stay to the end."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

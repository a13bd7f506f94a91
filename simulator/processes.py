"""Processes that end with the one that started them: an interrupt is the parent's alone, which then ends them.

A terminal sends Ctrl-C to all processes of a command, also to one that is about to start and knows no better than to
print where it was. So it waits until all have been started; those inherit that it waits, and then ignore it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from threading import current_thread, main_thread
from typing import Any, Literal, TypeVar

Outcome = TypeVar("Outcome")

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def working(
    method: Literal["spawn", "fork"],
    workers: int,
    do: Callable[[Any], Outcome],
    tasks: Sequence[Any],
    begin: Callable[[], None] = lambda: None,
) -> Iterator[list[Future[Outcome]]]:
    """Start processes on tasks; whatever ends the block ends them, too.

    Parameters
    ----------
    method
        How they start: ``spawn`` afresh, ``fork`` with all that this process has.
    workers
        How many.
    do, tasks
        What is done for each task; it is sent to the processes.
    begin
        What each process does first.

    Yields
    ------
    list of Future
        The outcomes that are to come, in the order of the tasks.
    """
    others = set(active_children())
    pool = ProcessPoolExecutor(workers, get_context(method), _begin, (begin,))
    try:
        with _interrupts_wait():
            futures = [pool.submit(do, task) for task in tasks]
        yield futures
    except BaseException:
        for process in set(active_children()) - others:
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Let interrupts wait; what is started meanwhile inherits that."""
    came: list[int] = []
    is_main = current_thread() is main_thread()
    handlers = {number: signal.getsignal(number) for number in _INTERRUPTS} if is_main else {}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
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


def _begin(begin: Callable[[], None]) -> None:
    """Leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
    begin()

"""Processes that end with the one that started them: when it fails, when it is interrupted, and when it is killed.

`worked` starts processes afresh (spawn), for many tasks that share little; `forked` forks this one, for calls that need
all that it has. Both hand out one task after another, through pipes.

Why not a pool of `concurrent.futures`: it breaks as a whole when one process dies, its processes outlive a parent that
is killed, its threads make forks unsafe, and its semaphores have names, so that they may stay behind.

A terminal sends Ctrl-C to all processes of a command, also to one that is about to start and would print a traceback.
So interrupts wait while a process starts; it inherits that, and then ignores them. A killed process ends nobody: each
process watches whether the one that started it is still there. Where no process can be started, this one does the work.
"""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import cache, partial
from multiprocessing import Pipe, current_process, get_all_start_methods, get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from threading import Thread, active_count
from typing import Any

from simulator.interrupts import INTERRUPTS, waiting

Make = Callable[[], Callable[[Any], Any]]
"""Builds what all tasks share and returns what does one task; it is sent to other processes."""
Tell = Callable[..., None]
"""Called now and then with how far a call is."""
Task = tuple[int, Any]
"""A task, or what came of it, behind its number."""


def worked(make: Make, tasks: Sequence[Task], workers: int) -> Generator[Task, None, None]:
    """Do tasks in processes that start afresh (spawn) and build what all tasks share once; closing it ends them.

    Parameters
    ----------
    make
        Builds it, with the first task of a process, so that an error there is an error of that task.
    tasks
        Each with its number.
    workers
        How many processes at most. With 0, or where none can be started, this process does all tasks.

    Yields
    ------
    tuple
        The number of a task and what came of it, as they end. A task whose process dies is done once more, in the end,
        if any process lived to tell; a task whose process dies again is left out.
    """
    most = 0 if current_process().daemon else workers
    if most:
        with suppress(OSError):
            ensure_running()  # before interrupts wait: once the tracker has started, it lets them through again
    left = yield from _handed_out(tasks, most, partial(_opened, get_context("spawn").Process, _work, make))
    if left:
        do = make()
        yield from ((number, do(task)) for number, task in left)


def forked(calls: Sequence[Callable[[Tell], Any]], tell: Tell) -> Generator[Task, None, None]:
    """Do calls in forks of this process, in as many as there are cores; closing it ends them.

    This process does a single call itself, and all calls where it cannot fork, or not safely.

    Parameters
    ----------
    calls
        Each is called with what tells how far it is. What it returns, raises and tells can be pickled.
    tell
        Called here with what a call tells.

    Yields
    ------
    tuple
        The number of a call and what came of it, as they end.

    Raises
    ------
    BrokenProcessPool
        If a process dies.
    """
    most = (os.cpu_count() or 1) if len(calls) > 1 and _can_fork() else 0
    numbers = [(number, number) for number in range(len(calls))]
    left = yield from _handed_out(numbers, most, partial(_opened, get_context("fork").Process, _call, calls), tell)
    yield from ((number, calls[number](tell)) for number, _ in left)


def _handed_out(
    tasks: Sequence[Task], most: int, start: Callable[[list[BaseProcess]], Connection], tell: Tell | None = None
) -> Generator[Task, None, Sequence[Task]]:
    """Hand tasks to at most so many processes, and return those that are left because no process could be started.

    A process that tells how far it is has no second try: it may have written half of a file.
    """
    todo, at_work = deque(tasks), dict[Connection, int]()
    first_try, second_tries, has_lived = dict(tasks if tell is None else ()), deque[Task](), False
    with _ending() as started:
        while todo or at_work:
            with suppress(OSError):
                while todo and len(at_work) < most:
                    here = start(started)
                    at_work[here] = _given(here, todo)
            if not at_work:
                return todo
            ready = wait(at_work)
            for here in [one for one in at_work if one in ready]:
                number = at_work.pop(here)
                try:
                    is_done, outcome = _received(here)
                except BrokenProcessPool:
                    if tell is not None:
                        raise
                    second_tries += [(number, first_try.pop(number))] if number in first_try else []
                    continue
                if tell is not None and not is_done:
                    at_work[here] = number
                    tell(*outcome)
                    continue
                has_lived = True
                at_work |= {here: _given(here, todo)} if todo else {}
                yield number, outcome
            if has_lived and not todo:
                todo, second_tries = second_tries, todo
    return ()


def _given(here: Connection, todo: deque[Task]) -> int:
    """Give the next task to a process; if it has died, that is noticed when it should tell."""
    number, task = todo.popleft()
    with suppress(ConnectionError):
        here.send(task)
    return number


def _work(there: Connection, make: Make) -> None:
    """Do task after task, in a process of its own."""
    made = cache(make)

    def do(task: Any) -> Any:
        return made()(task)

    while True:
        _tell(there, do, there.recv())


def _call(there: Connection, calls: Sequence[Callable[[Tell], Any]]) -> None:
    """Do call after call, in a fork."""

    def tell(*how_far: Any) -> None:
        there.send((False, how_far, None))

    while True:
        _tell(there, calls[there.recv()], tell)


def _can_fork() -> bool:
    is_able = "fork" in get_all_start_methods() and not current_process().daemon
    return is_able and (os.cpu_count() or 1) > 1 and active_count() == 1


def _tell(there: Connection, do: Callable[[Any], Any], argument: Any) -> None:
    """Do it, and tell what came of it, or what it raised."""
    outcome: Any = None
    error: Exception | None = None
    try:
        outcome = do(argument)
    except MemoryError:
        error = MemoryError()
    except Exception as raised:
        error = raised
        error.add_note(traceback.format_exc())
    there.send((True, outcome, error))


def _received(here: Connection) -> tuple[bool, Any]:
    """Whether a task is done, and what came of it, or how far it is; raises what the task raised."""
    try:
        is_done, outcome, error = here.recv()
    except (EOFError, ConnectionError):
        raise BrokenProcessPool("a process ended before it had told how its call went") from None
    if error is not None:
        raise error
    return is_done, outcome


@contextmanager
def _ending() -> Iterator[list[BaseProcess]]:
    """Give a list for the processes that are started within the block; behind it they have ended, or are ended."""
    started: list[BaseProcess] = []
    try:
        yield started
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.join()
            with suppress(ValueError):  # where SIGCHLD is ignored, nobody knows that it has ended
                process.close()


def _opened(
    process_of: Callable[..., BaseProcess], serve: Callable[..., None], shared: Any, started: list[BaseProcess]
) -> Connection:
    """Start a process with a pipe to it, and note it; an error of the system if there can be no more."""
    here, there = Pipe()
    process = process_of(target=_begin, args=(there, serve, shared))
    with there, waiting():
        process.start()
        started.append(process)
    return here


def _begin(there: Connection, serve: Callable[..., None], shared: Any) -> None:
    """In a process that was started: leave a terminal's signals to the one that started it, and end after it."""
    for number in INTERRUPTS:
        is_left = number in (signal.SIGINT, signal.SIGHUP)
        signal.signal(number, signal.SIG_IGN if is_left else signal.SIG_DFL)
    with suppress(RuntimeError):  # the system allows no more threads
        Thread(target=_outlived, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
    gc.freeze()  # looks for no garbage in what a fork has inherited
    with suppress(EOFError, ConnectionError):  # nobody asks for more, or listens
        serve(there, shared)


def _outlived() -> None:
    """End this process once the one that started it is gone: there is nobody to tell."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

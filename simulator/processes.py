"""Processes that end with the one that started them: when it fails, when it is interrupted, and when it is killed.

`spawned` does many tasks that share little, and that other processes can be sent; `forked` does calls that need all
that this one has. Both hand out one task after another, through pipes, to forks of this process. Where it cannot fork
safely, `spawned` starts processes afresh, each of which imports all anew.

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
"""Build what all tasks share and return what does one task; it is sent to other processes."""
Tell = Callable[..., None]
"""Report now and then how far a call is."""
Do = Callable[[Any, Tell], Any]
"""Do a task, and report how far it is."""
ProcessOf = Callable[..., BaseProcess]
"""Makes a process, such as ``get_context("fork").Process``."""
Task = tuple[int, Any]
"""Index of a task, and the task or its outcome."""


def spawned(make: Make, tasks: Sequence[Task], workers: int) -> Generator[Task, None, None]:
    """Do tasks in processes that each build what all tasks share once; closing it ends them.

    Parameters
    ----------
    make
        Builds it, with the first task of a process, so that an error there is an error of that task.
    tasks
        Each with its index.
    workers
        Most processes. With 0, or where none can be started, this process does all tasks.

    Yields
    ------
    tuple
        The index of a task and its outcome, as they end. A task whose process dies is done once more, in the end,
        if any process lived to tell; a task whose process dies again is left out.
    """
    most, can_fork = 0 if current_process().daemon else workers, _can_fork()
    if most and not can_fork:
        with suppress(OSError):
            ensure_running()  # before interrupts wait: once the tracker has started, it lets them through again
    context: Any = get_context("fork" if can_fork else "spawn")
    left = yield from _hand_out(tasks, most, context.Process, partial(_work, make))
    if left:
        do = make()
        yield from ((index, do(task)) for index, task in left)


def forked(calls: Sequence[Callable[[Tell], Any]], tell: Tell) -> Generator[Task, None, None]:
    """Do calls in forks of this process, in as many as there are cores; closing it ends them.

    This process does a single call itself, and all calls where it cannot fork, or not safely.

    Parameters
    ----------
    calls
        Each is called with a function that reports its progress. What it returns, raises and reports can be pickled.
    tell
        Called in this process with the progress of a call.

    Yields
    ------
    tuple
        The index of a call and its outcome, as they end.

    Raises
    ------
    BrokenProcessPool
        If a process dies.
    """
    cores = os.cpu_count() or 1
    most = cores if cores > 1 and len(calls) > 1 and _can_fork() else 0
    tasks = [*enumerate(range(len(calls)))]
    left = yield from _hand_out(tasks, most, get_context("fork").Process, partial(_call, calls), tell)
    yield from ((index, calls[index](tell)) for index, _ in left)


def _hand_out(
    tasks: Sequence[Task], most: int, process_of: ProcessOf, do: Do, tell: Tell | None = None
) -> Generator[Task, None, Sequence[Task]]:
    """Hand tasks to at most so many processes, and return those left because no process could be started.

    A call that reports its progress has no second try: it may have written half of a file.
    """
    todo, at_work = deque(tasks), dict[Connection, int]()
    first_try, second_tries, has_lived = dict(tasks if tell is None else ()), deque[Task](), False
    with _ending_processes() as started:
        while todo or at_work:
            with suppress(OSError):
                while todo and len(at_work) < most:
                    connection = _start_process(process_of, do, started)
                    at_work[connection] = _send_next(connection, todo)
            if not at_work:
                return todo
            ready = wait(at_work)
            for connection in [connection for connection in at_work if connection in ready]:
                index = at_work.pop(connection)
                try:
                    is_done, outcome = _receive(connection)
                except BrokenProcessPool:
                    if tell is not None:
                        raise
                    second_tries += [(index, first_try.pop(index))] if index in first_try else []
                    continue
                if tell is not None and not is_done:
                    at_work[connection] = index
                    tell(*outcome)
                    continue
                has_lived = True
                at_work |= {connection: _send_next(connection, todo)} if todo else {}
                yield index, outcome
            if has_lived and not todo:
                todo, second_tries = second_tries, todo
    return ()


def _send_next(connection: Connection, todo: deque[Task]) -> int:
    """Give the next task to a process; if it has died, that is noticed when its outcome is due."""
    index, task = todo.popleft()
    with suppress(ConnectionError):
        connection.send(task)
    return index


_made = cache(lambda make: make())


def _work(make: Make, task: Any, tell: Tell) -> Any:
    return _made(make)(task)


def _call(calls: Sequence[Callable[[Tell], Any]], index: int, tell: Tell) -> Any:
    return calls[index](tell)


def _can_fork() -> bool:
    is_able = "fork" in get_all_start_methods() and not current_process().daemon
    return is_able and active_count() == 1


def _serve(connection: Connection, do: Do) -> None:
    """Do task after task, and send the outcome of each, or what it raised."""

    def tell(*progress: Any) -> None:
        connection.send((False, progress, None))

    while True:
        task, outcome = connection.recv(), None
        error: Exception | None = None
        try:
            outcome = do(task, tell)
        except MemoryError:
            error = MemoryError()
        except Exception as raised:
            error = raised
            error.add_note(traceback.format_exc())
        connection.send((True, outcome, error))


def _receive(connection: Connection) -> tuple[bool, Any]:
    """Return whether a task is done, and its outcome or its progress; raise what the task raised."""
    try:
        is_done, outcome, error = connection.recv()
    except (EOFError, ConnectionError):
        raise BrokenProcessPool("a process ended before it had told how its call went") from None
    if error is not None:
        raise error
    return is_done, outcome


@contextmanager
def _ending_processes() -> Iterator[list[BaseProcess]]:
    """Yield a list for the processes that the block starts; end them behind it."""
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


def _start_process(process_of: ProcessOf, do: Do, started: list[BaseProcess]) -> Connection:
    """Start a process with a pipe to it, and note it; raises `OSError` if there can be no more."""
    connection, far_end = Pipe()
    process = process_of(target=_run_process, args=(far_end, do))
    with far_end, waiting():
        process.start()
        started.append(process)
    return connection


def _run_process(connection: Connection, do: Do) -> None:
    """Begin a started process: leave a terminal's signals to the one that started it, and end after it."""
    for signum in INTERRUPTS:
        is_left = signum in (signal.SIGINT, signal.SIGHUP)
        signal.signal(signum, signal.SIG_IGN if is_left else signal.SIG_DFL)
    with suppress(RuntimeError):  # the system allows no more threads
        Thread(target=_end_with_parent, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
    gc.freeze()  # looks for no garbage in what a fork has inherited
    with suppress(EOFError, ConnectionError):  # nobody asks for more, or listens
        _serve(connection, do)


def _end_with_parent() -> None:
    """End this process once the one that started it is gone: there is nobody to tell."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

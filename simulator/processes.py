"""Processes that end with the one that started them: when it fails, when it is interrupted, and when it is killed.

A terminal sends Ctrl-C to all processes of a command, also to one that is about to start and knows no better than to
print where it was. So it waits until the process has been started; that inherits that it waits, and then ignores it.
Who is killed ends nobody: each process watches whether the one that started it is still there.

What is told goes through pipes, which are gone with those who hold them; a semaphore has a name, and may stay. Where no
process can be started, its work is done in this one.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import Pipe, current_process, get_all_start_methods, get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from threading import Thread, active_count
from typing import Any, Protocol

from simulator.interrupts import INTERRUPTS, waiting

Call = Callable[[], None]
Make = Callable[[], Callable[[Any], Any]]
"""Builds what all tasks share and returns what does one task; it is sent to other processes."""
Process = Callable[..., BaseProcess]
"""Makes a process, afresh or as a fork."""


def worked(make: Make, tasks: Sequence[tuple[int, Any]], workers: int) -> Generator[tuple[int, Any], None, None]:
    """Do tasks in processes that start afresh (spawn) and build once what all tasks share; they end when it is closed.

    Parameters
    ----------
    make
        Builds it, with the first task of a process, so that an error there is an error of that task.
    tasks
        Each with its number.
    workers
        How many processes at most; 0, or where none can be started: all is done here.

    Yields
    ------
    tuple
        The number of a task and what came of it, as they end. One whose process dies is done once more, in the end, if
        any process lives to tell; nothing of one whose process dies again.
    """
    todo, at_work, given = deque(tasks), dict[Connection, int](), dict(tasks)
    again, lives = deque[tuple[int, Any]](), False
    most = 0 if current_process().daemon else workers
    with _ending() as started:
        while todo or at_work:
            with suppress(OSError):
                if most:
                    ensure_running()  # before interrupts wait: once the tracker has started, it lets them through again
                while todo and len(at_work) < most:
                    here = _opened(started, get_context("spawn").Process, _work, make)
                    at_work[here] = _given(here, todo)
            if not at_work:
                do = make()
                yield from ((number, do(task)) for number, task in todo)
                return
            ready = wait(at_work)
            for here in [one for one in at_work if one in ready]:
                number = at_work.pop(here)
                try:
                    outcome = _told(here)
                except BrokenProcessPool:
                    again += [(number, given.pop(number))] if number in given else []
                else:
                    lives = True
                    at_work |= {here: _given(here, todo)} if todo else {}
                    yield number, outcome
            if lives and not todo:
                todo, again = again, todo


def _given(here: Connection, todo: deque[tuple[int, Any]]) -> int:
    """Give the next task to a process; that it has died is noticed when it should tell."""
    number, task = todo.popleft()
    with suppress(ConnectionError):
        here.send(task)
    return number


def _work(there: Connection, make: Make) -> None:
    """In a process of its own: do task after task."""
    made = cache(make)

    def do(task: Any) -> Any:
        return made()(task)

    while True:
        _tell(there, do, there.recv())


class Aside:
    """Calls that run in forks of this process, with all that it has, while it goes on.

    At most as many run as there are cores. Where a process cannot be forked, or not safely, as while it has other
    threads, a call waits; what waits to the end runs in this process if need be.

    Parameters
    ----------
    started
        Where to note what was started.
    """

    def __init__(self, started: list[BaseProcess]) -> None:
        self._started = started
        self._waiting: deque[Call] = deque()
        self._running: deque[Connection] = deque()
        self._most = os.cpu_count() or 1

    def call(self, do: Call) -> None:
        """Run a call aside, now or later.

        Parameters
        ----------
        do
            What it leaves is in files; of what it raises all that can be pickled comes back, now or later.
        """
        self._waiting.append(do)
        while self._waiting and _can_fork():
            if len(self._running) == self._most:
                _told(self._running.popleft())
            try:
                self._running.append(_opened(self._started, get_context("fork").Process, _tell, self._waiting[0]))
            except OSError:
                break
            self._waiting.popleft()

    def finish(self) -> None:
        """Return when all calls have ended."""
        if self._waiting:
            self.call(self._waiting.pop())
        while self._waiting:
            self._waiting.popleft()()
        while self._running:
            _told(self._running.popleft())


@contextmanager
def aside() -> Iterator[Aside]:
    """Give what runs calls in forks; whatever ends the block before its end ends them, too."""
    with _ending() as started:
        calls = Aside(started)
        yield calls
        calls.finish()


Told = Callable[..., None]
"""Called now and then with how far a call is."""


def forked(
    calls: Sequence[Callable[[Told], Any]], tell: Told, shared: Sequence[Any] = ()
) -> Generator[Any, None, None]:
    """Do calls in forks of this process, as many at a time as there are cores; they end when it is closed.

    A single call is done here, and so is what cannot be forked, or not safely.

    Parameters
    ----------
    calls
        Each is called with what tells how far it is. What it returns, raises and tells can be pickled.
    tell
        Told here what a call tells.
    shared
        Objects of this process that are not copied where they are part of what a call returns.

    Yields
    ------
    object
        What came of each call, in their order.
    """
    known, todo = {id(one): one for one in shared}, deque(enumerate(calls))
    at_work, done, most = dict[Connection, int](), dict[int, Any](), os.cpu_count() or 1
    with _ending() as started:
        for number in range(len(calls)):
            while number not in done:
                while todo and len(calls) > 1 and len(at_work) < most and _can_fork():
                    try:
                        here = _opened(started, get_context("fork").Process, _call, todo[0][1], known)
                    except OSError:
                        break
                    at_work[here] = todo.popleft()[0]
                if not at_work:
                    done[number] = todo.popleft()[1](tell)
                ready = wait(at_work) if at_work else ()
                for here in [one for one in at_work if one in ready]:
                    about, outcome = _told(here)
                    if about is None:
                        tell(*outcome)
                    else:
                        done[at_work.pop(here)] = _Read(io.BytesIO(outcome), known).load()
            yield done.pop(number)


def _call(there: Connection, do: Callable[[Told], Any], known: Mapping[int, Any]) -> None:
    """In a fork: tell how far a call is, and at the end what came of it."""

    def written() -> tuple[bool, bytes]:
        text = io.BytesIO()
        _Written(text, known).dump(do(lambda *how_far: there.send(((None, how_far), None))))
        return True, text.getvalue()

    _tell(there, written)


class _Written(pickle.Pickler):
    """Writes what is known in both processes by its place in memory, which a fork leaves as it is."""

    def __init__(self, file: io.BytesIO, known: Mapping[int, Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._known = known

    def persistent_id(self, value: Any) -> int | None:
        return id(value) if id(value) in self._known else None


class _Read(pickle.Unpickler):
    """Reads what `_Written` wrote."""

    def __init__(self, file: io.BytesIO, known: Mapping[int, Any]) -> None:
        super().__init__(file)
        self._known = known

    def persistent_load(self, number: int) -> Any:
        return self._known[number]


class Taker(Protocol):
    """Takes one thing after another, and says at the end what came of it."""

    def take(self, value: Any) -> None:
        """Take what comes next."""

    def finish(self, value: Any) -> Any:
        """Take the last thing, and say what came of all."""


@contextmanager
def beside(taker: Taker) -> Iterator[Taker]:
    """Let a taker take in a fork of this process what is given to it here, while this process goes on.

    What it raises is raised when it is finished. Where a process cannot be forked, or not safely, it takes in this one.

    Parameters
    ----------
    taker
        What takes; all that is given to it, and what comes of it, can be pickled.

    Yields
    ------
    Taker
        What to give it to.
    """
    taking = taker
    with _ending() as started:
        if _can_fork():
            with suppress(OSError):
                taking = _Given(_opened(started, get_context("fork").Process, _take, taker))
        yield taking


class _Given:
    """A taker in another process."""

    def __init__(self, here: Connection) -> None:
        self._here = here

    def take(self, value: Any, *, is_last: bool = False) -> None:
        with suppress(ConnectionError):  # it has failed, which it tells at the end
            self._here.send((is_last, value))

    def finish(self, value: Any) -> Any:
        self.take(value, is_last=True)
        return _told(self._here)


def _take(there: Connection, taker: Taker) -> None:
    """In a fork: take what comes, and tell what came of it."""

    def taken() -> Any:
        is_last = False
        while not is_last:
            is_last, value = there.recv()
            outcome = (taker.finish if is_last else taker.take)(value)
        return outcome

    _tell(there, taken)


def _can_fork() -> bool:
    is_able = "fork" in get_all_start_methods() and not current_process().daemon
    return is_able and (os.cpu_count() or 1) > 1 and active_count() == 1


def _tell(there: Connection, do: Callable[..., Any], *arguments: Any) -> None:
    """Do it, and tell what came of it, or what it raised."""
    outcome: Any = None
    error: Exception | None = None
    try:
        outcome = do(*arguments)
    except MemoryError:
        error = MemoryError()
    except Exception as raised:
        error = raised
        error.add_note(traceback.format_exc())
    there.send((outcome, error))


def _told(here: Connection) -> Any:
    """Wait for what comes of it; raise what it raised."""
    try:
        outcome, error = here.recv()
    except (EOFError, ConnectionError):
        raise BrokenProcessPool("a process ended before it had told how its call went") from None
    if error is not None:
        raise error
    return outcome


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


def _opened(started: list[BaseProcess], process_of: Process, serve: Callable[..., None], *arguments: Any) -> Connection:
    """Start a process with a pipe to it, and note it; an error of the system if there can be no more."""
    here, there = Pipe()
    process = process_of(target=_begin, args=(there, gc.get_threshold()[0], serve, *arguments))
    with there, waiting():
        process.start()
        started.append(process)
    return here


def _begin(there: Connection, seldom: int, serve: Callable[..., None], *arguments: Any) -> None:
    """In a process that was started: leave a terminal's signals to the one that started it, and end after it.

    It looks for garbage as seldom as that one, and a fork not in all that it has inherited.
    """
    for number in INTERRUPTS:
        is_left = number in (signal.SIGINT, signal.SIGHUP)
        signal.signal(number, signal.SIG_IGN if is_left else signal.SIG_DFL)
    with suppress(RuntimeError):  # the system allows no more threads
        Thread(target=_outlived, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
    gc.freeze()
    gc.set_threshold(seldom)
    with suppress(EOFError, ConnectionError):  # nobody asks for more, or listens
        serve(there, *arguments)


def _outlived() -> None:
    """End this process once the one that started it is gone: there is nobody to tell."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

"""Processes that end with the one that started them: an interrupt is the parent's alone, which then ends them.

A terminal sends Ctrl-C to all processes of a command, also to one that is about to start and knows no better than to
print where it was. So it waits until all have been started; those inherit that it waits, and then ignore it.
"""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import active_children, get_all_start_methods, get_context
from multiprocessing.connection import Connection
from queue import Queue
from threading import Thread, active_count, current_thread, main_thread
from typing import Any, Generic, Protocol, TypeVar

Outcome = TypeVar("Outcome")
Told_co = TypeVar("Told_co", covariant=True)
Call = Callable[[], None]

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)

_MOST_WAITING = 64
"""So many things may wait to be taken in another process: of a run, a third of a megabyte each."""

_PIPE_BYTES = 1 << 20
"""What waits in the pipe itself: as much as Linux grants to all."""


@contextmanager
def working(
    workers: int,
    do: Callable[[Any], Outcome],
    tasks: Sequence[Any],
    begin: Callable[[], None] = lambda: None,
) -> Iterator[list[Future[Outcome]]]:
    """Start processes afresh on tasks; whatever ends the block ends them, too.

    Parameters
    ----------
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
    with _interrupts_wait():  # it makes semaphores, and notes a little later that they must go
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (begin,))
    try:
        with _ended_on_error():
            with _interrupts_wait():
                futures = [pool.submit(do, task) for task in tasks]
            yield futures
    finally:
        pool.shutdown(cancel_futures=True)


class Aside:
    """Calls that run in forks of this process, with all that it has, while it goes on.

    At most as many run as there are cores. Where a process cannot be forked safely, as while it has other threads, a
    call waits; what waits to the end runs in this process if need be.
    """

    def __init__(self) -> None:
        self._waiting: list[Call] = []
        self._running: list[Connection] = []
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
                _ended(self._running.pop(0))
            self._running.append(_forked(self._waiting.pop(0)))

    def finish(self) -> None:
        """Return when all calls have ended."""
        waiting, self._waiting = self._waiting, []
        for do in waiting:
            self.call(do)
        for do in self._waiting:
            do()
        while self._running:
            _ended(self._running.pop(0))


@contextmanager
def aside() -> Iterator[Aside]:
    """Give what runs calls in forks; whatever ends the block before its end ends them, too."""
    with _ended_on_error():
        calls = Aside()
        yield calls
        calls.finish()


class Taker(Protocol[Told_co]):
    """Takes one thing after another, and says at the end what came of it."""

    def take(self, value: Any) -> None:
        """Take what comes next."""

    def finish(self, value: Any) -> Told_co:
        """Take the last thing, and say what came of all."""


@contextmanager
def beside(taker: Taker[Outcome]) -> Iterator[Taker[Outcome]]:
    """Let a taker take in a fork of this process what is given to it here, while this process goes on.

    What it raises is raised when it is finished. Where a process cannot be forked safely it takes in this one.

    Parameters
    ----------
    taker
        What takes; all that is given to it, and what comes of it, can be pickled.

    Yields
    ------
    Taker
        What to give it to.
    """
    if not _can_fork():
        yield taker
        return
    with _ended_on_error():
        context = get_context("fork")
        given, giving = context.Pipe(duplex=False)
        told, telling = context.Pipe(duplex=False)
        _widen(giving)
        with _interrupts_wait():
            context.Process(target=_take, args=(taker, given, telling, (giving, told))).start()
        given.close()
        telling.close()
        with giving, told:
            yield _Given(giving, told)


def _widen(pipe: Connection) -> None:
    """Let a pipe hold what is sent at once, so that who sends need not wait until it is read; where the system can."""
    with suppress(ImportError, AttributeError, OSError):
        fcntl = import_module("fcntl")
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


class _Given(Generic[Outcome]):
    """A taker in another process."""

    def __init__(self, giving: Connection, told: Connection) -> None:
        self._giving, self._told = giving, told

    def take(self, value: Any) -> None:
        self._send(False, value)

    def finish(self, value: Any) -> Outcome:
        self._send(True, value)
        outcome: Outcome
        outcome, error = _told(self._told)
        if error is not None:
            raise error
        return outcome

    def _send(self, is_last: bool, value: Any) -> None:
        try:
            self._giving.send((is_last, value))
        except ConnectionError:
            raise _ended_early() from None


def _take(taker: Taker[Any], given: Connection, telling: Connection, others: Sequence[Connection]) -> None:
    """In a fork: take what comes, and tell what came of it; behind an error the rest is let pass."""
    for end in others:
        end.close()
    gc.freeze()
    _begin(lambda: None)
    outcome = error = None
    for is_last, value in _received(given):
        try:
            if is_last and error is None:
                outcome = taker.finish(value)
            elif error is None:
                taker.take(value)
        except Exception as raised:
            error = raised
            error.add_note(traceback.format_exc())
        if is_last:
            telling.send((outcome, error))


def _received(given: Connection) -> Iterator[tuple[bool, Any]]:
    """What comes, up to the last; some of it waits here, so that who sends it goes on while one thing takes long."""
    inbox: Queue[tuple[bool, Any] | None] = Queue(_MOST_WAITING)
    Thread(target=_receive, args=(given, inbox), daemon=True).start()
    while (received := inbox.get()) is not None:
        yield received


def _receive(given: Connection, inbox: Queue[tuple[bool, Any] | None]) -> None:
    """Put what comes into the inbox; None behind the last, or when no more can come."""
    is_last = False
    while not is_last:
        try:
            received = is_last, _ = given.recv()
        except EOFError:
            break
        inbox.put(received)
    inbox.put(None)


def _can_fork() -> bool:
    return (os.cpu_count() or 1) > 1 and "fork" in get_all_start_methods() and active_count() == 1


def _forked(do: Call) -> Connection:
    """Start a call; what it raises will come through the connection, or else None."""
    context = get_context("fork")
    here, there = context.Pipe(duplex=False)
    with _interrupts_wait():
        context.Process(target=_tell, args=(do, there)).start()
    there.close()
    return here


def _tell(do: Call, there: Connection) -> None:
    """In a fork: do it, without going through all that was inherited in search of garbage, and tell how it ended."""
    gc.freeze()
    error = None
    try:
        _begin(do)
    except Exception as raised:
        error = raised
        error.add_note(traceback.format_exc())
    there.send(error)


def _ended(running: Connection) -> None:
    """Wait for a call, and raise what it raised."""
    with running:
        error = _told(running)
    if error is not None:
        raise error


def _told(running: Connection) -> Any:
    try:
        return running.recv()
    except (EOFError, ConnectionError):
        raise _ended_early() from None


def _ended_early() -> BrokenProcessPool:
    return BrokenProcessPool("a process ended before it had told how its call went")


@contextmanager
def _ended_on_error() -> Iterator[None]:
    """End all processes that were started within the block if it fails."""
    others = set(active_children())
    try:
        yield
    except BaseException:
        started = set(active_children()) - others
        for process in started:
            process.kill()
        for process in started:
            process.join()
        raise


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

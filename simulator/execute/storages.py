"""What the storages of a step hold: in the compute tier, whose bytes are counted, and in a lower tier.

A storage that leaves is resized to 0 bytes, and filled again when it comes back: all tensors, views and saved tensors
that show it stay valid objects. The thread that runs the step is host and compute stream in one; each direction of
copies has a thread. As in the rules of hosim, actions on a storage take effect in the order in which they were issued
(5), copies of one direction run one after another (4), and room is given to computes first, then to the copy that heads
its link (8).
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import accumulate
from typing import Any

from simulator.execute.accelerator import PinnedTier, Processor
from simulator.execute.held import (
    BELOW,
    FORGET,
    FREE,
    HELD,
    IN,
    OUT,
    ROOM,
    ExecutionError,
    HeldStorage,
    Issued,
    failing,
    insist_step,
)  # fmt: skip
from simulator.execute.tiers import FileTier
from simulator.units import counted, human


class StepMemory:
    """Followed storages, their copies, and the room of the compute tier.

    Parameters
    ----------
    budget_bytes
        Room of the compute tier [B].
    tier
        The lower tier.
    device
        Where the step computes.

    Attributes
    ----------
    used_bytes, peak_bytes
        What followed storages take in the compute tier now; and at most so far [B].
    moved_bytes
        By direction, what was copied [B].
    waits
        When each wait for copies or for room began and ended, as moments of the device.
    moved
        By the id of their storages, blocks that something was issued on since all was home: only ops that the plan
        knows of may use them.
    notes
        None, or what happened, of which `trace_of` makes a trace: kind, block, begin and end as moments, and bytes.
    """

    def __init__(self, budget_bytes: float, tier: FileTier | PinnedTier, device: Processor | None = None) -> None:
        self.budget_bytes, self.tier, self.device = budget_bytes, tier, device or Processor()
        self.used_bytes = self.peak_bytes = self._reserved_bytes = 0
        self.moved_bytes, self.waits = {OUT: 0, IN: 0}, list[tuple[Any, Any]]()
        self._blocks, self.moved = dict[int, HeldStorage](), dict[int, HeldStorage]()
        self._queues = {OUT: deque[Issued](), IN: deque[Issued]()}
        self._lock = threading.RLock()  # taken at each call, by itself in a third of the time of the condition
        self._changed = threading.Condition(self._lock)
        self._computes = self._moving = 0
        self._failure: BaseException | None = None
        self.notes: list[tuple[str, HeldStorage | None, Any, Any, int]] | None = None
        self._is_closed = self._is_lifted = self._is_lost = False
        self._threads = [threading.Thread(target=self._serve, args=(way,), daemon=True) for way in (OUT, IN)]
        for thread in self._threads:
            thread.start()

    def begin(self, below: Collection[HeldStorage] = ()) -> None:
        """Count peak, copies and waits anew, from here on; what could not come home before must now (`settle`)."""
        self.device.begin()
        self.settle(below)
        self.peak_bytes, self.waits, self.moved_bytes = self.used_bytes, [], {OUT: 0, IN: 0}
        self.notes = None if self.notes is None else []

    def block(self, storage: Any, name: str = "") -> HeldStorage:
        """Return the block of a storage; follow it from now on if it is new."""
        key = id(storage)
        held = self._blocks.get(key)
        if held is None:
            size_bytes = storage.nbytes() if self.device.holds(storage) else 0
            held = HeldStorage(weakref.ref(storage, partial(self._died, key)), name, size_bytes)
            with self._lock:
                self._blocks[key] = held
                self._hold(held, size_bytes)
        return held

    def find(self, storage: Any) -> HeldStorage | None:
        """Return the block of a storage; None if it is not followed."""
        return self._blocks.get(id(storage))

    def let_go(self, storages: Iterable[Any]) -> None:
        """Follow some storages that are home no more, as they are the caller's."""
        with self._lock:
            for key in {id(storage) for storage in storages} & self._blocks.keys() - self.moved.keys():
                self._died(key, self._blocks[key].ref)

    def _died(self, key: int, ref: object) -> None:
        with self._lock:
            block = self._blocks.get(key)
            if block is None or block.ref is not ref:  # it is not followed any more
                return
            del self._blocks[key]
            self.moved.pop(key, None)
            self._drop_below(block)
            self._hold(block, -block.held_bytes)
            self._tell_of_room()

    def _hold(self, block: HeldStorage, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        if self.notes is not None:
            self._note(HELD, block, size_bytes)
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def _tell_of_room(self) -> None:
        """Wake those who wait for room, if it is enough: to wake a thread for nothing costs more than a small op."""
        if self._computes or self._may_start(IN):
            self._changed.notify_all()

    def _note(self, kind: str, block: HeldStorage | None, size_bytes: int, *lasted: Any) -> None:
        if self.notes is not None:
            begun, ended = lasted or (self.device.now(),) * 2
            self.notes.append((kind, block, begun, ended, size_bytes))

    def waited_s(self) -> list[float]:
        """Return how long the step, which has ended, had waited before its first wait, and after each [s]."""
        seconds = self.device.seconds
        return [*accumulate((seconds(ended) - seconds(begun) for begun, ended in self.waits), initial=0.0)]

    def blocks(self) -> list[HeldStorage]:
        """Return all blocks whose storages are alive."""
        return [*self._blocks.values()]

    def copy_out(self, block: HeldStorage) -> None:
        """Write a block below; it stays where it is."""
        block.is_kept = True
        self._issue(OUT, block)

    def copy_in(self, block: HeldStorage) -> None:
        """Bring a block back once there is room."""
        block.is_away = False
        self._issue(IN, block)

    def free(self, block: HeldStorage) -> None:
        """Free a block in the compute tier once all that was issued on it has ended."""
        block.is_away = True
        self._issue(FREE, block)

    def forget_below(self, block: HeldStorage) -> None:
        """Give up what the lower tier holds of a block, once all that was issued on it has ended."""
        if block.is_kept:
            block.is_kept = False
            self._issue(FORGET, block)

    def _drop_below(self, block: HeldStorage) -> None:
        if block.below is not None:
            self.tier.release(block.below, block.size_bytes)
            block.below = None
            self._note(BELOW, block, -block.size_bytes)

    def _issue(self, kind: str, block: HeldStorage) -> None:
        storage = block.ref()
        if storage is None:  # PyTorch has freed it
            return
        job = Issued(kind, block, storage, self.device.now() if kind == OUT else None)
        with self._changed:
            if self._failure:  # else a free could act whose copy out has failed
                raise self._failure
            self.moved[id(storage)] = block
            block.jobs.append(job)
            if kind in self._queues:
                self._queues[kind].append(job)
            self._do_first(block)
            self._changed.notify_all()

    def _do_first(self, block: HeldStorage) -> None:
        """Do what heads a block's actions and is no copy."""
        while block.jobs and block.jobs[0].kind not in self._queues:
            job = block.jobs.popleft()
            if job.kind == FREE:
                self.resize(block, 0)
            else:
                self._drop_below(block)

    def _may_start(self, way: str) -> bool:
        if not self._queues[way]:
            return False
        block = self._queues[way][0].block
        return block.jobs[0] is self._queues[way][0] and (way == OUT or self._fits(block.size_bytes, self._computes))

    def _fits(self, size_bytes: int, ahead: int = 0) -> bool:
        needed_bytes = self.used_bytes + self._reserved_bytes + size_bytes
        return self._is_lifted or (not ahead and needed_bytes <= self.budget_bytes)

    def _serve(self, way: str) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or (self._failure is None and self._may_start(way)))
                if self._is_closed:
                    return
                job = self._queues[way][0]
                self._moving += 1
                failure = failing(self.resize, job.block, job.block.size_bytes) if way == IN else None
            failure = failure or failing(self._move, way, job.block, job.storage, job.after)
            with self._changed:
                self._moving -= 1
                self._queues[way].popleft()
                job.block.jobs.popleft()
                if failure is None:
                    self.moved_bytes[way] += job.block.size_bytes
                    self._failure = self._failure or failing(self._do_first, job.block)
                else:
                    self._failure = self._failure or failure
                    if way == OUT:
                        self._drop_below(job.block)
                    elif job.block.held_bytes:
                        failing(self.resize, job.block, 0)
                del job, failure  # who waits for room must see gone what they alone hold, frames of an error too
                self._changed.notify_all()

    def _move(self, way: str, block: HeldStorage, storage: Any, after: Any = None) -> None:
        """Copy the bytes of a block once a moment is over: by default, this one."""
        if block.below is None:  # only now: one that was given up may have been issued before
            block.below = self.tier.allot(block.size_bytes)
            self._note(BELOW, block, block.size_bytes)
        if block.size_bytes:
            after = after or self.device.now()  # what comes in may get memory that ops issued before still use
            lasted = self.device.move(way, storage, self.tier, block.below, after)
            self._note(way, block, block.size_bytes, *lasted)

    def resize(self, block: HeldStorage, size_bytes: int) -> None:
        """Give a block its size in the compute tier, or none."""
        with self._lock:
            self._hold(block, block.resize(size_bytes, self.device.resize))

    def wait(self, block: HeldStorage, *, writes: bool = False) -> None:
        """Wait until an op can read a block, or write it: until all that was issued on it has ended but copies out."""
        jobs = block.jobs
        with self._lock:
            if self._failure:
                raise self._failure
            if jobs and (writes or any(job.kind != OUT for job in jobs)):
                self._until(lambda: not jobs if writes else all(job.kind == OUT for job in jobs), block.name, block)

    def take(self, size_bytes: int, name: str) -> None:
        """Reserve room for what an op makes, ahead of all copies."""
        with self._lock:
            if not self._fits(size_bytes):
                self._computes += 1
                try:
                    self._until(lambda: self._fits(size_bytes), f"{human(size_bytes, 'B')} for {name}")
                finally:
                    self._computes -= 1
            self._reserved_bytes = size_bytes

    def made(self) -> None:
        """Give reserved room back, as what the op has made is followed from now on."""
        with self._lock:
            self._reserved_bytes = 0
            self._tell_of_room()

    def _until(self, is_done: Callable[[], bool], awaited: str, block: HeldStorage | None = None) -> None:
        """Wait until something is done by the copies."""
        begun = self.device.now()
        # the way of the block's last copy, or room, if that link lacks it
        kind = next((job.kind for job in reversed(block.jobs) if job.kind in self._queues), ROOM) if block else ROOM
        head = self._queues[IN][0].block if kind == IN else None
        kind = ROOM if head and not (head.held_bytes or self._fits(head.size_bytes, self._computes)) else kind
        try:
            while not (self._failure or is_done()):
                # an error that was caught may hold what its step made, in a circle of frames
                is_stuck = not (self._goes_on() or (gc.collect() and (is_done() or self._goes_on())))
                rule = f"the plan leaves room within the budget of {human(self.budget_bytes, 'B')}"
                in_use = f"{human(self.used_bytes, 'B')} in use, and nothing under way that frees some"
                insist_step(not is_stuck, f"waiting for {awaited}", rule, in_use, "give it a larger budget")
                if not is_done():
                    self._changed.wait()
        finally:
            self.waits.append((begun, self.device.now()))
            self._note(kind, block, 0, *self.waits[-1])
        if self._failure:
            raise self._failure

    def _goes_on(self) -> bool:
        return bool(self._moving) or self._may_start(OUT) or self._may_start(IN)

    def settle(self, below: Collection[HeldStorage] = ()) -> None:
        """Wait until all copies have ended, and bring back what is away, beyond the budget if need be.

        After a failure, what was issued and has not begun is given up first; each block is then where its bytes are.

        Parameters
        ----------
        below
            Blocks that live in the lower tier, alone, from here on.

        Raises
        ------
        ExecutionError
            If something is lost.
        BaseException
            The failure of a copy.
        """
        failure = self._end_all()
        if below and failure is None:
            failure = failing(self.send, below)
            failure = self._end_all() or failure
        lost, staying = dict[str, BaseException](), {*below} if failure is None else set[HeldStorage]()
        self._is_lifted = True
        try:
            for key, block in [*self.moved.items()]:  # a list: what is freed meanwhile leaves it
                if block in staying:
                    continue
                try:
                    self.bring(block)
                except Exception as error:
                    self._end_all()
                    lost[block.name] = error
                    continue
                with self._lock:
                    self._drop_below(block)
                    block.is_kept = False
                    self.moved.pop(key, None)
        finally:
            self._is_lifted, self._is_lost = False, bool(lost)
        for name, cause in lost.items():
            found, do = f"{counted(len(lost), 'tensor')} lost, {name} first", "make them anew"
            raise ExecutionError("end of a step", "tensors in the lower tier come back", found, do) from cause
        if failure:  # it may have come after all that the step's thread waited for
            raise failure

    def _end_all(self) -> BaseException | None:
        """Wait until all that was issued has ended; if a copy failed, give up the rest, and return the failure."""
        with self._changed:
            before, self._is_lifted = self._is_lifted, True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._moving and (self._failure or not any(self._queues.values())))
            self._is_lifted, failure, self._failure = before, self._failure, None
            if failure:
                blocks = [*self.moved.values()]  # a list: what is freed meanwhile leaves it
                for queue in (*self._queues.values(), *(block.jobs for block in blocks)):
                    queue.clear()
                for block in blocks:
                    block.is_away, block.is_kept = not block.held_bytes, block.below is not None
            return failure

    def send(self, blocks: Iterable[HeldStorage]) -> None:
        """Let blocks lie below alone."""
        for block in blocks:
            if not block.is_away:
                if not block.is_kept:
                    self.copy_out(block)
                self.free(block)

    def bring(self, block: HeldStorage) -> None:
        """Bring a block back, or make it again, after all that was issued on it; wait until it is there."""
        self.wait(block, writes=True)
        if block.is_away and block.ref() is not None:
            (block.remake or partial(self.copy_in, block))()
            self.wait(block, writes=True)

    def close(self) -> None:
        """Bring everything back, end the threads and give up the lower tier; what is lost is told once."""
        is_told = self._is_lost
        try:
            self.settle()
        except ExecutionError:
            if not is_told:
                raise
        finally:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
            for thread in self._threads:
                thread.join()
            self.tier.close()

"""An accelerator that there is not: streams whose work comes late, with memory that shows no result before it is there.

Ops compute on the CPU. But what they write reads as bytes of 0xFF until the stream of the device has come to the op;
and what they have read must still be the same then, unless its memory was freed, which later ops alone may use again.
So a copy that does not wait for an op, or an op that does not wait for a copy, gives other numbers.
"""

import ctypes
import queue
import threading
import time
from random import Random

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.execute.accelerator import Accelerator
from simulator.importers.torch_machine import tensors

FEW_BYTES = 8
"""Storages of so few bytes lie on the host, as counts of steps do."""


class Event:
    def __init__(self, device, *, enable_timing, blocking=True):
        self.passed, self.at_s = threading.Event(), None

    def synchronize(self):
        assert self.passed.wait(20), "an event that was never recorded"

    def elapsed_time(self, other):
        assert self.passed.is_set(), "asked for times before all has ended"
        assert other.passed.is_set(), "asked for times before all has ended"
        return (other.at_s - self.at_s) * 1e3


class Stream:
    """Does one thing after the other, each some time after it was asked to."""

    def __init__(self, device=None, seed=0):
        self.tasks, self.random, self.errors = queue.SimpleQueue(), Random(seed), []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            task, is_work = self.tasks.get()
            if is_work:
                time.sleep(self.random.choice((0, 0, 0.0002, 0.002)))
            try:
                task()
            except BaseException as error:
                self.errors.append(error)

    def put(self, task, *, is_work=True):
        self.tasks.put((task, is_work))

    def record_event(self, event):
        def passed():
            event.at_s = time.perf_counter()
            event.passed.set()

        self.put(passed, is_work=False)
        return event

    def wait_event(self, event):
        self.put(event.synchronize, is_work=False)

    def synchronize(self):
        self.record_event(Event(None, enable_timing=False)).synchronize()
        if self.errors:
            raise self.errors[0]


class LaggingTorch:
    """Stands for PyTorch, and for its module of accelerators."""

    Stream, Event = Stream, Event

    def __init__(self):
        self.accelerator = self
        self.compute, self.current, self.pinned_bytes = Stream(), threading.local(), 0

    def current_device_index(self):
        return 0

    def set_device_index(self, index):
        assert index == 0

    def current_stream(self, device):
        return getattr(self.current, "stream", self.compute)

    def set_stream(self, stream):
        self.current.stream = stream

    def empty(self, size_bytes, *, dtype, pin_memory):
        assert pin_memory
        self.pinned_bytes += size_bytes
        return torch.empty(size_bytes, dtype=dtype)


class LaggingDevice(Accelerator):
    """An accelerator whose memory is that of the CPU."""

    def __init__(self):
        self.lock = threading.RLock()
        super().__init__(torch.device("cpu"), LaggingTorch())

    def holds(self, storage):
        return storage.nbytes() > FEW_BYTES

    def _copy(self, target, source):
        assert target.numel() == source.numel()
        stream = self._torch.current_stream(self.device)
        stream.put(lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel()))

    def resize(self, storage, size_bytes):
        with self.lock:
            assert storage.nbytes() > FEW_BYTES or size_bytes > FEW_BYTES, "the host's memory is not ours"
            super().resize(storage, size_bytes)


class Lagging(TorchDispatchMode):
    """Lets what an op writes, and the check of what it reads, come late."""

    def __init__(self, device):
        super().__init__()
        self.device, self.stream, self.ops = device, device._torch.compute, 0

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        kwargs = kwargs or {}
        named = {**dict(zip([one.name for one in func._schema.arguments], args, strict=False)), **kwargs}
        written = [one.name for one in func._schema.arguments if one.alias_info and one.alias_info.is_write]
        given = storages(named)
        self.stream.synchronize()
        made = func(*args, **kwargs)
        changed = {k: s for k, s in storages(made).items() if k not in given}
        changed |= storages([named[name] for name in written if name in named])
        late = [s for s in changed.values() if self.is_ours(s)] if "set_" not in str(func) else []
        if late:
            self.ops += 1
            self.put_off(late, [s for k, s in given.items() if k not in changed and self.is_ours(s)])
        return made

    def is_ours(self, storage):
        return storage.device.type == "cpu" and storage.nbytes() > FEW_BYTES

    def put_off(self, late, read):
        shown = [(Weak(storage), ctypes.string_at(storage.data_ptr(), storage.nbytes())) for storage in (*late, *read)]
        for storage in late:
            ctypes.memset(storage.data_ptr(), 0xFF, storage.nbytes())

        def come():
            for n, (weak, value) in enumerate(shown):
                with self.device.lock:
                    storage = weak.there(len(value))
                    if storage is None:
                        continue
                    if n < len(late):
                        ctypes.memmove(storage.data_ptr(), value, len(value))
                    else:
                        found = ctypes.string_at(storage.data_ptr(), len(value))
                        assert found == value, "what an op reads was written too early"
                    del storage

        self.stream.put(come)


def storages(values):
    """Storages of tensors, by their identity."""
    return {id(storage): storage for tensor in tensors([values]) if (storage := tensor.untyped_storage()) is not None}


class Weak:
    """A storage, as long as PyTorch has it, and its memory was not given back meanwhile."""

    def __init__(self, storage):
        self.cdata, self.address = torch.UntypedStorage._weak_ref(storage), storage.data_ptr()

    def there(self, size_bytes):
        storage = torch.UntypedStorage._new_with_weak_ptr(self.cdata)
        if storage is None or storage.nbytes() != size_bytes or storage.data_ptr() != self.address:
            return None
        return storage

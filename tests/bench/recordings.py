"""How far the replay of published recordings is from what they recorded, and how long reading and replaying takes.

    python tests/bench/recordings.py
    python tests/bench/recordings.py --record
    python tests/bench/recordings.py --growth
    python tests/bench/recordings.py --between FILE OTHER ...

With ``--record`` a step of a small encoder is recorded here, on the CPU, in every form that PyTorch has, and each is
held against what PyTorch itself counts; that needs torch. With ``--growth`` profiles of 25,000 and of 100,000 kernels
are made up, and processes of their own read and replay them: the time for a kernel stays the same if nothing grows with
the square, and the memory is told as a multiple of the file. With ``--between`` each pair of profiles is of one step on
two machines: each is replayed with the times of its kernels in one ratio to those recorded, so that they take as long
in all as on the other, and held against what the other recorded.

The files lie in ``shared/data`` beside the project. What was recorded is counted here anew, by nothing of hosim, where
a file tells it: of a Kineto trace from the first start on the device to the last end there, of a memory timeline from
the first instant to the last, and its peak. Seconds are of the processor, of one process.
"""

from __future__ import annotations

import gzip
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from simulator.report.rows import percent

import simulator as hosim
from simulator.graph import Graph
from simulator.run import stories
from simulator.units import human

DATA = next((root / "shared/data" for root in Path(__file__).parents if (root / "shared/data").is_dir()), None)


class Recorded(NamedTuple):
    """A file, its reader, and how what it recorded is counted: the step [ns], and the peak [B]."""

    name: str
    read: Callable[[Path], hosim.Imported]
    count: Callable[[Path], tuple[int, int]]


def joined(path: Path) -> hosim.Imported:
    """Read the pair."""
    return hosim.read_pytorch_trace(path, kineto=path.with_name("linear_kineto.json.gz"))


def on_device(path: Path) -> tuple[int, int]:
    """From the first start of a kernel, copy or fill to the last end."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    ran = [one for one in events if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    return 1000 * (max(one["ts"] + one["dur"] for one in ran) - min(one["ts"] for one in ran)), 0


def first_to_last(path: Path) -> tuple[int, int]:
    """From the first instant to the last, and the highest sum."""
    with gzip.open(path) as file:
        rows = json.load(file)
    times, held, peak = [one[0] for one in rows if one[0] >= 0], 0, 0
    for _, _, change, _ in rows:
        held += change
        peak = max(peak, held)
    return max(times) - min(times), peak


def nothing(_: Path) -> tuple[int, int]:
    """Nothing that the file tells without a model of its own."""
    return 0, 0


FILES = [
    Recorded(
        "kineto/critical_path_alexnet_benchmark_result_2869224_1695835535_trace.json.gz", hosim.read_kineto, on_device
    ),
    Recorded(
        "kineto/critical_path_cuda_event_sync_multi_stream_event_sync_trace.json.gz", hosim.read_kineto, on_device
    ),
    Recorded(
        "kineto/critical_path_simple_add_benchmark_result_493459_1694039959_trace.json.gz", hosim.read_kineto, on_device
    ),
    Recorded("pytorch_et/linear_kineto.json.gz", hosim.read_kineto, on_device),
    Recorded("pytorch_et/linear_et.json.gz", joined, nothing),
    Recorded("chakra/feeder_tests_trace.tar.gz", hosim.read_chakra, nothing),
    Recorded("pytorch_et/hf_GPT2_et.json.tar.gz", hosim.read_pytorch_trace, nothing),
]


def main() -> None:
    """Print a line for each file."""
    if DATA is None:
        sys.exit("shared/data does not lie beside the project")
    heads = f"{'recording':32}{'ops':>8}{'recorded':>12}{'replayed':>12}{'off':>10}{'ran':>7}{'host':>7}{'idle':>7}"
    print(f"{heads}{'peak':>9}{'peak off':>10}{'read s':>8}{'replay s':>10}")
    for name, read, count in FILES:
        path = DATA / name
        recorded_ns, recorded_bytes = count(path)
        start = time.process_time()
        found = read(path)
        assert found.graph is not None
        after = time.process_time()
        step_ns, peak_bytes = stories.replay_recording(found.graph)
        done = time.process_time()
        recorded_ns, mark = recorded_ns or found.recorded_ns, "" if recorded_ns else "*"
        off = f"{100 * (step_ns / recorded_ns - 1):+.3f} %" if recorded_ns else "-"
        peak = human(peak_bytes, "B") if peak_bytes else "-"
        peak_off = f"{100 * (peak_bytes / recorded_bytes - 1):+.3f} %" if recorded_bytes else "-"
        took = f"{human(recorded_ns, 'ns') if recorded_ns else '-'}{mark if recorded_ns else ''}"
        label = path.name.removeprefix("critical_path_").removeprefix("memory_analysis_").split(".")[0][:30]
        shares = stories.step_shares(found.graph).values() if recorded_ns else ()
        parts = "".join(f"{percent(share):>7}" for share in shares) or f"{'-':>7}" * 3
        print(f"{label:32}{len(found.graph.ops):8,}{took:>12}{human(step_ns, 'ns'):>12}{off:>10}{parts}{peak:>9}"
              f"{peak_off:>10}{after - start:8.1f}{done - after:10.1f}")  # fmt: skip


def ran_ns(graph: Graph) -> int:
    """Sum of the times of kernels, copies and fills."""
    return sum(op.duration_ns or 0 for op in graph.ops if op.repeatable)


def between(files: list[str]) -> None:
    """Print how far a replay with the other machine's time of all kernels is from what was recorded there."""
    print(f"{'recording':44}{'here':>10}{'there':>10}{'kernels':>9}{'as here':>9}{'replay':>9}")
    for pair in zip(files[::2], files[1::2], strict=True):
        found = [hosim.read_kineto(file) for file in pair]
        for here, there, file in ((*found, pair[0]), (*found[::-1], pair[1])):
            assert here.graph is not None
            assert there.graph is not None
            ratio = ran_ns(there.graph) / ran_ns(here.graph)
            ops = (replace(op, duration_ns=round((op.duration_ns or 0) * (ratio if op.repeatable else 1)))
                   for op in here.graph.ops)  # fmt: skip
            step_ns, _ = stories.replay_recording(replace(here.graph, ops=tuple(ops)))
            offs = [f"{100 * (ns / there.recorded_ns - 1):+.1f} %" for ns in (here.recorded_ns, step_ns)]
            label = "/".join(Path(file).parts[-2:]).partition(".json")[0][:43]
            times = [human(of.recorded_ns, "ns") for of in (here, there)]
            print(f"{label:44}{times[0]:>10}{times[1]:>10}{ratio:8.2f}x{offs[0]:>9}{offs[1]:>9}")


def record(folder: Path) -> dict[str, int]:
    """Record a step of an encoder in all forms, and count with PyTorch: FLOPs of products, parameters [B]."""
    import torch
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    layers = [torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True) for _ in range(3)]
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 128), *layers, torch.nn.Linear(128, 1000))
    optimizer, words = torch.optim.AdamW(model.parameters()), torch.randint(0, 1000, (4, 64))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
        optimizer.step()

    with FlopCounterMode(display=False) as counter:
        step()
    step()
    told = {"profile_memory": True, "record_shapes": True, "with_stack": True}
    observer = ExecutionTraceObserver().register_callback(str(folder / "et.json"))
    with profile(activities=[ProfilerActivity.CPU], execution_trace_observer=observer, **told) as profiler:
        step()
    profiler.export_chrome_trace(str(folder / "kineto.json"))
    profiler.export_memory_timeline(str(folder / "memory.raw.json.gz"), device="cpu")
    return {"flops": counter.get_total_flops(), "bytes": sum(4 * one.numel() for one in model.parameters())}


def held(folder: Path) -> None:
    """Print what each form says beside what PyTorch counts."""
    counted = record(folder)
    joined_ = hosim.read_pytorch_trace(folder / "et.json", kineto=folder / "kineto.json")
    _, recorded = first_to_last(folder / "memory.raw.json.gz")
    graph = joined_.graph
    assert graph is not None
    kinds = {
        kind: sum(t.size_bytes for t in graph.tensors if t.kind == kind)
        for kind in ("weight", "gradient", "optimizer_state")
    }
    print(
        f"execution trace: {sum(op.flops for op in graph.ops):,} FLOPs of products, PyTorch counts {counted['flops']:,}"
    )
    for kind, bytes_ in kinds.items():
        times = 2 if kind == "optimizer_state" else 1
        print(f"execution trace: {bytes_:,} B of {kind}, PyTorch has {times * counted['bytes']:,} B")
    forms = {"execution trace": joined_, "kineto": hosim.read_kineto(folder / "kineto.json")}
    for name, found in forms.items():
        assert found.graph is not None
        step_ns, peak = stories.replay_recording(found.graph)
        off = f"{100 * (step_ns / found.recorded_ns - 1):+.2f} %"
        there = sum(t.size_bytes for t in found.graph.tensors if t.persistent)
        print(f"{name}: step {off}, peak {human(peak, 'B')}, of which {human(there, 'B')} were there before")
    print(f"recorded peak, with what was there before: {human(recorded, 'B')}")


def profile(kernels: int, streams: int) -> Iterator[dict[str, Any]]:
    """Events of Kineto: kernels on streams that wait for each other, with operators, launches and allocations."""
    draw, host, free = random.Random(1), 1000.0, [1000.0] * streams

    def event(cat: str, name: str, ts: float, dur: float, tid: int, **args: Any) -> dict[str, Any]:
        times = {"ph": "X", "ts": round(ts, 3), "dur": round(dur, 3)}
        return {**times, "cat": cat, "name": name, "pid": 0, "tid": tid, "args": args}

    for number in range(1, kernels + 1):
        stream, host = draw.randrange(streams), host + draw.uniform(2, 8)
        yield event("cpu_op", "aten::mm", host, 5, 1, **{"External id": number, "Ev Idx": number})
        about = {"Bytes": 1 << 20, "Addr": number, "Total Allocated": number << 20, "Device Type": 1}
        yield {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": round(host, 3), "args": about}
        if streams > 1 and number % 10 == 0:
            yield event("cuda_runtime", "cudaStreamWaitEvent", host + 1, 0.3, 1, correlation=kernels + number)
            free[stream] = max(free)
        if number % 1000 == 0:
            yield event("cuda_runtime", "cudaDeviceSynchronize", host + 1.5, max(1, max(free) - host), 1)
            host = max(host, *free) + 2
        about = {"External id": number, "cbid": 211, "correlation": number}
        yield event("cuda_runtime", "cudaLaunchKernel", host + 2, 2, 1, **about)
        start, took = max(free[stream] + 1, host + 6), draw.uniform(1, 12)
        about |= {"queued": 0, "device": 0, "context": 1, "stream": 7 + stream, "registers per thread": 126}
        about |= {"shared memory": 8704, "blocks per SM": 3.764706, "grid": [16, 8, 2], "block": [64, 1, 1]}
        yield event("kernel", "volta_sgemm_64x64_tn", start, took, 7 + stream, **about)
        free[stream] = start + took


def grown(folder: Path) -> None:
    """Print what reading and replaying profiles takes that only differ in their length."""
    print(f"{'kernels':>8}{'streams':>9}{'MB':>6}{'read s':>8}{'replay s':>10}{'us a kernel':>13}{'memory/file':>13}")
    for streams in (1, 4):
        for kernels in (25_000, 100_000):
            with (folder / "profile.json").open("w", encoding="utf-8") as file:
                file.write('{"schemaVersion": 1, "traceEvents": [\n{"ph": "M"}')
                file.writelines(f",\n{json.dumps(event, indent=2)}" for event in profile(kernels, streams))
                file.write("]}")
            command = [sys.executable, __file__, "--read", str(folder / "profile.json")]
            read_s, replay_s, grew = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
            size, each = (folder / "profile.json").stat().st_size, 1e6 * (read_s + replay_s) / kernels
            said = f"{kernels:8,}{streams:9}{size / 1e6:6.0f}{read_s:8.1f}{replay_s:10.1f}"
            print(f"{said}{each:13.0f}{grew / size:13.1f}", flush=True)


def read_and_replayed(path: Path) -> tuple[float, float, int]:
    """Seconds of the processor for reading and for replaying, and by how much reading made this process grow [B]."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    found = hosim.read_kineto(path)
    grew, read = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.process_time()
    assert found.graph is not None
    stories.replay_recording(found.graph)
    return read - start, time.process_time() - read, 1024 * grew


if __name__ == "__main__":
    if "--read" in sys.argv:
        print(json.dumps(read_and_replayed(Path(sys.argv[-1]))))
    elif "--growth" in sys.argv:
        with TemporaryDirectory() as name:
            grown(Path(name))
    elif "--record" in sys.argv:
        with TemporaryDirectory() as name:
            held(Path(name))
    elif "--between" in sys.argv:
        between(sys.argv[sys.argv.index("--between") + 1 :])
    else:
        main()

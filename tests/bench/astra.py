"""The compiled engine beside ASTRA-sim, on one machine, in turns: the same decode layers, in time of the processor.

    python tests/bench/astra.py build/astra_analytical/build/bin/AstraSim_Analytical_Congestion_Unaware

The path may stand in ``ASTRA_SIM`` instead. It is of ASTRA-sim c459ab6, built as its own page says. A layer is two
loads, four computes and a store there, and two detaches besides here. Once a step of eight layers is repeated, and once
all layers are different. ASTRA-sim reads a trace that this program writes; its time is that of its process, less that
of one which runs a single node. The time of hosim is that of the run, with its trace and its waits; ``built`` is with
making the graph and the plan, in Python. Both must end at the same nanosecond. It ends with 1 if a figure misses its
bar.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent))

import bars
from cases import LAYERS, decode_case

from simulator import engine
from simulator.exporters.to_chakra import _COMPUTE, _FLAG, _LOAD, _SIGNED, _STORE, _WHOLE, _field, _node, _varint

MUST = 5.0
"""So many times as fast as ASTRA-sim the compiled engine is, in the median of all turns."""
CASES = {"one step repeated": LAYERS, "all layers different": None}
SETTINGS = {
    "system.json": "{}",
    "memory.json": json.dumps(
        {"memory-type": "PER_NPU_MEMORY_EXPANSION", "remote-mem-latency": 0, "remote-mem-bw": 1}  # GB/s
    ),
    "network.yml": "topology: [ Ring ]\nnpus_count: [ 2 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n",
}


def nodes(layers: int) -> Iterator[bytes]:
    """Yield the nodes of decode layers, 1 us for each ns: what `decode_case` runs, with what each one waits for.

    A copy starts with the compute before it, so it waits for what that waits for; and for what frees its room, the
    store of the third layer before.
    """
    for layer in range(layers):
        weight, kv, *computes, store = range(7 * layer, 7 * layer + 7)
        begun = [computes[2] - 7] if layer else []
        room = [store - 21] if layer > 2 else []
        yield _copy(weight, _LOAD, 4000, [*begun, *room])
        yield _copy(kv, _LOAD, 1000, [*begun, *room])
        for position, index in enumerate(computes):
            before = [index - 1] if position else [computes[3] - 7] if layer else []
            loads = [weight] if position == 0 else [kv] if position == 1 else []
            attributes = {"is_cpu_op": (_FLAG, 0), "tensor_size": (_WHOLE, 0), "num_ops": (_SIGNED, 0)}
            yield _node(index, b"compute", (_COMPUTE, 1200), [*before, *loads], attributes)
        yield _copy(store, _STORE, 1000, [computes[2]])


def _copy(index: int, kind: int, ns: int, after: list[int]) -> bytes:
    attributes = {"is_cpu_op": (_FLAG, int(kind == _STORE)), "tensor_size": (_WHOLE, 1000 * ns)}
    return _node(index, b"copy", (kind, 0), after, attributes)


def write(folder: Path, name: str, layers: int) -> None:
    """Write the trace of NPU 0; NPU 1 has one node, as there must be two."""
    idle = _node(0, b"compute", (_COMPUTE, 1), [], {"is_cpu_op": (_FLAG, 0), "tensor_size": (_WHOLE, 0)})
    for npu, messages in enumerate((nodes(layers) if layers else [idle], [idle])):
        with (folder / f"{name}.{npu}.et").open("wb") as file:
            for message in (_field(1, b"0.0.4"), *messages):
                file.write(_varint(len(message)) + message)


def astra(program: Path, folder: Path, name: str) -> tuple[float, int]:
    """Run ASTRA-sim; return its processor time [s], and when NPU 0 ends [cycles]."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    files = zip(("workload", "system", "remote-memory", "network"), (name, *SETTINGS), strict=True)
    command = [program, *(f"--{what}-configuration={file}" for what, file in files)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    ends = re.findall(r"sys\[0\] finished, (\d+) cycles", done.stdout + done.stderr)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, int(ends[0])


def hosim(layers: int, ops: int, name: str) -> tuple[float, float, int]:
    """Run the layers by an engine; return the time of the run, that with making the graph [s], and its end [ns]."""
    with engine.using(name):
        begun = time.process_time()
        case = decode_case(ops, layers)
        built = time.process_time()
        trace = case.run()
        ended = time.process_time()
    return ended - built, ended - begun, int(trace.spans.whole()["end_ns"].max())


def measured(program: Path, folder: Path, layers: int, ops: int, turns: int) -> dict[str, float]:
    """Compare in turns: how many times as fast as ASTRA-sim each engine is, and what each takes for a layer."""
    count = ops // 9 // layers * layers
    write(folder, "layers", count)
    write(folder, "start", 0)
    ratios: dict[str, list[float]] = {}
    for _ in range(turns):
        start_s, _ = astra(program, folder, "start")
        whole_s, cycles = astra(program, folder, "layers")
        there_s = whole_s - start_s
        found = {"ASTRA-sim [us a layer]": 1e6 * there_s / count}
        for name in ("simpy", "compiled"):
            here_s, built_s, end_ns = hosim(layers, ops, name)
            if cycles != 1000 * end_ns:
                raise SystemExit(f"they do not run the same: {cycles / 1000} ns there, {end_ns} ns here")
            found |= {
                name: there_s / here_s,
                f"{name} built": there_s / built_s,
                f"{name} [us a layer]": 1e6 * here_s / count,
            }
        for key, value in found.items():
            ratios.setdefault(key, []).append(value)
    medians = {key: statistics.median(values) for key, values in ratios.items()}
    return medians | {"least": min(ratios["compiled"]), "most": max(ratios["compiled"])}


def main() -> int:
    """Compare both cases; 1 if one misses its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "program", nargs="?", type=Path, default=os.environ.get("ASTRA_SIM", ""), help="ASTRA-sim, built"
    )
    parser.add_argument("--ops", type=int, default=100_000, help="operators here, in 9 of which is a layer")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if not asked.program.is_file():
        print("nothing is compared: name the program ASTRA-sim, or set ASTRA_SIM")
        return 0
    found = {}
    with TemporaryDirectory() as folder:
        for name, text in SETTINGS.items():
            (Path(folder) / name).write_text(text)
        for name, layers in CASES.items():
            about = asked.program.resolve(), Path(folder), layers or asked.ops // 9, asked.ops, asked.turns
            found[name] = measured(*about)
    figures = {name: of["compiled"] for name, of in found.items()}
    misses = bars.missed(figures, least=dict.fromkeys(figures, MUST))
    if asked.json:
        print(json.dumps({"result": found, "must": MUST, "missed": misses}, indent=1))
        return bool(misses)
    head = f"{'compiled':>8} {'least':>6} {'most':>6} {'built':>6} {'simpy':>6} {'must':>5}"
    print(f"{'times as fast as ASTRA-sim':<28} {head}")
    for name, of in found.items():
        columns = f"{of['compiled']:>8.2f} {of['least']:>6.2f} {of['most']:>6.2f} {of['compiled built']:>6.2f}"
        print(f"{name:<28} {columns} {of['simpy']:>6.2f} {MUST:>5.1f}")
    print(bars.told(misses))
    return bool(misses)


if __name__ == "__main__":
    sys.exit(main())

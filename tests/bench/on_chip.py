"""What prefetch into the on-chip cache changes of decode with tensor parallelism, with the cache as a tier.

    python tests/bench/on_chip.py

A token of each sequence on eight dies of a CloudMatrix384 node. Per layer four kernels read weights and one reads keys
and values, and two all_reduces each wait for the kernel before them (graphs made by hand, as no workload of hosim has
one model over several ranks at inference). *Today*: kernels read HBM, and each reads as it computes. *Cache*: the
compute tier is the cache of 192 MiB; what kernels read comes in from HBM over a link with its rate, as copies. These
`static` begins while collectives run, as PRESERVE does (arXiv 2501.08192). The rate of the cache is not published, and
is tried over that of HBM. ``bound``: what no plan beats with the cache. `scenarios/decode_prefetch_on_chip.yaml` is one
of these cases, with the rest of the machine.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import simulator as hosim
from simulator.graph import Collective, CollectiveKind, Graph, Job
from simulator.graph_builder import GraphBuilder

RANKS, STEPS = 8, 2
MODELS = {"LLaMA3-8B": (32, 4096, 14336, 1024), "LLaMA3-70B": (80, 8192, 28672, 1024)}
"""Layers, width, width of the feed-forward, width of all keys."""
CASES = [("LLaMA3-8B", 1, 4096), ("LLaMA3-8B", 16, 4096), ("LLaMA3-70B", 1, 4096), ("LLaMA3-70B", 16, 4096)]
"""Model, sequences, and tokens of each."""
TIMES = (2, 4, 1000)
"""Rates of the cache over that of HBM."""
HBM_GB_S = 1345.6
"""84.1 % of 1.6 TB/s, what the profile says that kernels reach."""
MACHINE = """
schema: hosim/hardware/1
name: die
title: a die with or without its cache
compute_tier: {near}
compute: {{peak: {{bf16: 376 TFLOP/s}}, achieved_fraction: {{default: 1.0}}}}
tiers:
  {near}: {{capacity: {room}, bandwidth: {rate} GB/s}}
  {far}: {{capacity: inf}}
links:
  in: {{source: {far}, target: {near}, bandwidth: {link} GB/s, sharing: fair, channels: 2}}
  out: {{source: {near}, target: {far}, bandwidth: {link} GB/s, sharing: fair, channels: 2}}
topology: {{devices_per_node: 8, nodes: 1}}
fabrics: {{ub: {{bandwidth: 28 GB/s, planes: 7, latency: 5.4 us, achieved_bandwidth: 0.95}}}}
assumed: {{compute: as cloudmatrix384_node, tiers: the same, links: the same, topology: the same, fabrics: the same}}
"""
SCENARIO = """
schema: hosim/scenario/1
name: on_chip
title: decode
hardware: machine.yaml
workload: tiny_train
homes: {{weight: {home}, kv_cache: {home}, activation: free}}
policies: [{policies}]
"""


def graph(model: str, sequences: int, tokens: int) -> Graph:
    """Build the graph of a rank: what it holds of each layer, what it reads, and where it meets the others."""
    layers, width, inner, keys = MODELS[model]
    builder = GraphBuilder(model)
    builder.group("all", [range(RANKS)])
    size = sequences * width * 2
    builder.tensor("x", size)
    builder.op("embed", [], ["x"], read_bytes=size)
    last = "x"
    for layer in range(layers):
        held = {
            "qkv": width * (width + 2 * keys) * 2 // RANKS,
            "kv": sequences * tokens * 2 * keys * 2 // RANKS,
            "o": width * width * 2 // RANKS,
            "ffn": width * 2 * inner * 2 // RANKS,
            "down": inner * width * 2 // RANKS,
        }
        for name, held_bytes in held.items():
            kind = "kv_cache" if name == "kv" else "weight"
            builder.tensor(f"L{layer}/{name}", held_bytes, kind, persistent=True)
            builder.tensor(f"L{layer}/{name}.out", size)
            flops = held_bytes * sequences if name != "kv" else 4 * width * sequences * tokens // RANKS
            op = f"L{layer}/{name}"
            builder.op(op, [last, op], [f"{op}.out"], flops=flops, op_class="matmul", dtype="bf16")
            last = f"{op}.out"
            if name in ("o", "down"):
                builder.tensor(f"L{layer}/{name}.sum", size)
                collective = Collective(CollectiveKind.ALL_REDUCE, "all", size)
                builder.op(
                    f"L{layer}/{name}.sum", [last], [f"L{layer}/{name}.sum"], "collective", collective=collective
                )
                last = f"L{layer}/{name}.sum"
    return builder.build(steps=STEPS)


def run(case: tuple[str, int, int], *, times: float, policies: str) -> dict[str, int]:
    """Return the step of each row [ns], and with a cache the bound; ``times`` 0 is the machine without a cache."""
    near, far = ("l2", "hbm") if times else ("hbm", "ddr")
    rate, link, room = (times * HBM_GB_S, HBM_GB_S, "192 MiB") if times else (HBM_GB_S, 33.6, "64 GB")
    job = Job("decode", (graph(*case),), (0,) * RANKS, ("decode",))
    with tempfile.TemporaryDirectory() as folder:
        machine = MACHINE.format(near=near, far=far, rate=rate, link=link, room=room)
        (Path(folder) / "machine.yaml").write_text(machine)
        path = Path(folder) / "scenario.yaml"
        path.write_text(SCENARIO.format(home="hbm", policies=policies))
        rows = hosim.run(path, job=job)
    found = {label: row.summary["step_ns"] for label, row in rows.items()}
    return found | {"bound": max(row.summary["bound_ns"] for row in rows.values())}


def main() -> None:
    """Print a line for each case and rate of the cache."""
    print("model       sequences  tokens   cache  today [us]  prefetched   bound  today/prefetched")
    for case in CASES:
        today = run(case, times=0, policies="resident")["resident"]
        for times in TIMES:
            found = run(case, times=times, policies="static")
            model, sequences, tokens = case
            micros = [f"{ns / 1000:11,.0f}" for ns in (today, found["static"], found["bound"])]
            print(f"{model:12}{sequences:9}{tokens:8,}{times:7}x{''.join(micros)}{today / found['static']:12.2f}x")


if __name__ == "__main__":
    main()

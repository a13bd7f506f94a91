"""What the README says of requests: what loading is worth, a measurement, a slower pool, and what rounding does.

``python tests/bench/serving.py`` takes a minute; with ``--load`` it serves the load of ``chat_kv_tiers_h100`` over
slower links as well, a quarter of a minute of processor time for each, and by how DDR keeps blocks; with ``--exact`` a
part of it with and without classes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import simulator as hosim
from simulator import catalog
from simulator.catalog import dump
from simulator.report.words import percent, quantity

TOKENS_K = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
COMPUTED_MS = (266, 634, 1099, 1652, 2290, 3013, 3840, 4785, 5734, 6848)
LOADED_MS = (41, 69, 97, 125, 153, 191, 218, 246, 276, 311)
"""Time to the first token of Llama 3.1 8B on an H100: vLLM's blog on its KV offloading connector, 2026-01-08, figure 1,
read off to 1 % and to 3 ms; its link carries about 50 GB/s one way."""
APART_S = 20


def reuse() -> Iterator[str]:
    """Time to the first token of 10,000 tokens, of which nothing, half or all is found, by the rate of the link."""
    yield "rate [GB/s]  row        nothing found  half found  all found [ms]"
    for rate in ("100", "55.36", "25", "10", "6", "5.5", "5", "4", "3", "2.5", "2"):
        for row in hosim.serve("kv_reuse_h100", set={"links.h2d.bandwidth": f"{rate} GB/s"}).rows:
            times = (row[f"read_{share}_hit_p50_ns"] / 1e6 for share in (0, 50, 100))
            yield f"{rate:>11}  {row['policy']:<9}" + "".join(f"{ms:13.1f}" for ms in times)


def measured(folder: Path) -> Iterator[str]:
    """One prompt at a time, computed and then loaded, beside what is printed."""
    lines = ["arrival,prompt,output,prefix,prefix_tokens"]
    for number, thousands in enumerate(TOKENS_K):
        lines += [f"{(2 * number + i) * APART_S},{thousands}000,1,{number},{thousands}000" for i in (0, 1)]
    (folder / "prompts.csv").write_text("\n".join(lines) + "\n")
    path = _documents(folder, "kv_reuse_h100", {"file": "prompts.csv"})
    found = hosim.serve(path, policies=["static"], set={"links.h2d.bandwidth": "50 GB/s"}).requests
    times = [ns / 1e6 for ns in found["ttft_ns"]]
    yield "tokens  computed  printed  error    loaded  printed  error [ms]"
    for number, thousands in enumerate(TOKENS_K):
        pairs = zip(times[2 * number : 2 * number + 2], (COMPUTED_MS[number], LOADED_MS[number]), strict=True)
        yield f"{thousands:>4} K" + "".join(f"{ms:10.1f}{said:9}{100 * (ms / said - 1):+6.0f}%" for ms, said in pairs)


def load() -> Iterator[str]:
    """The load of requests that share documents, over slower and slower links, and with nothing kept in DDR."""
    scenario = catalog.read_scenario("chat_kv_tiers_h100")
    alone = scenario.model_copy(update={"kv_tiers": {"hbm": scenario.kv_tiers["hbm"]}})
    yield "link [GB/s]  first p50  p95   next p50  p95 [ms]  tokens/s  found  in DDR"
    for rate in (None, 55, 25, 10, 5, 2):
        changes = {"links.*.bandwidth": f"{rate} GB/s"} if rate else {}
        (row,) = hosim.serve(scenario if rate else alone, set=changes, policies=["static"]).rows
        times = (row[f"{name}_{which}_ns"] / 1e6 for name in ("ttft", "tpot") for which in ("p50", "p95"))
        hits = 1 - row["computed_fraction"], row.get("hit_ddr_fraction", 0)
        yield (
            f"{rate or 'none':>11}"
            + "".join(f"{ms:9.1f}" for ms in times)
            + f"{row['tokens_per_s']:9.0f}"
            + "".join(f"{100 * share:7.1f}%" for share in hits)
        )


KEPT = {
    "12 GB, by default": {},
    "`write: through`": {"write": "through"},
    "`write: through`, `uses: 2`": {"write": "through", "uses": 2},
    "`content: exclusive`": {"content": "exclusive"},
}
"""How DDR keeps blocks."""


def kept() -> Iterator[tuple[str, ...]]:
    """The same load with 12 GB of DDR, by how it keeps blocks; and with all that the profile has, by when loads end."""
    asked = {name: {"scenario.kv_tiers.ddr": {"room": "12 GB", **how}} for name, how in KEPT.items()}
    asked |= {"100 GB, by default": {}, "`loads: before_admission`": {"workload.requests.loads": "before_admission"}}
    for name, changes in asked.items():
        (row,) = hosim.serve("chat_kv_tiers_h100", set=changes, policies=["static"]).rows
        times = (quantity(row[f"ttft_{which}_ns"], "ns") for which in ("p50", "mean"))
        moved = (quantity(row[f"moved_{link}_bytes"], "B") for link in ("d2h", "h2d"))
        yield name, *times, percent(row["hit_ddr_fraction"]), *moved


def exact(folder: Path) -> Iterator[str]:
    """Thirty requests of that load, with rounding and without."""
    path = _documents(folder, "chat_kv_tiers_h100", {"count": 30, "output": {"mean": 48, "spread": 0.5}})
    for is_exact in (False, True):
        (row,) = hosim.serve(path, policies=["static"], exact=is_exact).rows
        times = {
            key: f"{row[key] / 1e6:.2f} ms" for key in ("ttft_p50_ns", "ttft_p95_ns", "tpot_p50_ns", "tpot_p95_ns")
        }
        yield f"exact {is_exact}: {row['replayed']} of {row['iterations']} iterations replayed, {times}"


def _documents(folder: Path, name: str, changes: dict[str, object]) -> Path:
    """A shipped scenario with other requests."""
    scenario = catalog.read_scenario(name)
    workload = catalog.read_workload(scenario.workload)
    stated = workload.requests.model_dump(mode="json", by_alias=True, exclude_unset=True) | changes
    requests = type(workload.requests).model_validate(stated)
    (folder / "workload.yaml").write_text(dump(workload.model_copy(update={"requests": requests})))
    path = folder / "scenario.yaml"
    path.write_text(dump(scenario.model_copy(update={"workload": "workload.yaml"})))
    return path


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--exact", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        parts = [reuse(), measured(Path(folder))]
        parts += [load(), map(" | ".join, kept())] if asked.load else []
        parts += [exact(Path(folder))] if asked.exact else []
        for part in parts:
            for line in part:
                print(line, flush=True)
            print()


if __name__ == "__main__":
    main()

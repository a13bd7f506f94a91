"""Published measurements of inference beside what hosim predicts.

    python tests/bench/measured.py

Scenarios are those of ``scenarios/measured``; each says at its head what it takes from the measurement itself, which is
nothing but times of compute that nobody predicts here. Nothing is fitted to a row that counts. A row marked * is shown
and does not count, for the reason under the table. What a row changes is of the setting: the number of drives, as the
rate that the same tool measured with so many (DeepNVMe blog, figures 1 and 2).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import simulator as hosim
from simulator.run.studies import scaling


@dataclass(frozen=True)
class Row:
    """One printed figure.

    Attributes
    ----------
    measurement, case
        Where it is printed, and for what.
    unit, printed
        The figure.
    scenario, policy
        What predicts it.
    figure
        From a row of the summary to the figure.
    point
        Of a scenario with points, which one; else None.
    changes
        What of the machine differs.
    counts
        Whether it counts.
    """

    measurement: str
    case: str
    unit: str
    printed: float
    scenario: str
    policy: str
    figure: Callable[[Mapping[str, float]], float]
    point: int | None = None
    changes: Mapping[str, str] = field(default_factory=dict)
    counts: bool = True

    def obtained(self) -> float:
        """What hosim predicts."""
        return self.figure(_ran(self.scenario, self.policy, self.point, tuple(self.changes.items())))

    def error(self) -> float:
        """How far that is from the printed figure, as a share of it."""
        return self.obtained() / self.printed - 1


@cache
def _ran(scenario: str, policy: str, point: int | None, changes: tuple[tuple[str, str], ...]) -> Mapping[str, float]:
    if point is None:
        return hosim.run(scenario, set=dict(changes), policies=[policy])[policy].summary
    return (_waves(scenario) if scenario.startswith(HITS) else _curve(scenario, policy))[point]


@cache
def _curve(scenario: str, policy: str) -> list[Mapping[str, float]]:
    return [row for row in scaling(scenario, policies=[policy]).rows if row["policy"] == policy]


@cache
def _waves(scenario: str) -> list[Mapping[str, float]]:
    """Of requests that come in waves, what all of a wave take; the first wave only fills the tiers."""
    found = []
    for arrival, wave in hosim.serve(scenario).requests.groupby("arrival_ns"):
        found.append(
            {"tokens": int(wave["prompt_tokens"].sum()), "step_ns": int(wave["end_ns"].max()) - int(str(arrival))}
        )
    return found[1:]


def _ms(summary: Mapping[str, float]) -> float:
    return summary["step_ns"] / 1e6


def _per_s(tokens: float) -> Callable[[Mapping[str, float]], float]:
    return lambda summary: tokens * 1e9 / summary["step_ns"]


def _steps_s(steps: float) -> Callable[[Mapping[str, float]], float]:
    return lambda summary: steps * summary["step_ns"] / 1e9


def _read_per_s(wave: Mapping[str, float]) -> float:
    return wave["tokens"] * 1e9 / wave["step_ns"]


AHEAD, SLOTS = "one layer ahead", "two slots"
HITS = "vllm_h100_hits"
A2000 = "OLMoE on an RTX A2000, experts on the host, one layer ahead"
NVME = "Llama 3 70B on an A100, weights on NVMe, batch 96"
GH200 = "Llama 3 70B on a GH200, 70 GiB on the host, on demand"
B300 = "Cosmos3-Super on B300, blocks on the host"
READ = "Llama 3.1 8B on an H100, prompt read"
LOAD = "Llama 3.1 8B on an H100, KV cache loaded from the host"
SHORT = "Llama 3.1 8B on an H100, short prompts, a share on the host"
SMALL = "Llama 3.2 1B on an H100, short prompts, a share on the host"

SOURCES = {
    A2000: "github.com/pjordanandrsn/experts4bit-qlora, docs/METHODOLOGY.md, section 12b",
    NVME: "DeepSpeed blog, DeepNVMe, 2024-08: four drives as the text has them, one and two read off figure 3, to 0.1",
    GH200: "vllm-project/vllm, pull request 6496, comment of 2024-07-17",
    B300: "vllm-project/vllm-omni, pull request 5397, and the blog of vLLM of 2026-08-17",
    READ: "vLLM blog, Inside vLLM's New KV Offloading Connector, 2026-01-08, figure 1, to 1 %",
    LOAD: "vLLM blog, Inside vLLM's New KV Offloading Connector, 2026-01-08, figure 1, to 3 ms",
    SHORT: "vLLM blog, Inside vLLM's New KV Offloading Connector, 2026-01-08, figure 2",
    SMALL: "vLLM blog, Inside vLLM's New KV Offloading Connector, 2026-01-08, figure 6, copy engine, to 1 %",
}
WHY_NOT = {
    B300: "whole runs also have stages beside the blocks (text, decoding of the video), which are not published",
    SMALL: "what the engine takes for a request is not modelled, and counts the more the smaller the model",
}


def rows() -> Iterator[Row]:
    """All rows."""
    gemv, dequantize, rate = "olmoe_a2000_gemv", "olmoe_a2000_dequantize", "tokens/s"
    yield Row(A2000, "fused GEMV", rate, 1.44, gemv, AHEAD, _per_s(1))
    yield Row(A2000, "dequantize", rate, 1.43, dequantize, AHEAD, _per_s(1))
    yield Row(A2000, "instrumented, 4 copies a layer", rate, 1.614, gemv, AHEAD, _per_s(1))
    yield Row(A2000, "instrumented, 2 copies a layer", rate, 1.606, gemv, AHEAD, _per_s(1))
    yield Row(A2000, "stall in 96 tokens", "s", 28.6, gemv, AHEAD, lambda row: 96 * row["stall_ns"] / 1e9)
    for drives, direct, printed, read, through in ((1, "3.2", 2.3, "2.9", 1.9), (2, "5.7", 4.0, "5.6", 3.6),
                                                   (4, "9.6", 7.0, "10.1", 6.0)):  # fmt: skip
        change = {"links.gds_read.bandwidth": f"{direct} GB/s", "links.read.bandwidth": f"{read} GB/s"}
        yield Row(
            NVME, f"{drives} drives, direct", rate, printed, "deepnvme_70b_gds", "static", _per_s(96), None, change
        )
        change = {"links.read.bandwidth": f"{read} GB/s"}
        yield Row(NVME, f"{drives} drives, over DDR", rate, through, "deepnvme_70b_bounce", "static", _per_s(96), None,
                  change)  # fmt: skip
    yield Row(GH200, "one stream", rate, 4.1, "vllm_gh200_70b", "on demand", _per_s(1))
    shards, blocks = "cosmos3_b300_shards", "cosmos3_b300_blocks"
    yield Row(B300, "period of a block, gathered from shards", "ms", 7.21, shards, SLOTS, lambda row: _ms(row) / 128)
    yield Row(B300, "35 steps, gathered from shards", "s", 38.79, shards, SLOTS, _steps_s(35), counts=False)
    yield Row(B300, "50 steps, gathered from shards", "s", 43.69, shards, SLOTS, _steps_s(50), counts=False)
    yield Row(B300, "50 steps, whole blocks", "s", 112.96, blocks, SLOTS, _steps_s(50), counts=False)
    yield Row(B300, "35 steps, whole blocks, shared attention", "s", 81.46, blocks, SLOTS, _steps_s(35), counts=False)
    yield Row(B300, "50 steps, whole blocks, shared attention", "s", 105.22, blocks, SLOTS, _steps_s(50), counts=False)
    for number, printed in enumerate((266, 634, 1099, 1652, 2290, 3013, 3840, 4785, 5734, 6848)):
        yield Row(READ, f"{10 * number + 10} K tokens", "ms", printed, "vllm_h100_prefill", "resident", _ms, number)
    for number, printed in enumerate((15, 41, 69, 97, 125, 153, 191, 218, 246, 276, 311)):
        case = f"{10 * number or 1} K tokens"
        yield Row(LOAD, case, "ms", printed, "vllm_h100_load", "load, then read", _ms, number)

    tokens = (44000, 46900, 52000, 56800, 64500, 74200, 89100, 116200, 158800, 218200, 389100)
    for number, printed in enumerate(tokens):
        case = f"{10 * number} % found"
        yield Row(SHORT, case, rate, printed, HITS, "static", _read_per_s, number)
    tokens = (230000, 247000, 268000, 290000, 331000, 364000, 420000, 508000, 621000, 752000, 829000)
    for number, printed in enumerate(tokens):
        case = f"{10 * number} % found"
        yield Row(SMALL, case, rate, printed, f"{HITS}_1b", "static", _read_per_s, number, counts=False)


def flexgen() -> tuple[float, float]:
    """OPT-30B on a T4, prompts of 512 tokens and answers of 32: printed, and what three batches take [tokens/s]."""
    reads = _ran("flexgen_t4_prefill", "static", None, ())["step_ns"]
    decodes = _ran("flexgen_t4_decode", "static", None, ())["step_ns"]
    return 7.32, 144 * 32 * 1e9 / (3 * reads + 31 * decodes)


def _shown(figure: float) -> str:
    return f"{figure:9,.0f}" if figure >= 1000 else f"{figure:9.4g}"


def main() -> None:
    """Print every row, and the errors of those that count."""
    found, last = list(rows()), ""
    for row in found:
        if row.measurement != last:
            print(f"\n{row.measurement}\n  {SOURCES[row.measurement]}")
            last = row.measurement
        figures = f"{_shown(row.printed)} {_shown(row.obtained())} {row.unit:8} {row.error():+7.1%}"
        print(f"  {row.case:42} {figures}{'' if row.counts else ' *'}")
    for measurement, why in WHY_NOT.items():
        print(f"\n* {measurement}: {why}")
    printed, obtained = flexgen()
    print("\nOPT-30B on a T4, weights and KV caches on the host, FlexGen *: the rates were fitted to its own runs")
    figures = f"{printed:9.4g} {obtained:9.4g} tokens/s {obtained / printed - 1:+7.1%}"
    print(f"  {'batch 144, prompts of 512, answers of 32':42} {figures} *")
    print()
    for name in dict.fromkeys(row.measurement for row in found):
        errors = [abs(row.error()) for row in found if row.measurement == name and row.counts]
        if not errors:
            continue
        print(f"{name:62} {len(errors):3} rows, median {statistics.median(errors):6.1%}, largest {max(errors):6.1%}")
    errors = [abs(row.error()) for row in found if row.counts]
    above = sum(error > 0.25 for error in errors)
    print(f"\nall {len(errors)} rows: median {statistics.median(errors):.1%}, {above} above 25 %")
    print(overall(found, obtained / printed - 1))


def overall(found: list[Row], flexgen_error: float) -> str:
    """Sum up all records, whether they count or not: the median error, and the share in which hosim is too fast."""
    errors = [row.error() for row in found] + [flexgen_error]
    is_rate = [row.unit.endswith("/s") for row in found] + [True]
    too_fast = sum(error > 0 if rate else error < 0 for error, rate in zip(errors, is_rate, strict=True))
    median = statistics.median(map(abs, errors))
    return (
        f"with those that do not count, {len(errors)} rows: median {median:.1%}, {too_fast / len(errors):.0%} too fast"
    )


if __name__ == "__main__":
    main()

"""Every field of every document: another value of it changes something, or is refused, or is named in a line."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from simulator import catalog
from simulator.builders import build_job
from simulator.catalog.settings import FieldChange, apply, fields
from simulator.catalog.text import compose
from simulator.document import ABOUT_ITSELF, Citation, Document, Fit, Part
from simulator.errors import HosimError
from simulator.graph import Collective, Job
from simulator.graph_builder import GraphBuilder
from simulator.hardware import Compaction, Hardware
from simulator.run.case import prepare
from simulator.run.effects import hints
from simulator.run.row import rows_of
from simulator.scenario import Claim, Expectation, Frontier, PolicyChoice, Slo
from simulator.scenario.claim import Untested
from simulator.scenario.study import StudyDocument
from simulator.units import FieldError, parse, unit_of
from simulator.workload import Workload

MACHINE = """\
schema: hosim/hardware/1
name: machine
compute_tier: hbm
compute:
  peak: {bf16: 1 TFLOP/s, fp32: 0.5 TFLOP/s}
  achieved_fraction: {matmul: 0.5, attention: 0.4, vector: 0.1}
  achieved_bandwidth: 0.98
  launch: 100 ns
  power: 300 W
  energy: 1 pJ/FLOP
  price: 2 USD/h
host_compute:
  tier: ddr
  peak: {bf16: 0.1 TFLOP/s, fp32: 0.05 TFLOP/s}
  achieved_fraction: {matmul: 0.5, vector: 0.2}
  achieved_bandwidth: 0.7
  launch: 2 us
  fill: 1 us
host:
  queue_depth: 4
  fixed: {launch: 1 us, step: 10 us}
  reactive: {inspect: 100 ns, compute: 50 ns, copy: 60 ns, detach: 20 ns, sync: 30 ns, select: 40 ns, update: 70 ns}
  serving: {iteration: 1 us, request: 1 us, ahead: true}
tiers:
  hbm: {capacity: 1 MB, reserved: 100 kB, bandwidth: 10 GB/s, energy: 10 pJ/B, price: 1 USD/GB/month}
  ddr: {capacity: 2 MB, reserved: 10 kB, scope: node, bandwidth: 4 GB/s, endurance: 1 TB, price: 0.1 USD/GB/month}
  ssd: {capacity: 100 MB, scope: node, endurance: 1 TB}
links:
  d2h: {source: hbm, target: ddr, bandwidth: 1 GB/s, latency: 1 us, energy: 5 pJ/B, channels: 2, sharing: fair}
  h2d: {source: ddr, target: hbm, bandwidth: 1 GB/s, latency: 1 us, energy: 5 pJ/B, channels: 2, loads: 0.8 GB/s,
        efficiency: [{size: 1 kB, fraction: 0.5}, {size: 100 kB, fraction: 0.9}]}
  read: {source: ssd, target: ddr, bandwidth: 500 MB/s, latency: 2 us}
  write: {source: ddr, target: ssd, bandwidth: 500 MB/s, latency: 2 us}
  load: {source: ssd, target: hbm, via: [read, h2d], chunk: 8 kB}
buses:
  pcie: {links: [d2h, h2d], bandwidth: 1.5 GB/s, scope: node}
copy_queues: {dma: [d2h, h2d]}
topology: {devices_per_node: 2, nodes: 2}
ranks: {"1": {compute: 0.5, memory: 0.9}}
fabrics:
  near: {bandwidth: 1 GB/s, latency: 1 us, achieved_bandwidth: 0.8, planes: 2}
  far: {scope: supernode, bandwidth: 1 GB/s, latency: 1 us, chunk: 4 kB, algorithms: {all_reduce: [ring, tree]}}
on_chip: {sram: {capacity: 1 MB}}
allocator:
  page: 4 kB
  compaction: {per_page: 1 us}
  caching: {rounding: 512 B, small: 2 kB, small_segment: 4 kB, large_segment: 40 kB, own_segment: 20 kB,
            segment_rounding: 4 kB}
"""


def annotated(of: Any) -> Iterator[Any]:
    """All types in an annotation."""
    yield of
    for inner in typing.get_args(of):
        yield from annotated(inner)


def kinds_of_parts(root: type[Part]) -> set[type[Part]]:
    """All classes of parts of a document."""
    found, new = {root}, [root]
    while new:
        for field in new.pop().model_fields.values():
            for inner in annotated(field.annotation):
                if isinstance(inner, type) and issubclass(inner, Part) and inner not in found:
                    found.add(inner)
                    new.append(inner)
    return found


def stated(value: Any, *path: str) -> Iterator[tuple[tuple[str, ...], tuple[type, str] | None, Any]]:
    """Every field of a document that has a value: its path, the class and the field, and the value; sections, too."""
    if isinstance(value, Part):
        for name, field in type(value).model_fields.items():
            if (inner := getattr(value, name)) is not None:
                yield (*path, field.alias or name), (type(value), name), inner
                yield from stated(inner, *path, field.alias or name)
    elif isinstance(value, Mapping | tuple):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield (*path, str(key)), None, inner
            yield from stated(inner, *path, str(key))


BINDING = {
    "tiers.hbm.reserved": ["600 kB"], "tiers.ddr.capacity": ["100 kB"], "tiers.ddr.reserved": ["1.95 MB"],
    "tiers.ssd.reserved": ["99.9 MB"], "kv_tiers": [{"ddr": "100 kB"}], "options": [{"odd": 1}],
    "set": [{"links.h2d.bandwidth": "1 MB/s"}],
}  # fmt: skip
"""Path, or its last part -> values that bind where twice as much, and half, do not."""


def others(value: Any, hints: Any) -> list[Any]:
    """Other values, as a document states them; the far ones first, which bind."""
    literals = [hint for hint in annotated(hints) if typing.get_origin(hint) is typing.Literal]
    if choices := [choice for literal in literals for choice in typing.get_args(literal)]:
        return [choice for choice in choices if choice != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, list):
        return [other for other in (value[:-1], [*value, *value], ["*"]) if other != value]
    if isinstance(value, str) and (unit := unit_of(value)):
        size = parse(value, unit)
        amounts = (1, size * 1000, size // 2, size * 2, 0, 10**15)
        return [f"{amount} {unit}" for amount in amounts if amount != size]
    if isinstance(value, int | float):
        return [other for other in (1, 0, value * 2, value // 2, value + 1, 1000 * value) if other != value]
    return []  # a name: with another one it is another machine, or nothing that there is


SCENARIOS = {
    "alone": """{homes: {weight: ddr, optimizer_state: ssd, activation: free}, budget: 420 kB, policies: [
      {policy: reactive, allocator: caching, options: {look_ahead: 0}}]}""",
    "compacting": """{homes: {weight: ddr, optimizer_state: ssd}, budget: 330 kB, policies: [
      {policy: reactive, allocator: best_fit}]}""",
    "choosing": """{homes: {expert: ddr}, seed: 3, draws: {distribution: zipf, skew: 1.2, stickiness: 0.5}, policies: [
      reactive]}""",
    "meeting": """{homes: {weight: ddr, optimizer_state: ssd}, policies: [resident]}""",
    "in place": """{homes: {expert: ddr}, policies: [{policy: resident, in_place: always}]}""",
    "hosted": """{homes: {weight: ddr, optimizer_state: ddr}, policies: [resident]}""",
    "apart": """{homes: {weight: ddr, optimizer_state: ssd}, budget: 660 kB, policies: [
      {policy: resident, label: alone, alone: true}, {policy: resident, staggered: true}]}""",
}
"""One rank that evicts, or reads dynamically; ranks that meet; reads in place; a host that updates; shared links."""


def job_of(case: str) -> Job:
    """What runs in a case."""
    if case == "in place":
        return reading()
    return choosing() if case == "choosing" else step(case)


def step(case: str) -> Job:
    """A step of three layers, forward and backward."""
    layers = range(3)
    g = GraphBuilder(case)
    for i in layers:
        g.tensor(f"w{i}", 40_000, kind="weight", persistent=True)
        g.tensor(f"s{i}", 60_000, kind="optimizer_state", persistent=True)
        g.tensor(f"a{i}", 70_000)
        g.tensor(f"g{i}", 40_000, kind="gradient")
    if case == "meeting":
        g.group("all", [[0, 1, 2, 3]])
        g.group("pair", [[0, 1], [2, 3]])
    about = {"read_bytes": 100_000, "write_bytes": 50_000, "flops": 40_000_000}
    for i in layers:
        kind = ("matmul", "attention", "vector")[i]
        reads = [f"w{i}", *([f"a{i - 1}"] if i else [])]
        g.op(f"fwd/{i}", reads, [f"a{i}"], op_class=kind, dtype="fp32" if i == 2 else "bf16", phase="forward", **about)
    for i in reversed(layers):
        g.op(f"bwd/{i}", [f"w{i}", f"a{i}"], [f"g{i}"], op_class="matmul", phase="backward", **about)
        group, algorithm = ("all", "hierarchical") if i else ("pair", "ring")
        if case == "meeting":
            meets = Collective("all_reduce", group, 40_000, algorithm)
            g.op(f"reduce/{i}", [f"g{i}"], [f"g{i}"], kind="collective", collective=meets)
    for i in layers:
        changed = [f"w{i}", f"s{i}"]
        updates = {"read_bytes": 140_000, "write_bytes": 100_000}
        if case == "hosted":
            kind = ("matmul", "vector", "vector")[i]
            updates |= {"flops": 40_000_000, "dtype": "fp32" if i else "bf16", "op_class": kind, "device": "host"}
        g.op(f"update/{i}", [*changed, f"g{i}"], changed, phase="update", **updates)
    return Job.of(g.build(steps=4), 4 if case in ("meeting", "apart") else 1)


def reading() -> Job:
    """Steps that read three weights where they lie."""
    g = GraphBuilder("reading")
    for i in range(3):
        g.tensor(f"e{i}", 40_000, kind="expert", persistent=True)
        g.tensor(f"y{i}", 1_000)
        g.op(f"read/{i}", [f"e{i}"], [f"y{i}"], flops=1_000_000, op_class="matmul")
    graph = g.build(steps=3)
    return Job.of(replace(graph, in_place=graph.may_stay_away))


def choosing() -> Job:
    """Steps that each read two of eight experts, as a router says, and write what lasts."""
    g = GraphBuilder("choosing")
    for i in range(8):
        g.tensor(f"e{i}", 40_000, kind="expert", persistent=True)
    for name, size, lasts in (("x", 1_000, False), ("y", 1_000, False), ("kv", 30_000, True)):
        g.tensor(name, size, kind="kv_cache" if lasts else "activation", persistent=lasts)
    g.op("route", [], ["x"], flops=1_000_000, op_class="matmul")
    experts = [f"e{i}" for i in range(8)]
    chosen = g.dynamic_reads("experts", "route", experts, samples=1, each=2)
    g.op("experts", ["x", *experts], ["y"], dynamic=chosen, flops=10_000_000, op_class="matmul")
    g.op("keep", ["y", "kv"], ["kv"], read_bytes=31_000, write_bytes=30_000)
    return Job.of(g.build(steps=3))


def documents(folder: Path, case: str) -> Path:
    """Write the documents of a case; return the path of its scenario."""
    scenario = "{schema: hosim/scenario/1, name: scenario, hardware: hardware.yaml, workload: workload.yaml, "
    texts = {
        "hardware.yaml": MACHINE,
        "scenario.yaml": scenario + SCENARIOS[case].removeprefix("{"),
        "step.jsonl": "{}",
    }
    texts["workload.yaml"] = "{schema: hosim/workload/1, name: workload, graph: step.jsonl}"
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder / "scenario.yaml"


def seen(job: Job, scenario: Path, changes: Mapping[str, Any]) -> tuple[Any, str]:
    """What a person sees of a run: the figures of its rows, and what has no effect."""
    case = prepare(replace(catalog.resolve(scenario, changes), is_job_given=True), job, with_bounds=False)
    rows = rows_of(case, None, advice=False)
    return [row.summary for row in rows], " ".join(line for line in hints(case, rows) if "without effect here" in line)


class Walk:
    """The cases, run with changes of one field at a time."""

    def __init__(self, folder: Path) -> None:
        self.jobs, self.paths, self.base = {case: job_of(case) for case in SCENARIOS}, {}, {}
        for case in SCENARIOS:
            (folder / case).mkdir()
            self.paths[case] = documents(folder / case, case)
            self.base[case] = seen(self.jobs[case], self.paths[case], {})

    def verdict(self, case: str, path: str, value: Any) -> str:
        """What comes of another value: ``differs``, ``refused``, ``named``, or nothing."""
        try:
            rows, told = seen(self.jobs[case], self.paths[case], {path: value})
        except HosimError:
            return "refused"
        return "differs" if rows != self.base[case][0] else "named" if path.removeprefix("scenario.") in told else ""

    def verdicts(self, kind: str, path: str, hints: Any) -> Iterator[str]:
        """What comes of other values of a field, case by case."""
        for case in SCENARIOS:
            document, last = getattr(catalog.resolve(self.paths[case]), kind), path.rsplit(".", maxsplit=1)[-1]
            with suppress(FieldError):
                (_, value), *_ = fields(document, path)
                values = BINDING.get(path) or BINDING.get(last) or others(value, hints)
                full = path if kind == "hardware" else f"scenario.{path}"
                yield from (self.verdict(case, full, other) for other in values)


NO_FIGURE = {
    *((Document, field) for field in ABOUT_ITSELF),  # prose
    (PolicyChoice, "label"),  # a name
}
"""Fields that no figure follows from, and why."""
ELSEWHERE = {Citation, Fit, Claim, Untested, Expectation, Frontier, Slo, StudyDocument}
"""Parts that describe, judge or ask; their own tests hold what comes of them."""


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    return Walk(tmp_path_factory.mktemp("walk"))


def fields_of(document: Document) -> dict[tuple[type[Part], str], list[str]]:
    """The paths of all fields that a document states, by class and field; entries of mappings and lists count as it."""
    found: dict[tuple[type[Part], str], list[str]] = {}
    last: tuple[type[Part], str] | None = None
    for keys, of, value in stated(document):
        last = of or last
        is_plain = not isinstance(value, Part | Mapping | tuple) or not value
        if last and is_plain and keys[0] not in ABOUT_ITSELF:
            found.setdefault(last, []).append(".".join(keys))
    return found


def dead(walk: Walk, kind: str, found: Mapping[tuple[type[Part], str], list[str]]) -> list[str]:
    """The fields whose other values neither change a figure, nor are refused, nor are named."""
    silent = []
    for of, paths in found.items():
        hints = of[0].model_fields[of[1]].annotation
        for path in () if of in NO_FIGURE else paths:
            came = set[str]()
            for verdict in walk.verdicts(kind, path, hints):
                came.add(verdict)
                if verdict in {"differs", "named"}:
                    break
            silent += (
                [f"{path}: {sorted(came)}"] if came and not came & {"differs", "named"} and came != {"refused"} else []
            )
    return silent


QUIET = ("links.read.channels", "links.read.blocking")
"""Only staged links go over it."""


@pytest.mark.slow
def test_every_field_of_a_machine_has_an_effect_or_is_named(walk):
    found = fields_of(catalog.resolve(walk.paths["meeting"]).hardware)
    wanted = {(part, field) for part in kinds_of_parts(Hardware) - ELSEWHERE for field in part.model_fields}
    left_out = {(Compaction, "per_event_ns")}  # in place of per_page
    missing = {pair for pair in wanted - found.keys() - left_out if not is_section(*pair)}
    assert {field for _, field in missing} <= {*ABOUT_ITSELF}
    silent = [line for line in dead(walk, "hardware", found) if not line.startswith(QUIET)]
    assert silent == []


@pytest.mark.slow
@pytest.mark.parametrize("case", SCENARIOS)
def test_every_field_of_a_scenario_has_an_effect_or_is_named(walk, case):
    scenario = catalog.resolve(walk.paths[case]).scenario
    not_changed = {"hardware", "workload", "set_", "expect", "claim", "sweep", "frontier"}
    found = {of: paths for of, paths in fields_of(scenario).items() if of[1] not in not_changed}
    assert dead(walk, "scenario", found) == []


def is_section(part: type[Part], field: str) -> bool:
    """Whether a field holds parts, whose fields are walked themselves."""
    return any(
        isinstance(hint, type) and issubclass(hint, Part) for hint in annotated(part.model_fields[field].annotation)
    )


LLAMA = "{layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocabulary: 64}"
GQA = "kind: gqa, heads: 4, kv_heads: 2, head_size: 8"
DECODER = "family: decoder, layers: 4, hidden: 32, vocabulary: 64"
DENSE = "feed_forward: {kind: dense, width: 48}"
SPARSE = "{compress: {block: 8, stride: 4}, select: {block: 8, top: 5, first: 1, last: 2}, window: 16, caches: own}"
WORKLOADS = {
    "train": f"""model: {LLAMA}, batch: 2, sequence: 32, kernels: fused, swiglu: apart, steps: 2, outputs: kept,
      optimizer: {{kind: adamw, states: fp32, master: true}}, checkpoint: {{part: layer, layers: [0, 1]}},
      dtypes: {{compute: bf16, gradients: fp32, logits_copies_fp32: 1, gradient_copies_fp32: 2}},
      parallel: {{ranks: all, data: 2, tensor: 2, pipeline: 2, sequence: true, zero_stage: 1, micro_batches: 4,
                  schedule: 1f1b, layers: [1, 1]}}""",
    "slice": f"""model: {LLAMA}, batch: 2, sequence: 32, parallel: {{ranks: one, data: 4, zero_stage: 1}}""",
    "frozen": f"""model: {LLAMA}, batch: 2, sequence: 32, lora: {{rank: 4, targets: [attn.q]}}, replicas: 2,
      frozen: ["embed/*", "L00/*"], dtypes: {{weights: nf4, optimizer_bytes_per_parameter: 8}}""",
    "experts": f"""model: {{{DECODER}, attention: {{{GQA}, qk_norms: true, biases: [q], sink_logits: true}},
      feed_forward: {{kind: experts, routed: 8, top_k: 2, width: 16, shared: 1, shared_width: 24, router_bias: true,
                      biases: true}},
      others: [{{start: 1, stop: 4, every: 2, feed_forward: {{kind: dense, width: 48, biases: true}}}}]}},
      batch: 2, sequence: 32, parallel: {{ranks: all, data: 2, expert: 2}}""",
    "several": f"""model: {{{DECODER}, attention: {{{GQA}}}, feed_forward: {{kind: dense, width: 48}}, residuals: 2}},
      batch: 2, sequence: 32""",
    "tower": f"""model: {{family: decoder, layers: 2, hidden: 32, vocabulary: 0, head: false, causal: false,
      stem: [{{taken: 15, width: 32}}, {{rows: 2, taken: 96, width: 32, bias: true}}], attention: {{{GQA}}},
      mergers: [[{{pooled: 2, norm: scale}}, {{rows: 2, width: 16, activation: gated}}, {{width: 8}}]],
      feed_forward: {{kind: dense, width: 48}}}}, phase: prefill, batch: 2, sequence: 32""",
    "decode": f"""model: {{{DECODER}, tied_embeddings: true, attention: {{{GQA}, window: 20, sinks: 2}},
      feed_forward: {{kind: experts, routed: 8, top_k: 2, width: 16, ranks: 2, buffers: apart}}}},
      phase: decode, batch: 2, sequence: 64, new_tokens: 32, kv: {{block: 8, sequences: 1, new: as_needed}},
      experts: grouped, dtypes: {{weights: fp8, experts: fp8, kv_cache: fp8, scores_bytes: 10}}""",
    "copies": f"""model: {{{DECODER}, attention: {{{GQA}}},
      feed_forward: {{kind: experts, routed: 8, top_k: 2, width: 16, ranks: 2, copies: 2}}}}, phase: prefill,
      batch: 2, sequence: 64, chunk: 16, parallel: {{ranks: all, tensor: 2}}""",
    "selects": f"""model: {{{DECODER}, attention: {{{GQA}, sparse: {SPARSE}}}, {DENSE}}}, phase: decode, batch: 2,
      sequence: 256, kv: {{block: 8}}""",
    "chosen": f"""model: {{{DECODER}, attention: {{{GQA}, sparse: {SPARSE}}}, {DENSE}}}, phase: prefill, batch: 2,
      sequence: 256""",
    "latents": f"""model: {{{DECODER}, attention: {{kind: mla, heads: 4, q_lora_rank: 16, kv_lora_rank: 16, qk_nope: 8,
      qk_rope: 4, v_head: 8, indexer: {{heads: 2, head_size: 8, top: 8}}}}, {DENSE}}}, phase: decode, batch: 2,
      sequence: 64""",
    "states": f"""model: {{{DECODER}, attention: {{kind: linear, heads: 4, head_size: 8, block: 16}}, {DENSE}}},
      phase: prefill, batch: 2, sequence: 64""",
    "pools": f"""model: {LLAMA}, phase: serve, batch: 2, sequence: 32,
      pools: {{prefill: 2, decode: 1, new_tokens: 4}}""",
}
ONE_VALUE = {"Mla.sinks", "Linear.sinks", "Dtypes.router"}
"""Fields with no second value in these workloads: refused beside what they have, or stated in none."""


def handed_over(workload: Workload) -> tuple[Any, ...]:
    """What a workload makes of itself."""
    job = build_job(workload)
    return job.graphs, job.graph_of, workload.tokens, workload.samples


def comes_of(workload: Workload, path: str, value: Any, usual: tuple[Any, ...]) -> str:
    """What comes of another value: ``differs``, ``refused``, or ``same``."""
    try:
        changed = apply(workload, {path: FieldChange(value, "a test", "assumed", "a test")})
        return "same" if handed_over(changed) == usual else "differs"
    except HosimError:
        return "refused"


@pytest.mark.slow
def test_every_field_of_a_model_changes_some_job():
    came: dict[str, set[str]] = {}
    for name, text in WORKLOADS.items():
        (document,) = [Workload.model_validate(compose(f"{{name: {name}, {text}}}", name).data)]
        usual = handed_over(document)
        for of, paths in fields_of(document).items():
            for path in paths:
                verdicts = came.setdefault(f"{of[0].__name__}.{of[1]}", set())
                (_, value), *_ = fields(document, path)
                for other in others(value, of[0].model_fields[of[1]].annotation):
                    if "differs" not in verdicts:
                        verdicts.add(comes_of(document, path, other, usual))
    silent = {field for field, verdicts in came.items() if verdicts and "differs" not in verdicts}
    assert {field for field in silent if came[field] != {"refused"}} - ONE_VALUE == set()


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"views": "writes"}, "views is of a graph from a file"),
        ({"phase": "decode", "dtypes": {"optimizer_bytes_per_parameter": 8}}, "is for phase train"),
        ({"phase": "decode", "dtypes": {"logits_copies_fp32": 1}}, "is for phase train"),
    ],
)
def test_what_only_other_workloads_have_is_refused(about, said):
    with pytest.raises(ValidationError, match=said):
        Workload.model_validate({"name": "x", "model": compose(LLAMA, "x").data, **about})

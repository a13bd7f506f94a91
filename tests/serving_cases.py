"""Requests on a toy machine, on disk; and iterations whose time can be told by hand."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from simulator.builders import CachedLayers
from simulator.hardware import ServingHost
from simulator.reach import Reach
from simulator.scenario import KvTier
from simulator.serving.blocks import Rooms
from simulator.serving.data_ranks import together
from simulator.serving.story import Story, serve_row
from simulator.trace import CAUSES
from simulator.workload import Arriving, Request, Requests

GROUPS = st.lists(
    st.tuples(st.none() | st.integers(1, 24), st.integers(0, 6)).map(lambda reach: CachedLayers(Reach(*reach), 1)),
    min_size=1,
    max_size=3,
    unique=True,
).map(tuple)
"""What layers keep of a sequence: all tokens, or windows, a byte a token."""
LOADS = st.sampled_from(["by_layer", "before_admission"])
"""When blocks of lower tiers come in."""
BOX = """\
schema: hosim/hardware/1
name: box
compute_tier: hbm
compute:
  peak: {bf16: 1 TFLOP/s}
tiers:
  hbm: {capacity: 4 MB, bandwidth: 10 GB/s}
  ddr: {capacity: 1 GB}
  pool: {capacity: 1 GB}
links:
  d2h: {source: hbm, target: ddr, bandwidth: 1 GB/s}
  h2d: {source: ddr, target: hbm, bandwidth: 1 GB/s}
  h2p: {source: ddr, target: pool, bandwidth: 1 GB/s}
  p2h: {source: pool, target: ddr, bandwidth: 1 GB/s}
assumed: {compute: a toy, tiers: a toy, links: a toy}
"""
TOY = """\
schema: hosim/workload/1
name: toy
model:
  family: decoder
  layers: 2
  hidden: 64
  vocabulary: 128
  attention: {kind: gqa, heads: 4, kv_heads: 2, head_size: 16}
  feed_forward: {kind: dense, width: 128}
phase: requests
requests:
REQUESTS
assumed: {model: a toy, requests: a toy}
"""
DRAWN = """\
  count: 12
  arrivals: {interval: 40 us}
  prompt: {mean: 40, spread: 0.5}
  output: {mean: 4, spread: 0.5}
  prefixes: {number: 2, tokens: 24, skew: 1.0}
  block: 8
  max_sequences: 4
  max_tokens: 64
"""
STORY = """\
schema: hosim/scenario/1
name: story
hardware: box.yaml
workload: toy.yaml
kv_tiers: {KV_TIERS}
policies:
  - static
  - {policy: reactive, label: on demand, options: {evict: lru, look_ahead: 0}}
"""
SMALL_TIERS = "hbm: 32 KiB, ddr: 64 KiB, pool: 64 KiB"
"""A block of 8 tokens takes 2 KiB: room for 16 blocks, then 32 and 32."""


PLAIN = "attention: {kind: gqa, heads: 4, kv_heads: 2, head_size: 16}"
MODELS = {
    "all tokens": PLAIN,
    "window": PLAIN.replace("16}", "16, window: 12}"),
    "local and global": f"{PLAIN}\n  others: [{{start: 1, every: 2, {PLAIN.replace('16}', '16, window: 12}')}}}]",
    "latent": "attention: {kind: mla, heads: 4, kv_lora_rank: 24, qk_nope: 16, qk_rope: 8, v_head: 16}",
    "chosen": "attention: {kind: mla, heads: 4, q_lora_rank: 32, kv_lora_rank: 24, qk_nope: 16, qk_rope: 8, v_head: 16,"
    " indexer: {heads: 2, head_size: 8, top: 16}}",
    "three views": PLAIN.replace(
        "16}", "16, sparse: {compress: {block: 8, stride: 4}, select: {block: 8, top: 4}, window: 8}}"
    ),
    "compressed": "attention: {kind: mqa, heads: 4, head_size: 16, q_lora_rank: 24, qk_rope: 4, window: 12,"
    " out_groups: 2, out_rank: 12, pool: {stride: 4, overlap: true, indexer: {heads: 2, head_size: 8, top: 6}}}",
    "linear": f"attention: {{kind: linear, heads: 4, head_size: 16, block: 8}}\n  others: [{{start: 1, {PLAIN}}}]",
    "beside": PLAIN.replace("16}", "16, beside: {kind: mamba2, heads: 4, head_size: 8, key_heads: 1, key_size: 4}}"),
    "alone": "attention: {kind: delta, heads: 2, head_size: 8}\n  others: [{start: 1, attention: {kind: none}}]",
}
"""Attention of each kind that is served, for `TOY`."""
EXPERTS = "feed_forward: {kind: experts, routed: 64, top_k: 2, width: 128}"


def toy(attention: str, feed_forward: str = "feed_forward: {kind: dense, width: 128}") -> str:
    """The toy's workload with other parts."""
    return TOY.replace(PLAIN, attention).replace("feed_forward: {kind: dense, width: 128}", feed_forward)


def write(
    folder: Path, requests: str = DRAWN, kv_tiers: str = SMALL_TIERS, box: str = BOX, workload: str = TOY
) -> Path:
    """Write the documents; return the scenario's path."""
    (folder / "box.yaml").write_text(box)
    (folder / "toy.yaml").write_text(workload.replace("REQUESTS\n", requests))
    path = folder / "story.yaml"
    path.write_text(STORY.replace("KV_TIERS", kv_tiers))
    return path


class Told:
    """Iterations that take 100 ns for a token that is decoded, and 10 for one that is read.

    Compute waits 1 ns for a token that is copied in, and stores of 1 B and 1 ns a token go on after the last op.
    """

    def __init__(self, reaches=(), engine=None, data=1):
        self.works, self.reaches, self.engine, self.data = [], reaches, engine or ServingHost(), data

    def of(self, *each):
        self.works += each
        work = together(each)
        loads, stores = (sum(sum(tokens) for _, tokens in copies) for copies in (work.loads, work.stores))
        took_ns = 100 * work.decoding + 10 * work.reading + loads + stores
        spent = dict.fromkeys((f"wait_{cause}_ns" for cause in CAUSES), 0) | {"wait_transfer_ns": loads}
        moved = {f"moved_{link}_bytes": 0 for link in ("h2p", "p2h")}
        moved |= {"moved_d2h_bytes": stores, "moved_h2d_bytes": loads}
        spent |= {"stall_ns": loads, "drain_ns": stores, **moved}
        return {"status": "ok", "why": "", "took_ns": took_ns, "flops": 1000 * took_ns, **spent}

    def __len__(self):
        return len(self.works)


def told(
    requests: list[Request],
    rooms: tuple[float, ...],
    *,
    keeps: bool = True,
    block: int = 4,
    max_sequences: int = 8,
    max_tokens: int = 64,
    groups: tuple[CachedLayers, ...] = (CachedLayers(Reach(), 1),),
    kept: tuple[KvTier, ...] = (),
    engine: ServingHost | None = None,
    data: int = 1,
    **more,
) -> tuple[Story, Told]:
    """Serve requests by iterations that take a time told by hand; `more` is of the workload's requests."""
    asked = Requests.model_construct(block=block, max_sequences=max_sequences, max_tokens=max_tokens, **more)
    names = ("hbm", "ddr", "pool")[: len(rooms)]
    replays = Told([group.reach for group in groups if group.reach != Reach()], engine, data)
    found = Rooms(names, tuple(room * block for room in rooms), keeps, groups, kept)
    story = serve_row("told", replays, found, asked, Arriving(requests), lambda *_: None)
    return story, replays


@st.composite
def crowds(draw):
    """Requests in the order in which they come; prompts may share prefixes."""
    found, now = [], 0
    for _ in range(draw(st.integers(1, 12))):
        now += draw(st.sampled_from([0, 0, 50, 400, 3000]))
        prompt = draw(st.integers(1, 40))
        tokens = draw(st.integers(0, prompt))
        found.append(Request(now, prompt, draw(st.integers(1, 6)), draw(st.integers(0, 2)), tokens))
    return found

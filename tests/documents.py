"""A machine, a workload and a scenario on disk, small enough to read, and what is said of them."""

from pathlib import Path

import pytest

from simulator.errors import ConfigError

BOX = """\
schema: hosim/hardware/1
name: box
compute_tier: hbm
compute:
  peak: {bf16: 100 TFLOP/s}
tiers:
  hbm: {capacity: 64 GB, bandwidth: 1.6 TB/s}
  ddr: {capacity: inf}
links:
  d2h: {source: hbm, target: ddr, bandwidth: 33.6 GB/s}
  h2d: {source: ddr, target: hbm, bandwidth: 33.6 GB/s}
assumed:
  compute: a toy
  tiers: a toy
  links: a toy
"""
JOB = """\
schema: hosim/workload/1
name: job
model: {layers: 2, hidden: 8, heads: 4, kv_heads: 2, ffn: 16, vocabulary: 32}
assumed: {model: a toy}
"""
STORY = """\
schema: hosim/scenario/1
name: story
hardware: box.yaml
workload: job.yaml
set:
  links.*.bandwidth: 40 GB/s
homes: {weight: hbm}
policies: [resident]
sources:
  links.*.bandwidth:
  - {from: a paper}
"""


def decoder(layers: int, feed_forward: str, others: str = "[]", **fields: object) -> str:
    """A workload that decodes with a toy model; ``fields`` are lines of the document, such as ``batch=1``."""
    lines = "\n".join(f"{name}: {value}" for name, value in fields.items())
    assumed = ", ".join(f"{name}: a toy" for name in ("model", *fields) if name != "experts")
    return f"""\
schema: hosim/workload/1
name: job
model:
  family: decoder
  layers: {layers}
  hidden: 64
  vocabulary: 128
  attention: {{kind: gqa, heads: 4, kv_heads: 2, head_size: 16}}
  feed_forward: {{{feed_forward}}}
  others: {others}
phase: decode
{lines}
assumed: {{{assumed}}}
"""


def lay(folder: Path, job: str = JOB, story: str = STORY) -> Path:
    """Write the three documents."""
    for name, text in (("box", BOX), ("job", job), ("story", story)):
        (folder / f"{name}.yaml").write_text(text)
    return folder


def refusal(call, *args, **named) -> str:
    """The message with which a call is refused."""
    with pytest.raises(ConfigError) as caught:
        call(*args, **named)
    return str(caught.value)

"""Wrong fields are refused with file, line, rule, finding and advice."""

# ruff: noqa: E501 - messages stand here as they are printed

from pathlib import Path

import pytest
from documents import BOX, lay, refusal

from simulator import catalog


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lay(tmp_path)


def refused_box(change, by=""):
    """What is said of the box when one piece of its text is another."""
    assert change in BOX
    Path("box.yaml").write_text(BOX.replace(change, by))
    return refusal(catalog.load, "box.yaml", "hardware", is_strict=True)


@pytest.mark.parametrize(
    ("change", "by", "message"),
    [
        (
            "64 GB",
            "64",
            "box.yaml:7, tiers.hbm.capacity: a size is a number and a unit, such as '64 GB', found 64; write it as '64 GB'",
        ),
        (
            "64 GB",
            "-64 GB",
            "box.yaml:7, tiers.hbm.capacity: a size is at least 0 B and below 2^63, found '-64 GB'; 'inf' means no limit",
        ),
        (
            "64 GB",
            "64 Gb",
            (
                "box.yaml:7, tiers.hbm.capacity: a size is needed, such as '64 GB', found '64 Gb'; that counts bits: "
                "divide it by 8"
            ),
        ),
        (
            "target: ddr",
            "target: dram",
            "box.yaml:10, links.d2h.target: a link joins two tiers, found 'dram'; use one of hbm, ddr",
        ),
        (
            "  ddr:",
            "  ssd: {capacity: inf}\n  ddr:",
            (
                "box.yaml:8, tiers.ssd: links join every tier with the compute tier 'hbm', found none to or from 'ssd'; "
                "add one, or remove the tier"
            ),
        ),
        (
            "compute_tier: hbm",
            "compute-tier: hbm",
            (
                "box.yaml:3, compute-tier: only known keys stand here, found 'compute-tier'; use one of name, title, "
                "origin, sources, assumed, fitted, schema, compute_tier, compute, host, host_compute, tiers, links, buses, copy_queues, topology, fabrics, ranks, on_chip, allocator "
                "(did you mean 'compute_tier'?)"
            ),
        ),
        ("name: box\n", "", "box.yaml:1, name: the key 'name' is needed here, found none; add it"),
        (
            "target: ddr,",
            "target: ddr, channels: true,",
            ("box.yaml:10, links.d2h.channels: this is a whole number, found true; correct it"),
        ),
        (
            "target: ddr,",
            "target: ddr, sharing: unfair,",
            (
                "box.yaml:10, links.d2h.sharing: input should be 'fifo', 'fair' or 'servers', found 'unfair'; "
                "use one of fifo, fair, servers (did you mean 'fair'?)"
            ),
        ),
        (
            "  ddr: {capacity: inf}",
            "  d.r: {capacity: inf}",
            "box.yaml:8, tiers.d.r: string should match pattern '^[A-Za-z0-9][A-Za-z0-9_-]*$', found 'd.r'; correct it",
        ),
        (
            "bandwidth: 1.6 TB/s",
            "bandwidth_bytes_per_s: 1.6 TB/s",
            (
                "box.yaml:7, tiers.hbm.bandwidth_bytes_per_s: only known keys stand here, found 'bandwidth_bytes_per_s'; "
                "remove it"
            ),
        ),
        (
            "  compute: a toy",
            "  compute: 3",
            "box.yaml:13, assumed.compute: this is a text, found 3; correct it",
        ),
        (
            "  compute: a toy\n",
            "",
            (
                "box.yaml:5, compute.peak.bf16: each figure has an origin under sources, assumed or fitted, found none; "
                "cite 'compute.peak.bf16' in sources, or say in assumed why it was chosen"
            ),
        ),
        (
            "  compute: a toy\n",
            "  compute: a toy\n  host: a toy\n",
            (
                "box.yaml:14, assumed.host: an entry here names a field that the document states, found 'host'; "
                "correct the path, or remove the entry"
            ),
        ),
    ],
)
def test_a_wrong_field_is_refused_with_its_line(folder, change, by, message):
    assert refused_box(change, by) == message


@pytest.mark.parametrize("ends", ["[64 GB, 32 GB]", "[65 GB, 80 GB]", "[1 s, 100 s]", "[1.0, 100.0]", "[some, more]"])
def test_a_range_that_does_not_hold_its_figure_is_refused(folder, ends):
    cited = f"sources:\n  tiers.hbm.capacity: [{{from: a log, range: {ends}}}]\nassumed:"
    said = refused_box("assumed:", cited)
    assert said.startswith(
        "box.yaml:13, sources.tiers.hbm.capacity.0.range: a range goes from a value to a larger one, a"
    )
    low, high = ends[1:-1].split(", ")
    assert said.endswith(f"found {low} to {high}; correct its ends")


def test_all_faults_are_told_at_once(folder):
    assert refused_box("33.6 GB/s", "33.6") == (
        "box.yaml: a document keeps its rules, found 2 faults; correct each:\n"
        "  box.yaml:10, links.d2h.bandwidth: a rate is a number and a unit, such as '33.6 GB/s', found 33.6; "
        "write it as '33.6 GB/s'\n"
        "  box.yaml:11, links.h2d.bandwidth: a rate is a number and a unit, such as '33.6 GB/s', found 33.6; "
        "write it as '33.6 GB/s'"
    )


def test_of_many_faults_those_are_told_whole_that_have_room(folder):
    assumed = "  compute: a toy\n  tiers: a toy\n  links: a toy\n"
    said, *faults, more = refused_box(assumed, "  tiers.hbm.capacity: a toy\n").split("\n")
    assert said == "box.yaml: a document keeps its rules, found 5 faults; correct each:"
    places = [fault.split(", ")[1].partition(":")[0] for fault in faults]
    assert places == ["compute.peak.bf16", "tiers.hbm.bandwidth", "tiers.ddr.capacity", "links.d2h.bandwidth"]
    assert all(fault.endswith("or say in assumed why it was chosen") and "..." not in fault for fault in faults)
    assert more == "  and 1 more"


def test_a_document_of_another_kind(folder):
    assert refusal(catalog.load, "job.yaml", "hardware") == (
        "job.yaml:1, schema: the key schema says that this is a hardware document, found 'hosim/workload/1'; "
        "use one of hosim/hardware/1 (did you mean 'hosim/hardware/1'?)"
    )
    assert refusal(catalog.load, "job.yaml", "scenario").endswith(
        "found 'hosim/workload/1'; run it on a machine: give --hardware NAME --workload FILE in place of a scenario"
    )


MODEL = "schema: hosim/workload/1\nname: toy\nmodel: {family: %s, layers: 2, hiden: 8, heads: 2, ffn: 4}\nassumed: {model: x}\n"


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (
            "decoder",
            "toy.yaml:3, model.hiden: only known keys stand here, found 'hiden'; use one of family, layers, hidden, vocabulary, attention, feed_forward, others, norms, norm_weights, parallel, positions, segments, embedding_width, embedding_rows, embedding_norm, final_norm, head_transform, head_biases, stem, registers, encoded, head, mergers, residuals, mixed, predicted, laurel, layer_inputs, shared, causal, tied_embeddings (did you mean 'hidden'?)",
        ),
        (
            "lama",
            "toy.yaml:3, model.family: family should be one of 'llama', 'decoder', 'dlrm', found 'lama'; use one of llama, decoder, dlrm (did you mean 'llama'?)",
        ),
    ],
)
def test_keys_of_a_model_are_those_of_its_family(folder, family, message):
    Path("toy.yaml").write_text(MODEL % family)
    assert refusal(catalog.load, "toy.yaml", "workload") == message


@pytest.mark.parametrize("found", ["-1", "4", "'1'"])
def test_a_number_is_never_suggested(folder, found):
    model = (MODEL % "llama").replace("hiden: 8", "hidden: 8, kv_heads: 2")
    Path("toy.yaml").write_text(model.replace("assumed", f"parallel: {{zero_stage: {found}}}\nassumed"))
    assert refusal(catalog.load, "toy.yaml", "workload").splitlines()[-1].strip() == (
        f"toy.yaml:4, parallel.zero_stage: input should be 0, 1, 2 or 3, found {found}; correct it"
    )


PARTS = "schema: hosim/workload/1\nname: toy\nphase: decode\nassumed: {model: x}\nmodel:\n  family: decoder\n  layers: 2\n  hidden: 8\n  vocabulary: 9\n  attention: {kind: gqa, heads: 2, kv_heads: 1, head_size: 4}\n  feed_forward: {%s}\n"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("width: 8", "toy.yaml:11, model.feed_forward.kind: the key 'kind' is needed here, found none; add it"),
        (
            "kind: densed, width: 8",
            "toy.yaml:11, model.feed_forward.kind: kind should be one of 'dense', 'experts', 'none', found 'densed'; use one of dense, experts, none (did you mean 'dense'?)",
        ),
        (
            "kind: dense, widht: 8",
            "toy.yaml:11, model.feed_forward.widht: only known keys stand here, found 'widht'; use one of gate, biases, kind, width, shifted (did you mean 'width'?)",
        ),
        (
            "kind: experts, routed: 4, top_k: 5, width: 8",
            "toy.yaml:11, model.feed_forward.top_k: top_k is at most routed, found 5 and 4; lower it",
        ),
    ],
)
def test_keys_of_a_part_are_those_of_its_kind(folder, part, message):
    Path("toy.yaml").write_text(PARTS % part)
    assert refusal(catalog.load, "toy.yaml", "workload") == message

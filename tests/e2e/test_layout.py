"""`hosim layout`: who holds what, and what is communicated when; for people and as JSON."""

import json

import pytest

from simulator import catalog


@pytest.mark.slow
def test_layout_of_a_pipeline_lines_up(hosim):
    done = hosim("layout", "llama3_8b_train_2x2x2")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("llama3_8b_train_2x2x2: 8 ranks = pipeline 2 x data 2 x tensor 2")
    held = lines.index("held all step, by each rank")
    head, first, last = lines[held + 1 : held + 4]
    assert head.split() == ["program", "ranks", "ops", "weight", "optimizer", "state", "input", "in", "all"]
    assert first.split()[:5] == ["stage", "0", "0-3", "6,107", "4.02"]
    assert len(head) == len(first) == len(last)
    sums = [line for line in lines if "67.1 MB" in line and "all_reduce" in line]
    assert [line.split()[2:6] for line in sums] == [
        ["forward", "all_reduce", "tensor", "264"],
        ["backward", "all_reduce", "tensor", "256"],
        ["forward", "all_reduce", "tensor", "256"],
        ["backward", "all_reduce", "tensor", "264"],
    ]
    assert any("send" in line and line.endswith("0 > 4 | 1 > 5 | 2 > 6 | ... (4)") for line in lines)
    assert any(
        line.startswith("  L*/attn.q.weight") and "[-, tensor]" in line and line.endswith(" 2") for line in lines
    )


def test_layout_as_json_has_every_rank_and_byte(hosim):
    done = hosim("layout", "llama3_8b_train_8x1x1", "--json")
    found = json.loads(done.out)
    assert (found["schema"], found["ranks"]) == ("hosim-layout/1", 8)
    (program,) = found["programs"]
    assert program["ranks"] == list(range(8))
    assert program["kept_bytes"]["weight"] == 2 * 8_030_261_248
    assert program["kept_bytes"]["optimizer_state"] == 12 * 8_030_261_248 // 8
    assert found["groups"] == {"data": [list(range(8))]}
    moved = dict.fromkeys(("reduce_scatter", "all_gather"), 0)
    for one in found["collectives"]:
        moved[one["kind"]] += one["times"] * one["size_bytes"]
    assert moved == dict.fromkeys(moved, 2 * 8_030_261_248)
    assert len(found["weights"]) == 32 * 9 + 3


def few_layers(name, path):
    """Write a shipped workload with fewer layers."""
    text = catalog.path_of(name, "workload").read_text(encoding="utf-8")
    assert "layers: 32" in text
    path.write_text(text.replace("layers: 32", "layers: 4").replace("[16, 16]", "[2, 2]"))
    return path


def test_ranks_stand_along_the_axes_in_the_order_that_is_named(hosim, tmp_path):
    path = few_layers("llama3_8b_train_2x2x2", tmp_path / "mine.yaml")
    named = path.read_text().replace("  pipeline: 2", "  pipeline: 2\n  axis_names: [data, tensor, pipeline]")
    path.write_text(named)
    lines = hosim("layout", path).out.splitlines()
    assert "8 ranks = data 2 x tensor 2 x pipeline 2" in lines[0]
    assert any("send" in line and line.endswith("0 > 1 | 2 > 3 | 4 > 5 | ... (4)") for line in lines)
    found = json.loads(hosim("layout", path, "--json").out)
    assert [program["ranks"] for program in found["programs"]] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert found["groups"]["tensor"] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    query = next(weight for weight in found["weights"] if weight["weight"] == "L00/attn.q.weight")
    assert (query["axis_names"], query["device_matrix"]) == (["data", "expert", "tensor", "pipeline"], [2, 1, 2, 2])
    assert query["tensor_map"] == [[], ["tensor"]]


def test_one_rank_communicates_nothing(hosim, scenario):
    assert hosim("layout", "tiny_train").out.endswith("\n\nnothing is communicated\n")
    assert "1 rank\n" in hosim("layout", scenario.parent / "workload.yaml").out


def test_layout_of_pools(hosim, tmp_path):
    lines = hosim("layout", few_layers("llama3_8b_prefill_decode", tmp_path / "pools.yaml")).out.splitlines()
    head = "llama3_8b_prefill_decode: 4 ranks = prefill 2 + decode 2, each with the whole model"
    assert lines[0] == head
    caches = [line.split() for line in lines if "33.6 MB" in line and " > " in line]
    assert [line[1:5] for line in caches] == [
        ["prefill", "send", "kv", "4"],
        ["decode", "recv", "kv", "4"],
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("tensor: 3", "tensor divides heads, ffn, vocabulary, found 3, and 8 heads; set parallel.tensor to 2"),
        ("pipeline: 5", "found 5 stages; set pipeline to at most 4"),
        (
            "data: 2\n  axis_names: [data, data, tensor, pipeline]",
            "each axis is named once (pipeline, data, tensor), found data, data, tensor, pipeline; correct it",
        ),
        ("data: 1048576\n  tensor: 2", "there are at most 1,048,576 ranks, found 2,097,152; lower data"),
        (
            "tensor: 2\n  layouts: {L00/attn.q.weight: [tensor, tensor]}",
            "2 dimensions of a weight tensor, at most once, or none, found tensor, tensor;",
        ),
        (
            "tensor: 2\n  layouts: {L00/norm1.weight: [none, none]}",
            "L00/norm1.weight: a layout says for each of 1 dimension of a weight tensor",
        ),
        (
            "tensor: 2\n  layouts: {head.lm: [none, none]}",
            "a pattern is for weights that the model has, found 'head.lm'",
        ),
    ],
)
def test_what_does_not_divide_is_one_message(hosim, tmp_path, changed, message):
    text = catalog.path_of("tiny_train", "workload").read_text(encoding="utf-8")
    text = text.replace("steps: 2", f"parallel:\n  ranks: all\n  {changed}\nsteps: 2").replace(
        "assumed:\n", "assumed:\n  parallel: to see what is refused\n"
    )
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    for command in ("layout", "check"):
        done = hosim(command, path)
        assert done.code == 1
        assert message in done.err
        assert done.err.count("\n") == 1

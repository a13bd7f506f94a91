"""The workload: a model or a graph, not both."""

import pytest
from pydantic import ValidationError

from simulator.workload import Workload

MODEL = {"layers": 2, "hidden": 8, "heads": 4, "kv_heads": 2, "ffn": 16, "vocabulary": 32}


def refusal(**data):
    with pytest.raises(ValidationError) as caught:
        Workload.model_validate({"name": "toy", **data})
    return str(caught.value.errors()[0]["ctx"]["error"])


def test_a_model_with_its_defaults():
    workload = Workload.model_validate({"name": "toy", "model": MODEL})
    assert (workload.phase, workload.steps, workload.parallel.zero_stage) == ("train", 2, 0)
    assert workload.model is not None
    assert workload.model.family == "llama"


def test_a_graph_from_a_file():
    assert Workload.model_validate({"name": "toy", "graph": "step.jsonl", "steps": 3}).graph == "step.jsonl"


def test_needs_one_of_them():
    assert refusal() == "a workload has a model or a graph, found neither; add the key model or graph"


@pytest.mark.parametrize("key", ["model", "new_tokens", "on"])
def test_a_graph_is_not_half_a_model(key):
    extra = {"model": MODEL, "new_tokens": 128, "on": {"optimizer": "host"}}[key]
    message = f"a workload from a graph states nothing of a model, found {key}; remove {key}"
    assert refusal(graph="step.jsonl", **{key: extra}) == message


def test_heads_divide():
    message = "heads divides hidden, found 3 and 8; set heads to 2 or 4"
    assert refusal(model=MODEL | {"heads": 3}) == message
    message = "kv_heads divides heads, found 3 and 4; set kv_heads to 2 or 4"
    assert refusal(model=MODEL | {"kv_heads": 3}) == message


@pytest.mark.parametrize("layers", [0, -1, 1.5, True, "2"])
def test_counts_are_whole_numbers_from_1(layers):
    with pytest.raises(ValidationError, match="layers"):
        Workload.model_validate({"name": "toy", "model": MODEL | {"layers": layers}})


def test_one_rank_is_alone():
    for key, value in {
        "tensor": 2,
        "pipeline": 2,
        "sequence": True,
        "zero_stage": 2,
        "layouts": {"*": ["none"]},
    }.items():
        message = f"one rank's slice knows data, zero_stage 0 or 1, and micro_batches, found {key}; "
        message += "add 'ranks: all' for all ranks and their collectives"
        assert refusal(model=MODEL, parallel={key: value}) == message
    assert refusal(model=MODEL, parallel={"data": 2, "expert": 2}).startswith("one rank's slice knows data")


def test_ranks_divide_and_stages_have_layers():
    message = "expert divides data, found 4 and 6; set expert to 3 or 6"
    assert refusal(model=MODEL, parallel={"ranks": "all", "data": 6, "expert": 4}) == message
    message = "layers says how many each stage has, found 1 for 2 stages; correct it"
    assert refusal(model=MODEL, parallel={"ranks": "all", "pipeline": 2, "layers": [2]}) == message


def test_an_unknown_family_is_refused():
    with pytest.raises(ValidationError, match="family"):
        Workload.model_validate({"name": "toy", "model": MODEL | {"family": "gpt"}})


def test_keys_of_another_family_are_refused():
    with pytest.raises(ValidationError, match="found 'heads'"):
        Workload.model_validate({"name": "toy", "model": MODEL | {"family": "decoder"}})

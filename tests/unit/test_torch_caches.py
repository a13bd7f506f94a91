"""A step with a cache is captured as decode: its cache is a KV cache, which persists and grows."""

import json
from collections import Counter

import pytest

torch = pytest.importorskip("torch", reason='torch is not installed (pip install "hosim[torch]")')
hf = pytest.importorskip("transformers", reason="transformers, whose models are captured, is not installed")

import torch_steps  # noqa: E402
from building import build  # noqa: E402
from torch import nn  # noqa: E402

import simulator as hosim  # noqa: E402
from simulator.errors import ConfigError  # noqa: E402
from simulator.lifetime import live_bytes  # noqa: E402

LAYERS, HEADS, WIDTH, BATCH, TOKENS = 2, 2, 32, 4, 64
ROW = BATCH * HEADS * WIDTH * 2  # bytes of a token's keys in a layer


def llama():
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": LAYERS, "vocab_size": 128}
    config = hf.LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=HEADS)
    return hf.LlamaForCausalLM(config).to(torch.bfloat16).eval()


def decode(kind="DynamicCache"):
    """A model, and a token of each sequence behind what is cached: as ``hosim import torch`` takes it."""
    model = llama()
    options = {"max_cache_len": 100} if kind == "StaticCache" else {}
    prompt, cache = torch.randint(0, 128, (BATCH, TOKENS)), getattr(hf, kind)(config=model.config, **options)
    model(prompt, cache=cache)
    return model, {"input_ids": prompt[:, :1], "cache": cache}


def made(kind):
    with hosim.torch.fake(), torch.no_grad():
        return decode(kind)


@pytest.mark.parametrize(
    ("kind", "length"), [("DynamicCache", TOKENS + 2), pytest.param("StaticCache", 100, marks=pytest.mark.slow)]
)
def test_a_cache_is_one_that_persists_as_long_as_after_the_step(kind, length):
    model, named = made(kind)
    found = hosim.torch.capture(model, **named, phase="decode")
    caches = [tensor for tensor in found.graph.tensors if tensor.kind == "kv_cache" and tensor.size_bytes > 8]
    assert [tensor.size_bytes for tensor in caches] == [ROW * length] * 2 * LAYERS
    assert {tensor.name for tensor in caches} >= {"cache.layers.0.keys", "cache.layers.1.values"}
    assert all(tensor.persistent for tensor in caches)
    assert {op.phase for op in found.graph.ops} == {"decode"}
    assert {str(found.graph.tensors[t].kind) for t in found.graph.outputs} == {"activation"}
    ids = {t for t, tensor in enumerate(found.graph.tensors) if tensor in caches}
    writes = [op for op in found.graph.ops if ids & {*op.writes}]
    assert len(writes) == 2 * LAYERS
    assert all({*op.writes} <= {*op.reads} for op in writes)  # in place
    copied = ROW * length if kind == "DynamicCache" else ROW
    assert {op.write_bytes for op in writes} == {copied}
    assert any("Caches, " in told for told in found.derived)
    assert found.workload.title == "A step of decode of LlamaForCausalLM, captured from PyTorch"
    with hosim.torch.fake(), torch.no_grad():
        tracker = torch_steps.memory_tracker()
        held = [part for layer in named["cache"].layers for part in (layer.keys, layer.values)]
        tracker.track_external(model, named["input_ids"], *held)
        held.clear()
        with tracker:
            _returned = model(**named)
    theirs = sum(part["Total"] for part in tracker.get_tracker_snapshot("peak").values())
    grown = (2 * LAYERS + 1) * ROW if kind == "DynamicCache" else 0  # the tracker looks at the next step
    assert -8 * LAYERS <= theirs - int(live_bytes(found.graph).max()) <= grown  # lengths, of 8 bytes, are on the host


SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128, "head_dim": 16}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
NEAR = {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]}
STATES = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
STATES |= {"layer_types": ["linear_attention", "full_attention"]}
OTHERS = {"Llama": {}, "Qwen3": {}, "Gemma3": NEAR, "Mistral": {"sliding_window": 32}, "Qwen3_5": STATES}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache"])
@pytest.mark.parametrize("family", OTHERS)
def test_a_captured_decode_is_that_of_its_configuration(family, kind, tmp_path):
    """Bytes of the cache and FLOPs; a static cache is as long as it may become, and attended to as a whole."""
    named = next(name for name in (f"{family}TextConfig", f"{family}Config") if hasattr(hf, name))
    config = getattr(hf, named)(**SIZES, **OTHERS[family])
    with hosim.torch.fake(), torch.no_grad():
        model, prompt = getattr(hf, f"{family}ForCausalLM")(config).bfloat16().eval(), torch.zeros(2, 64).long()
        cache = getattr(hf, kind)(config=config, **({"max_cache_len": 100} if kind == "StaticCache" else {}))
        model(prompt, cache=cache)
    mine = hosim.torch.capture(model, input_ids=prompt[:, :1], cache=cache, phase="decode").graph
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict() | {"torch_dtype": "bfloat16"}))
    sequence = 99 if kind == "StaticCache" else 65  # before the step, the second one behind the prompt
    theirs = build(hosim.read_hf(tmp_path, phase="decode", batch=2, sequence=sequence).workload)
    bytes_of, flops_of = [
        [sum(tensor.size_bytes for tensor in graph.tensors if tensor.kind == "kv_cache" and tensor.size_bytes > 8)
         for graph in (mine, theirs)],
        [sum(op.flops for op in graph.ops) for graph in (mine, theirs)],
    ]  # fmt: skip
    if family != "Qwen3_5":  # PyTorch writes out the rule of a state
        assert flops_of[0] == flops_of[1]
    assert bytes_of[0] == bytes_of[1]


def test_a_prefill_puts_out_its_cache():
    with hosim.torch.fake():
        model, ids = llama(), torch.randint(0, 128, (BATCH, TOKENS))
    graph = hosim.torch.capture(model, ids, phase="prefill").graph
    put = Counter(str(graph.tensors[t].kind) for t in graph.outputs)
    assert put == {"kv_cache": 2 * LAYERS, "activation": 1}
    assert {op.phase for op in graph.ops} == {"prefill"}
    assert not any("gradient" in str(tensor.kind) for tensor in graph.tensors)


def test_a_function_takes_its_own_cache_by_name():
    def step(x, cache):
        cache["keys"] = torch.cat([cache["keys"], layer(x)])
        return cache["keys"].sum()

    with hosim.torch.fake():
        layer, x, cache = nn.Linear(8, 8), torch.randn(1, 8), {"keys": torch.randn(10, 8)}
    graph = hosim.torch.capture(step, x, cache=cache, phase="decode").graph
    (kept,) = (tensor for tensor in graph.tensors if tensor.kind == "kv_cache")
    assert (kept.name, kept.size_bytes, kept.persistent) == ("cache.keys", 12 * 8 * 4, True)


def test_a_cache_may_lie_below(tmp_path):
    model, named = made("DynamicCache")
    hosim.torch.capture(model, **named, phase="decode").write(tmp_path / "mine.yaml")
    story, about = tmp_path / "story.yaml", "schema: hosim/scenario/1\nname: story\nhardware: h100_sxm\n"
    story.write_text(f"{about}workload: mine.yaml\nhomes: {{kv_cache: ddr}}\npolicies: [static]\n")
    (row,) = hosim.run(story).values()
    assert (row.status, row.summary["moved_h2d_bytes"]) == ("ok", 2 * LAYERS * ROW * (TOKENS + 2))


def test_inference_has_no_optimizer_and_other_phases_are_refused():
    with hosim.torch.fake():
        model, x = nn.Linear(8, 8), torch.randn(1, 8)
    with pytest.raises(ConfigError, match="decode has neither loss nor optimizer"):
        hosim.torch.capture(model, x, optimizer=torch.optim.SGD, phase="decode")
    with pytest.raises(ConfigError, match=r"it is train, prefill, decode, found 'serve'"):
        hosim.torch.capture(model, x, phase="serve")

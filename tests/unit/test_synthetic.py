"""The hand-made graphs: what they hold, and that their peaks can be worked out."""

from synthetic import chain, decode

from simulator.lifetime import IdleInterval, Lifetimes, idle_intervals, live_bytes, working_set_bytes


def test_a_chain_reads_its_own_weight_and_what_came_before() -> None:
    graph = chain(3, weight_bytes=100, duration_ns=7, activation_bytes=10)
    names = [t.name for t in graph.tensors]
    assert [[names[t] for t in op.reads] for op in graph.ops] == [
        ["L00/weight"],
        ["L01/weight", "L00/out"],
        ["L02/weight", "L01/out"],
    ]
    assert [op.duration_ns for op in graph.ops] == [7, 7, 7]
    assert live_bytes(graph).tolist() == [310, 320, 320]
    assert Lifetimes(graph).dead_after == ((), (1,), (3, 5))


def test_a_chain_without_activations_streams_weights_only() -> None:
    graph = chain(12, weight_bytes=100, duration_ns=7, steps=2)
    assert len(graph.tensors) == 12
    assert working_set_bytes(graph).tolist() == [100] * 12
    assert list(idle_intervals(graph))[5] == IdleInterval(5, 5, 5, wraps=True)


def test_a_decode_layer_has_four_computes_and_its_attention_appends_to_the_cache() -> None:
    graph = decode(2, weight_bytes=100, kv_bytes=30, duration_ns=7, steps=3)
    names = [t.name for t in graph.tensors]
    assert [op.name for op in graph.ops[:5]] == [*(f"L00/decode/{i}" for i in range(4)), "L01/decode/0"]
    assert [names[t] for t in graph.ops[5].reads] == ["hidden", "L01/weight", "L01/kv"]
    assert [names[t] for t in graph.ops[5].writes] == ["hidden", "L01/kv"]
    assert live_bytes(graph).tolist() == [261] * 8
    assert Lifetimes(graph).dead_after == ((),) * 8


def test_a_compute_heavy_decode_layer() -> None:
    graph = decode(1, computes=44, weight_bytes=1, kv_bytes=1, duration_ns=1)
    assert len(graph.ops) == 44
    assert sum(2 in op.reads for op in graph.ops) == 1
    single = decode(1, computes=1, weight_bytes=1, kv_bytes=1, duration_ns=1)
    assert single.ops[0].reads == (0, 1, 2)

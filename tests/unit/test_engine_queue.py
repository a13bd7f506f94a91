"""A full queue of a rank with several streams: the host looks again only now and then."""

from rank_stories import cluster, perform, team

from simulator.engine.host import HostThread


def test_a_full_queue_over_three_streams_is_looked_at_in_proportion_to_the_ops(monkeypatch):
    """Each look that comes too early asks for one other; looks that were overtaken ask for none."""
    looks, wait, rounds = [], HostThread._wait_for_starts, 60

    def counted(host, excess):
        looks.append(excess)
        assert len(looks) <= 2 * 3 * rounds
        wait(host, excess)

    monkeypatch.setattr(HostThread, "_wait_for_starts", counted)
    host = {"queue_depth": 16, "fixed": {"launch": "0 ns", "step": "0 ns"}}
    groups = {"one": ((0, 1),), "two": ((0, 1),)}
    ops = []
    for i in range(rounds):
        ops += [f"f{i}: -> a, 2 ns", f"s{i}: a -> a, all_reduce one 4", f"t{i}: b -> b, all_reduce two 4"]
    graph = team("a 4, b 4", "start: -> b, 1 ns", *ops, groups=groups)
    steps = ["compute start", *(f"compute f{i}; compute s{i} 1; compute t{i} 2" for i in range(rounds))]
    trace = perform(cluster(2, host=host), [(graph, "; ".join(steps))] * 2)
    assert trace.status == "ok"
    assert len(looks) >= 2 * rounds // 8

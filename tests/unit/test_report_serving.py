"""How serving is told; numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from serving_cases import told, write

from simulator import catalog
from simulator.builders import CachedLayers
from simulator.metrics.figures import LATENCIES
from simulator.reach import Reach
from simulator.report.pictures import curves
from simulator.scenario import Slo
from simulator.serving.blocks import Rooms
from simulator.serving.latencies import sentences, view
from simulator.serving.story import quantile, summary
from simulator.trace import CAUSES
from simulator.workload import Arriving, Request

WHICH = ("p50", "p90", "p95", "p99", "mean")


def table(rows):
    return "\n\n".join(map(str, view("toy", rows, []).sections))


def row(policy="static", **more):
    about = {"policy": policy, "status": "ok", "why": "", "requests": 100, "finished": 100, "tokens_per_s": 50.0}
    about |= {f"{name}_{which}_ns": 10**6 for name in LATENCIES for which in WHICH}
    about |= {"computed_fraction": 0.5, "hit_hbm_fraction": 0.2, "hit_ddr_fraction": 0.3}
    about |= {f"read_{share}_hit_p50_ns": None for share in (0, 25, 50, 75, 100)}
    about |= {
        "goodput_per_s": None,
        "goodput_fraction": None,
        "unanswered": 0,
        "offered_per_s": 9.0,
        "served_per_s": 1585.0,
        "tflops": None,
        "mfu": None,
    }
    about |= {"even_bytes_per_s": None, "moved_h2d_bytes": 2000, "stall_fraction": 0.0, "drain_ns": 0}
    about |= {f"wait_{cause}_ns": 0 for cause in CAUSES}
    return about | {"most_waiting": 3, "waiting_at_last": 0, "iterations": 7, "replayed": 5} | more


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Serve requests and count the row; the box computes 1,000 FLOP a ns, as iterations told by hand do."""
    loaded = catalog.resolve(write(tmp_path_factory.mktemp("box")))

    def made(requests, slo, rooms=(inf,), **more):
        story, _ = told(requests, rooms, **more)
        limited = replace(loaded, scenario=loaded.scenario.model_copy(update={"slo": slo}))
        layers = (CachedLayers(Reach(), 1),)
        return summary(story, limited, Arriving(requests), Rooms(story.tiers, rooms, True, layers))

    return made


def test_a_row_is_counted_from_its_requests_and_busy_iterations(counted):
    """Blocks of 4 tokens; a token is read in 10 ns, added in 100, and copied either way in 1.

    A: comes at 0, reads 9 until 90, adds two until 290 and leaves; its 2 full blocks are stored until 298.
    B: comes at 1,000; 8 of its 9 tokens are found in DDR: 8 + 10 ns.
    C: comes at 2,000, reads 20 until 2,200, adds one until 2,300; its 5 full blocks are stored beside what D reads.
    D: comes at 2,250, is admitted at 2,300, reads 5 (50 ns, and 20 of stores), and leaves; its block until 2,374.
    Busy are 290 + 18 + 300 + 70 ns: not the two iterations that only store, and none in which nobody runs.
    """
    come = [Request(0, 9, 3, 0, 8), Request(1000, 9, 1, 0, 8), Request(2000, 20, 2), Request(2250, 5, 1)]
    row = counted(come, Slo(ttft="100 ns", tpot="100 ns"), (inf, inf), keeps=False)
    busy_ns, end_ns, even = 678, 2374, (9 + 20 + 5) * 1e9 / (90 + 200 + 70)
    assert (row["status"], row["finished"], row["iterations"]) == ("ok", 4, 9)
    ttft_ns, e2e_ns = (90, 18, 200, 120), (290, 18, 300, 120)
    for name, times_ns in (("ttft", ttft_ns), ("e2e", e2e_ns), ("tpot", (100, 100))):
        assert row[f"{name}_mean_ns"] == sum(times_ns) / len(times_ns)
        assert row[f"{name}_p50_ns"] == sorted(times_ns)[len(times_ns) // 2 - 1]
        assert row[f"{name}_p99_ns"] == max(times_ns)
    assert row["waited_p50_ns"] == 0
    rates = {"tokens_per_s": 7, "total_tokens_per_s": 7 + 43, "goodput_per_s": 2}
    assert {rate: row[rate] for rate in rates} == pytest.approx({rate: n * 1e9 / end_ns for rate, n in rates.items()})
    assert row["goodput_fraction"] == 2 / 4
    assert (row["busy_ns"], row["end_ns"], row["drain_ns"], row["wait_transfer_ns"]) == (busy_ns, end_ns, 20, 8)
    assert row["stall_fraction"] == pytest.approx((8 + 20) / busy_ns)
    assert (row["tflops"], row["mfu"]) == pytest.approx((1, 1))
    assert (row["offered_per_s"], row["served_per_s"]) == pytest.approx((3e9 / 2250, 4e9 / busy_ns))
    assert (row["prompt_tokens"], row["hit_ddr_fraction"], row["computed_fraction"]) == (43, 8 / 43, 35 / 43)
    assert [row[f"read_{share}_hit_p50_ns"] for share in (0, 25, 50, 75, 100)] == [90, None, None, None, 18]
    assert row["even_bytes_per_s"] == pytest.approx(even)
    assert (row["moved_h2d_bytes"], row["moved_d2h_bytes"]) == (8, 8 + 20 + 4)
    assert (row["most_waiting"], row["waiting_at_last"]) == (0, 0)


def test_a_row_that_is_overloaded_counts_what_was_read_and_added(counted):
    """One at a time, in 700 ns, while one comes every 100: at 6,200 eight have left, and the ninth has its first token.

    The first token of request k comes at 700 k + 600, 600 k + 600 ns after it came: in time for the first two.
    """
    row = counted([Request(100 * k, 60, 2) for k in range(60)], Slo(ttft="1300 ns"), max_sequences=1)
    assert (row["status"], row["finished"], row["end_ns"]) == ("overloaded", 8, 6200)
    assert (row["most_waiting"], row["waiting_at_last"]) == (57 - 9, 60 - 9), "of those that came by 5,600 and by 6,200"
    assert row["total_tokens_per_s"] == pytest.approx((9 * 60 + 8 * 2 + 1) * 1e9 / 6200)
    assert (row["goodput_per_s"], row["goodput_fraction"]) == pytest.approx((2e9 / 6200, 2 / 60))
    assert (row["offered_per_s"], row["served_per_s"]) == pytest.approx((59e9 / 5900, 8e9 / 6200))


def test_what_was_found_is_told_with_what_it_saved():
    said = sentences([row(read_0_hit_p50_ns=8 * 10**6, read_100_hit_p50_ns=2 * 10**6, even_bytes_per_s=5.4e9)])
    first, found, read, waited = said
    assert first == (
        "static: half of the requests have their first token within 1.00 ms of sending, 95 % within 1.00 ms; "
        "a further token takes 1.00 ms, 50 tokens/s come out."
    )
    assert found == "Of all prompt tokens static finds 20 % in hbm and 30 % in ddr, and computes 50 %."
    assert read == (
        "static reads a prompt in 8.00 ms if 0 % of it was found and 2.00 ms if 100 % of it was found; "
        "at 5.40 GB/s copying takes as long as computing."
    )
    assert waited == "static stalls for 0 % of the time of its iterations."


def test_requests_that_are_left_out_are_counted_once():
    said = sentences([row(unanswered=1_200), row("other", unanswered=1_200)])
    assert said[0] == "1,200 requests of the file have no prompt or no output token, and are left out."
    assert sum("left out" in one for one in said) == 1


def test_links_that_carry_nothing_have_no_column():
    shown = table([row(moved_d2h_bytes=0), row("other", moved_d2h_bytes=0)])
    assert "moved h2d" in shown
    assert "moved d2h" not in shown
    assert "moved d2h" in table([row(moved_d2h_bytes=0), row("other", moved_d2h_bytes=5)])


def test_stores_may_be_what_is_waited_for():
    said = sentences([row(stall_fraction=0.2, wait_transfer_ns=5, drain_ns=6)])
    assert said[2] == "static stalls for 20 % of the time of its iterations, mostly for stores."


def test_rows_that_do_not_end_say_why():
    nothing = {"ttft_p50_ns": None, "finished": 0, "hit_hbm_fraction": None, "hit_ddr_fraction": None}
    assert sentences([row(status="infeasible", why="short by 5 B", **nothing)]) == [
        "static does not fit: short by 5 B."
    ]


def test_a_long_queue_is_told_with_the_rates():
    assert sentences([row(waiting_at_last=40)])[-1] == (
        "static: 40 of 100 requests waited when the last one came (in a second 9 offered and 1,585 served), "
        "so the latencies grow with the number of requests."
    )
    assert "waited" not in sentences([row(waiting_at_last=0)])[-1]


@pytest.mark.parametrize(
    ("finished", "said"),
    [
        (1, "With 1 request p50, p90, p95 and p99 are the slowest; 2, 10, 20 and 100 would tell more."),
        (19, "With 19 requests p95 and p99 are the slowest; 20 and 100 would tell more."),
        (99, "With 99 requests p99 is the slowest; 100 would tell more."),
    ],
)
def test_quantiles_of_few_requests_are_the_slowest_one(finished, said):
    assert quantile(range(finished), 99) == finished - 1
    assert sentences([row(finished=finished)])[-1] == said
    assert quantile(range(100), 99) == 98
    assert not any("slowest" in one for one in sentences([row()]))


def test_rows_are_compared_by_the_mean():
    assert sentences([row("late", ttft_mean_ns=1_500_000), row()])[-1] == (
        "On average, first tokens come after 1.00 ms under static and 1.50 ms under late."
    )


def test_the_curves_are_shares_by_time_and_the_queue_the_batch_and_the_cache():
    story, _ = told([Request(0, 10, 2), Request(0, 30, 2)], (100.0,), max_tokens=16)
    first, further, *over_time = panels = view("toy", [row()], [story]).panels
    assert first.rows[-1]["share"] == 1
    assert max(row["within_ms"] for row in first.rows) == max(one["ttft_ns"] for one in story.requests) / 1e6
    assert max(row["within_ms"] for row in further.rows) == max(one["tpot_ns"] for one in story.requests) / 1e6
    assert [panel.y for panel in over_time] == ["waiting", "decoding", "used_hbm_blocks"]
    for panel in over_time:
        assert [row["time_s"] for row in panel.rows] == [one["start_ns"] / 1e9 for one in story.iterations]
        assert [row[panel.y] for row in panel.rows] == [one[panel.y] for one in story.iterations]
    assert curves("toy", panels).figure.png()


def test_no_peak_is_lost_where_iterations_are_many():
    story, _ = told([*(Request(0, 4, 300) for _ in range(3)), Request(5 * 10**4, 4, 1)], (100.0,), max_sequences=4)
    story.iterations[151]["waiting"] = 70
    waiting = view("toy", [row()], [story]).panels[2]
    assert len(waiting.rows) <= 100 < len(story.iterations)
    assert max(one["waiting"] for one in waiting.rows) == 70


def test_goodput_is_told_where_objectives_are_stated():
    assert "goodput" not in table([row()])
    good = row(goodput_fraction=0.75, goodput_per_s=12.345)
    lines = table([good]).split("\n\n")[1].splitlines()
    assert [line.split()[-5:] for line in lines][1] == ["12.3", "75", "%", "0", "%"]
    assert lines[0].split()[-3:] == ["goodput/s", "goodput", "stall"]
    assert sentences([good])[-1] == "static: 75 % of the requests meet every objective, 12.3 requests/s."


def test_what_is_not_there_is_a_dash():
    first, second = (line.split() for line in table([row(tpot_p50_ns=None, tokens_per_s=None)]).splitlines()[1:5:3])
    assert first[:5] == ["static", "ok", "100", "of", "100"]
    assert first[11:13] == ["-", "1.00"]
    assert second == ["static", "1.00", "ms", "1.00", "ms", "1.00", "ms", "-", "0", "%"]

"""How serving is told; numbers by hand."""

from __future__ import annotations

from simulator.serving.latencies import sentences, table
from simulator.serving.latency_figure import serving_picture
from simulator.trace import CAUSES


def row(policy="static", **more):
    about = {"policy": policy, "status": "ok", "why": "", "requests": 10, "finished": 10, "tokens_per_s": 50.0}
    about |= {f"{name}_{which}_ns": 10**6 for name in ("ttft", "tpot") for which in ("p50", "p95", "mean")}
    about |= {"computed_fraction": 0.5, "hit_hbm_fraction": 0.2, "hit_ddr_fraction": 0.3}
    about |= {f"read_{share}_hit_p50_ns": None for share in (0, 25, 50, 75, 100)}
    about |= {f"outpaced_{name}": None for name in ("come_per_s", "admitted_per_s", "growth")}
    about |= {"unanswered": 0, "block_tokens": 8, "most_shared_tokens": 24, "offered_per_s": 9.0}
    about |= {"even_bytes_per_s": None, "moved_h2d_bytes": 2000, "stall_fraction": 0.0, "drain_ns": 0}
    about |= {f"wait_{cause}_ns": 0 for cause in CAUSES}
    return about | {"most_waiting": 3, "waiting_at_last": 0, "iterations": 7, "replayed": 5} | more


def test_what_was_found_is_told_with_what_it_saved():
    said = sentences([row(read_0_hit_p50_ns=8 * 10**6, read_100_hit_p50_ns=2 * 10**6, even_bytes_per_s=5.4e9)])
    assert said[0] == (
        "static: half of the requests have their first token within 1.00 ms of sending, 95 % within 1.00 ms; "
        "a further token takes 1.00 ms, 50 tokens come out in a second."
    )
    assert said[1] == (
        "static finds 50 % of all prompt tokens: 20 % in hbm and 30 % in ddr; a prompt of which 100 % were found is "
        "read 4.00x as fast as one of which 0 % were (2.00 ms and 8.00 ms); "
        "at 5.40 GB/s copying takes as long as computing."
    )
    assert said[2] == "static waits for less than 1 % of the time of its iterations."


def test_loading_that_does_not_pay_is_told_too():
    said = sentences([row(read_0_hit_p50_ns=10**6, read_50_hit_p50_ns=3 * 10**6)])
    assert "is read 3.00x as slowly as one of which 0 % were" in said[1]


NOTHING = {"computed_fraction": 1.0, "hit_hbm_fraction": 0.0, "hit_ddr_fraction": 0.0}


def test_why_nothing_can_be_found_is_said():
    said = [sentences([row(**NOTHING, most_shared_tokens=most)])[1] for most in (0, 7, 8)]
    assert said == [
        "static finds nothing of any prompt, as prompts have no prefix in common; all of it is computed.",
        (
            "static finds nothing of any prompt, as a block has 8 tokens, and of no prompt more than 7 are shared; "
            "all of it is computed."
        ),
        "static finds nothing of any prompt; all of it is computed.",
    ]


def test_requests_that_are_left_out_are_counted_once():
    said = sentences([row(unanswered=1_200), row("other", unanswered=1_200)])
    assert said[0] == "left out, as without an output token: 1,200 requests of the file."
    assert sum("left out" in one for one in said) == 1


def test_a_row_that_needs_too_much_says_what_to_do():
    why = "it took 5 replays, the most that may be; raise --replays, or serve fewer requests"
    unfinished = row(status="unfinished", finished=4, replayed=5, why=why)
    assert sentences([unfinished])[:2] == [
        (
            "static is unfinished: 4 of 10 requests were served when the run ended: it took 5 replays, the most that "
            "may be; raise --replays, or serve fewer requests."
        ),
        (
            "static: half of the requests have their first token within 1.00 ms of sending, 95 % within 1.00 ms; "
            "a further token takes 1.00 ms, 50 tokens come out in a second."
        ),
    ]


def test_a_crowd_that_comes_at_once_has_no_rate_to_fall_behind():
    assert sentences([row(waiting_at_last=9, offered_per_s=None)])[-1] == (
        "all requests come at once, so that the latencies under static tell how many they are."
    )


def test_links_that_carry_nothing_have_no_column():
    shown = table([row(moved_d2h_bytes=0), row("other", moved_d2h_bytes=0)])
    assert "moved h2d" in shown
    assert "moved d2h" not in shown
    assert "moved d2h" in table([row(moved_d2h_bytes=0), row("other", moved_d2h_bytes=5)])


def test_stores_may_be_what_is_waited_for():
    said = sentences([row(stall_fraction=0.2, wait_transfer_ns=5, drain_ns=6)])
    assert said[2] == "static waits for 20 % of the time of its iterations, most for stores."


def test_rows_that_cannot_serve_say_why():
    nothing = {"ttft_p50_ns": None, "finished": 0, "hit_hbm_fraction": None, "hit_ddr_fraction": None}
    said = sentences([row(status="infeasible", why="short by 5 B", **nothing), row("other")])
    assert said[0] == "static cannot serve: short by 5 B."
    overloaded = row(status="overloaded", offered_per_s=8.0, served_per_s=2.0, waiting_at_last=7)
    assert sentences([overloaded])[0] == (
        "static is overloaded: 8 requests come in a second, and 2 are served; "
        "7 of 10 waited when the last one came, and the run ends there."
    )
    assert sentences([row(waiting_at_last=4)])[-1] == (
        "static falls behind: 4 requests of 10 waited when the last one came."
    )


def test_requests_that_come_faster_than_they_are_served_are_told():
    pace = {"outpaced_come_per_s": 12.5, "outpaced_admitted_per_s": 10.0, "outpaced_growth": 0.25}
    assert sentences([row(waiting_at_last=4, **pace)])[-1] == (
        "under static requests come faster than they are served: of the second half of the arrivals 12.5 come in a "
        "second and 10 are admitted, somebody always waits, and who comes a second later waits 250 ms longer, "
        "so that the latencies tell how many came."
    )


def test_rates_are_whole_numbers_from_a_hundred_on():
    pace = {"outpaced_come_per_s": 825_817.6, "outpaced_admitted_per_s": 1585.0, "outpaced_growth": 520.0}
    assert "825,818 come in a second and 1,585 are admitted" in sentences([row(waiting_at_last=4, **pace)])[-1]
    overloaded = row(status="overloaded", offered_per_s=825_817.6, served_per_s=1585.0, waiting_at_last=7)
    assert "825,818 requests come in a second, and 1,585 are served" in sentences([overloaded])[0]


def test_rows_are_compared_by_the_mean():
    assert sentences([row(), row("late", ttft_mean_ns=1_500_000)])[-1] == (
        "first tokens come soonest under static, after 1.00 ms on average; 1.50x under late."
    )
    assert sentences([row(), row("late")])[-1] == (
        "on average, first tokens come within 1 % as soon under static and late."
    )


def test_curves_that_tie_all_show():
    served = [{"ttft_ns": 5, "tpot_ns": 7}] * 2
    ran = [{"start_ns": 0, "took_ns": 9, "waiting": 1, "decoding": 2}] * 2
    picture = serving_picture(dict.fromkeys("abc", (served, ran)), "toy")
    for ax in picture.axes:
        found = [line.get_linewidth() for line in ax.lines if line.get_linestyle() == "-"]
        assert len(found) == 3
        assert found == sorted(set(found), reverse=True)


def test_what_is_not_there_is_a_dash():
    lines = [line.split() for line in table([row(tpot_p50_ns=None, tokens_per_s=None)]).splitlines()]
    assert lines[1] == ["static", "ok", "10", "of", "10", "1.00", "ms", "1.00", "ms", "-", "1.00", "ms", "-", "0", "%"]

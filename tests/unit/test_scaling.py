"""The points of a scaling curve, and how the curve is told; numbers by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from simulator.report.grids import curve_view
from simulator.report.pictures import curves
from simulator.report.sentences import pointer
from simulator.report.views import Varied, did_not_run
from simulator.trace import CAUSES
from simulator.workload import Workload

MACHINE = SimpleNamespace(
    compute_tier="hbm",
    tiers={name: SimpleNamespace(usable_bytes=size) for name, size in (("hbm", 100), ("ddr", 1000), ("ssd", 10**6))},
    links={"h2d": None, "d2h": None},
)


def view(rows):
    return curve_view(rows, [Varied(key) for key in rows[0] if key == "batch"], MACHINE, "toy", 80)


def sentences(rows):
    return list(view(rows).sentences)


def table(rows):
    return "\n\n".join(map(str, view(rows).sections))


def picture(rows):
    return curves("toy", view(rows).panels).figure


def row(ranks, step_ns, policy="resident", **waits):
    named = {f"wait_{cause}_ns": waits.get(cause, 0) for cause in CAUSES}
    each = None if step_ns is None else 100 / step_ns
    status = "infeasible" if step_ns is None else "ok"
    about = {"policy": policy, "ranks": ranks, "status": status, "step_ns": step_ns, "efficiency": each}
    about["stall_ns"] = sum(waits.values())
    return about | named | {"collective_ns": None, "tokens_per_s": each and each * ranks * 1e6}


def test_what_comes_out_at_both_ends_and_what_is_waited_for_is_said():
    missed, said = sentences([row(8, 100, peer=5), row(64, 125, peer=10, collective=20), row(8, None, "static")])
    assert missed == "static does not fit at ranks 8."
    makes, waits = said.split("; ")
    assert makes == "resident makes 8,000,000 tokens/s at ranks 8 and 51,200,000 tokens/s at ranks 64"
    assert waits == "it stalls for 5.0 % and 24 % of a step, mostly for collectives at the last point."


def test_a_point_that_does_not_run_has_a_line_without_numbers():
    lines = [line.split() for line in table([row(8, None), row(1024, 100)]).splitlines()]
    assert lines[1] == ["resident", "8", "infeasible", "-", "-", "0", "ns", "-", "-", "-", "-"]
    assert lines[2][:2] == ["resident", "1,024"]
    assert lines[2][-3:] == ["1,024,000,000", "100", "%"]


def over(batch, step_ns, stall_ns):
    about = row(1, step_ns, "static", transfer=stall_ns)
    about |= {"batch": batch, "stall_ns": stall_ns, "compute_ns": step_ns - stall_ns, "bounded_by": "link read"}
    return about | {"tokens_per_s": batch * 1e9 / step_ns, "gap_fraction": 0.02}


def test_points_of_one_rank_are_compared_by_tokens_per_second():
    rows = [over(1, 1000, 900), over(64, 1000, 700), over(256, 1600, 8)]
    lines = [line.split() for line in table(rows).splitlines()]
    assert lines[0] == [
        "policy",
        "batch",
        "status",
        "step",
        "compute",
        "stall",
        "transfer",
        "gap",
        "at",
        "most",
        "bounded",
        "by",
        "tokens/s",
    ]
    assert lines[3][1:5] == ["256", "ok", "1.60", "us"]
    (said,) = sentences(rows)
    assert said == (
        "static makes 1,000,000 tokens/s at batch 1 and 160,000,000 tokens/s at batch 256; "
        "it stalls for 90 % and 0.5 % of a step, mostly for transfers at the last point."
    )


def held(batch, hbm, ddr, h2d):
    amounts = {"peak_hbm_bytes": hbm, "peak_ddr_bytes": ddr, "peak_ssd_bytes": 0}
    return over(batch, 1000, 700) | amounts | {"moved_h2d_bytes": h2d, "moved_d2h_bytes": 0, "recompute_ns": 0}


def test_what_is_held_and_moved_has_a_table_of_its_own_without_what_no_row_uses():
    rows = [held(1, 40, 0, 0), held(64, 80, 500, 480)]
    _, second = table(rows).split("\n\n")
    lines = [line.split("  ") for line in second.splitlines()]
    assert [[cell.strip() for cell in line if cell] for line in lines] == [
        ["policy", "batch", "peak hbm", "peak ddr", "moved h2d"],
        ["static", "1", "40 B", "0 B", "0 B"],
        ["static", "64", "80 B", "500 B", "480 B"],
    ]


def test_what_did_not_run_holds_nothing_and_has_no_line_in_the_second_table():
    rows = [
        held(1, 40, 0, 0),
        dict.fromkeys(held(64, 80, 500, 480)) | {"policy": "static", "status": "infeasible", "ranks": 1, "batch": 64},
    ]
    first, second = table(rows).split("\n\n")
    assert (len(first.splitlines()), len(second.splitlines())) == (3, 2)


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ({}, []),
        ({"batch": (1, 2048)}, ["This is one point of a curve: hosim sweep compares batch 1 and 2,048."]),
        (
            {"batch": (1, 2, 4), "sequence": (4, 2, 1)},
            ["This is one point of a curve: hosim sweep compares batch and sequence at 3 points."],
        ),
    ],
)
def test_who_sees_one_point_is_told_of_the_curve(points, said):
    assert pointer(points) == said


def test_the_picture_has_a_panel_for_each_amount_and_the_limits_that_are_near():
    drawn = picture([held(1, 40, 0, 0), held(64, 80, 400, 480)]).axes
    assert [ax.get_title(loc="left") for ax in drawn if ax.lines] == [
        "one step",
        "tokens per second",
        "peak hbm, room 80 B",
        "peak ddr, room 1.00 kB",
        "moved h2d",
    ]
    hbm, ddr, moved = ([list(line.get_ydata()) for line in ax.lines if len(line.get_ydata())] for ax in drawn[2:5])
    assert hbm == [[40, 80], [80, 80]], "the peaks, and the budget"
    assert ddr == [[0, 400]], "room for more than twice as much is no line"
    assert moved == [[0, 480]]
    assert all(ax.get_ylim()[0] == 0 for ax in drawn[2:5])


def missing(about, policy, status="infeasible"):
    """The row at the same point that did not run: it has no figures."""
    named = {key: value for key, value in about.items() if key == "batch"}
    return {"policy": policy, "status": status, "ranks": 1, "efficiency": None} | named


def test_what_does_not_run_is_said_in_words_and_is_not_in_the_legend():
    rows = [held(1, 40, 0, 0), held(64, 80, 400, 480)]
    rows += [missing(row, "resident") for row in rows] + [missing(row, "reactive", "blocked") for row in rows[:1]]
    rows += [rows[1] | {"policy": "reactive"}]
    assert sentences(rows)[:2] == ["resident does not fit at batch 1 and batch 64.", "reactive is blocked at batch 1."]
    assert [text.get_text() for text in picture(rows).legends[0].get_texts()] == ["static", "reactive"]


def test_where_something_fails_and_why_is_said():
    ran = [held(batch, 40, 0, 0) for batch in (1, 2, 4, 8)]
    rows = [missing(row, "static") if row["batch"] in (1, 4) else row for row in ran]
    assert sentences(rows)[0] == "static does not fit at batch 1 and batch 4."
    rows[1] = missing(ran[1], "static", "failed") | {"notes": "here: a must, found b; do c"}
    assert sentences(rows)[1] == "static fails at batch 2: here: a must, found b; do c."


def test_draws_that_do_not_run_are_counted_as_they_have_no_place():
    lost = [{"policy": "static", "status": "blocked", "draw": number} for number in range(3)]
    assert list(did_not_run(lost, [])) == ["static is blocked at 3 points."]
    assert list(did_not_run([row | {"batch": 4} for row in lost], [Varied("batch")])) == [
        "static is blocked at 3 points."
    ]
    assert list(did_not_run([row | {"batch": row["draw"]} for row in lost], [Varied("batch")])) == [
        "static is blocked at batch 0, batch 1 and batch 2."
    ]


def test_many_points_are_counted_with_the_first_of_them_and_one_reason():
    lost = [{"policy": "static", "status": "failed", "batch": batch, "notes": f"of {batch}"} for batch in range(7)]
    said = "static fails at 7 points, the first at batch 0: of 0 (6 other reasons under notes)."
    assert list(did_not_run(lost, [Varied("batch")])) == [said]


def test_curves_that_tie_all_show():
    """Each curve is wider than those above it, and its markers have a shape of their own."""
    rows = [held(batch, 40, 0, 0) | {"policy": policy} for policy in "abcde" for batch in (1, 64)]
    for ax in picture(rows).axes:
        lines = [line for line in ax.lines if line.get_marker() not in ("None", "") and len(line.get_xdata())]
        widths, sizes = ([get(line) for line in lines] for get in (lambda c: c.get_linewidth(), lambda c: c.get_ms()))
        assert len(lines) in (0, 5)
        assert widths == sorted(set(widths), reverse=True)
        assert sizes == sorted(set(sizes), reverse=True)
        assert len({line.get_marker() for line in lines}) == len(lines)


def test_tokens_are_those_of_all_replicas_that_are_built():
    model = {"layers": 1, "hidden": 8, "heads": 2, "kv_heads": 2, "ffn": 8, "vocabulary": 8}
    given = {"name": "toy", "model": model, "batch": 3, "sequence": 5}
    spread = {"data": 4, "micro_batches": 2}
    assert Workload.model_validate(given).tokens == 15
    assert Workload.model_validate(given | {"parallel": spread}).tokens == 30
    assert Workload.model_validate(given | {"parallel": {**spread, "ranks": "all", "tensor": 2}}).tokens == 120
    decode = {"phase": "decode", "new_tokens": 7, "replicas": 2}
    assert Workload.model_validate(given | decode).tokens == 2 * 3 * 7
    assert Workload.model_validate(given | {"phase": "prefill", "chunk": 2}).tokens == 15
    assert Workload.model_validate({"name": "toy", "graph": "graph.jsonl"}).tokens is None

"""The picture of a table: a bar is as long as what it shows, and what is not shown in full says so."""

import io
from dataclasses import replace
from itertools import pairwise

import chain
import pytest

import simulator as hosim
from simulator.report import drawing as colours
from simulator.report.pictures import comparison
from simulator.trace import CAUSES


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One run of the chain."""
    return hosim.run(chain.write(tmp_path_factory.mktemp("inputs")))


def rows_of(results, **changes):
    """The rows of a run, those named with other numbers."""
    return [replace(row, summary=row.summary | changes.get(label, {})) for label, row in results.items()]


def widths(ax, y):
    """Colours and lengths of the bars in a line."""
    found = [bar for bar in ax.patches if abs(bar.get_y() + bar.get_height() / 2 - y) < 0.1]
    return {tuple(bar.get_facecolor()): bar.get_width() for bar in found}


def said(picture):
    return {text.get_text() for ax in picture.axes for text in ax.texts}


def legend(picture):
    return [text.get_text() for text in picture.legends[0].get_texts()]


def rgba(colour):
    return (*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)), 1)


def test_parts_of_a_bar_add_up_to_the_step(results):
    steps, _, _ = results.comparison().figure.axes
    static = results["static"].summary
    parts = widths(steps, 2)
    assert parts[rgba(colours.COMPUTE)] == pytest.approx(static["compute_ns"] / 1e6)
    assert sum(parts.values()) == pytest.approx(static["step_ns"] / 1e6)
    waited = [cause for cause in CAUSES if static.get(f"wait_{cause}_ns")]
    assert waited
    for cause in waited:
        assert parts[rgba(colours.CAUSE[cause])] == pytest.approx(static[f"wait_{cause}_ns"] / 1e6)
        assert f"stall: {cause}" in legend(results.comparison().figure)


def test_each_memory_in_use_has_a_panel_with_peaks_and_limit(results):
    picture = results.comparison().figure
    assert [ax.get_title(loc="left") for ax in picture.axes] == [
        "",
        "budget 4.30 MB",
        "capacity 1.00 GB",
    ]
    assert [ax.get_xlabel() for ax in picture.axes] == ["one step [ms]", "peak of hbm [MB]", "peak of ddr [MB]"]
    for ax, tier in zip(picture.axes[1:], ("hbm", "ddr"), strict=True):
        peak = results["static"].summary[f"peak_{tier}_bytes"]
        assert widths(ax, 2)[rgba(colours.PEAK)] == pytest.approx(peak / 1e6)
    hbm, ddr = ([line.get_xdata()[0] for line in ax.lines] for ax in picture.axes[1:])
    assert hbm == [4.3] * 3, "the budget, in each line"
    assert ddr == [], "a capacity far beyond the peaks is no line"
    alone = comparison(rows_of(results, static={"peak_ddr_bytes": 0})[2:], "toy").figure
    assert len(alone.axes) == 2, "a memory that no row uses has none"


def test_what_does_not_fit_is_told_and_its_need_is_hollow(results):
    picture = results.comparison().figure
    shortfall = results["resident"].shortfall
    assert any(text.startswith("infeasible, short by ") for text in said(picture))
    ((colour, width),) = widths(picture.axes[1], 0).items()
    assert (colour[3], width) == (0, pytest.approx(shortfall.demand_bytes / 1e6))
    assert widths(picture.axes[0], 0) == {}
    assert "would need" in legend(picture)
    assert "would need" not in legend(comparison(list(results.values())[1:], "toy").figure)


def test_a_need_beyond_the_limit_is_shown_against_it_however_little_others_hold(results):
    little = {label: {"peak_hbm_bytes": 100_000} for label in ("reactive", "static")}
    hbm = comparison(rows_of(results, **little), "toy").figure.axes[1]
    assert list(widths(hbm, 0).values()) == pytest.approx([results["resident"].shortfall.demand_bytes / 1e6])
    assert [line.get_xdata()[0] for line in hbm.lines] == [4.3] * 3


def test_a_table_without_a_row_that_ran_has_a_picture(results):
    picture = comparison([results["resident"]], "toy").figure
    assert [label.get_text() for label in picture.axes[0].get_xticklabels()] == []
    assert not any(text.startswith(("compute", "lower bound")) for text in legend(picture))


def test_no_bar_is_cut(results):
    step = 100 * results["static"].summary["step_ns"]
    waits = {f"wait_{cause}_ns": 0 for cause in CAUSES}
    rows = rows_of(results, reactive={"step_ns": step, "compute_ns": step, "stall_ns": 0} | waits)
    assert sum(widths(comparison(rows, "toy").figure.axes[0], 1).values()) == pytest.approx(step / 1e6)


def test_the_bound_is_a_tick_and_says_which_plans_it_holds_for(results):
    picture = results.comparison().figure
    lines = [line.get_xdata() for line in picture.axes[0].lines]
    ticks = sorted(x[0] for x in lines if x[0] == x[1])  # the others are intervals of real steps
    assert ticks == pytest.approx(sorted(results[label].summary["bound_ns"] / 1e6 for label in ("reactive", "static")))
    homes = " for this placement" if results["static"].homes_are_given else ""
    assert f"lower bound{homes}" in legend(picture)


@pytest.mark.parametrize("count", [1, 2, 10, pytest.param(25, marks=pytest.mark.slow)])
def test_no_text_leaves_the_picture_or_its_panel(count, results):
    """Labels of any length, and values behind bars."""
    some = list(results.values())
    rows = [replace(some[i % 3], label=f"row {i} " + "which is described at length " * (i % 4)) for i in range(count)]
    picture = comparison(rows, "toy").figure
    picture.write(io.BytesIO())
    page = picture.bbox
    for ax in picture.axes:
        for text in [*ax.texts, *ax.get_yticklabels()]:
            box = text.get_window_extent()
            assert box.x0 >= page.x0
            assert box.x1 <= page.x1
    for ax, beside in pairwise(picture.axes):
        assert all(text.get_window_extent().x1 <= beside.bbox.x0 for text in ax.texts)
    boxes = [label.get_window_extent() for label in picture.axes[0].get_yticklabels()]
    assert all(below.y1 <= above.y0 for above, below in pairwise(boxes)), "labels lie apart"


@pytest.mark.slow
def test_no_value_is_written_over_a_limit(results):
    """What is held is written behind its bar, or where the limit lies there, behind that."""
    for peak in range(2_000_000, 4_300_000, 460_000):
        rows = rows_of(results, static={"peak_hbm_bytes": peak}, reactive={"peak_hbm_bytes": peak - 50_000})
        picture = comparison(rows, "toy").figure
        picture.draw_without_rendering()
        hbm = picture.axes[1]
        (limit, _) = hbm.transData.transform((4.3, 0))
        for text in hbm.texts:
            box = text.get_window_extent()
            assert not box.x0 - 2 < limit < box.x1 + 2, text.get_text()


def test_the_picture_says_what_was_run(results):
    picture = results.comparison().figure
    heading, top = picture.legends[0].get_title(), picture.legends[0]
    assert heading.get_text() == results.case.loaded.scenario.title
    picture.write(io.BytesIO())
    assert heading.get_window_extent().y0 > top.get_texts()[0].get_window_extent().y1


def test_weights_on_drives_and_caches_on_the_host_are_three_memories():
    results = hosim.run("llama3_70b_stream_ssd", policies=["static"])
    heads = [ax.get_xlabel().split(" [")[0] for ax in results.comparison().figure.axes]
    assert heads == ["one step", "peak of hbm", "peak of ddr", "peak of ssd"]

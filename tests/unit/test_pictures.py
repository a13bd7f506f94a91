"""What pictures must not say: gaps where there are none, requests that nobody serves, a bound that is beaten."""

from __future__ import annotations

from itertools import product

import chain
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure

import simulator as hosim
from simulator.report import drawing, pictures
from simulator.report.grids import _maps
from simulator.report.views import Map, Varied


def _row(figure):
    """The colours of the middle row of pixels, between the outer ends of the bars."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[50, 12:188, :3]


@pytest.mark.parametrize("gap_ns", [27, 990])
def test_a_gap_shorter_than_a_pixel_is_no_column_wherever_it_lies(gap_ns):
    """A pixel is 1 us; the two bars meet at another place of a pixel each time."""
    for shift in range(0, 1000, 50):
        figure = Figure(figsize=(2, 1), dpi=100)
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set_axis_off()
        ax.set_xlim(0, 200)
        ax.set_ylim(0, 1)
        first = 100_000 + shift
        start, end = np.array([10_000, first + gap_ns]), np.array([first, 190_000])
        drawing.bars(ax, (0.0, 1.0), (start, end), np.zeros(2, np.int64), ["#0000ff"], 1000)
        for edge in ax.collections:
            edge.set_linewidth(0)
        assert (_row(figure) == (0, 0, 255)).all(), shift


def test_a_gap_of_two_pixels_is_drawn():
    figure = Figure(figsize=(2, 1), dpi=100)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_xlim(0, 200)
    start, end = np.array([10_000, 102_000]), np.array([100_000, 190_000])
    drawing.bars(ax, (0.0, 1.0), (start, end), np.zeros(2, np.int64), ["#0000ff"], 1000)
    assert (_row(figure) == 255).all(axis=1).any()


def test_bounds_of_different_plans_have_lines_and_labels_of_their_own(tmp_path):
    scenario = chain.SCENARIO.replace("- static", "- static\n  - recompute")
    rows = list(hosim.run(chain.write(tmp_path, scenario=scenario)).values())
    picture = pictures.comparison(rows, "toy").figure
    labels = [text.get_text() for text in picture.legends[0].get_texts()]
    assert [label for label in labels if "bound" in label] == [
        "lower bound without recompute for this placement",
        "lower bound",
    ]
    assert len({line.get_linestyle() for line in picture.axes[0].lines}) == 2
    alone = pictures.comparison(rows[:3], "toy").figure
    said = [text.get_text() for text in alone.legends[0].get_texts()]
    assert [one for one in said if "bound" in one] == ["lower bound for this placement"]


@pytest.mark.parametrize(("lines", "contours"), [(2, 0), (3, 1)])
def test_contours_are_drawn_across_three_values_or_more(lines, contours):
    """Between two values a contour would be a guess of where one height becomes the other."""
    heights = [[100.0 * (x + y + 1) for x in range(3)] for y in range(lines)]
    ticks = (["a", "b", "c"], [str(number) for number in range(lines)])
    ax = pictures.maps("steps", [Map("static", ("x", "y"), ticks, heights, 100)])
    assert len([one for one in ax.collections if isinstance(one, QuadContourSet)]) == contours


@pytest.mark.parametrize("fewest", [0, 1, 2])
def test_small_multiples_split_the_axis_with_the_fewest_values(fewest):
    sizes = [2 if number == fewest else 3 for number in range(3)]
    axes = [Varied(name, None, list(range(size))) for name, size in zip("abc", sizes, strict=True)]
    cells = product(*(axis.values for axis in axes))
    ran = [
        {"policy": "static", **dict(zip("abc", cell, strict=True)), "step_ns": sum(cell) + 10 * cell[fewest]}
        for cell in cells
    ]
    drawn = list(_maps(ran, axes, "step_ns"))
    few, (left, up) = "abc"[fewest], [name for name in "abc" if name != "abc"[fewest]]
    assert [one.title for one in drawn] == [f"static: {few} {number}" for number in range(2)]
    assert {one.axes for one in drawn} == {(left, up)}
    assert [one.heights[2][1] for one in drawn] == [3, 14], "left 1, up 2"

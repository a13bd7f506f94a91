"""The small rules of the reports: how numbers are written, how tables fold, how folders are named."""

import io
import xml.etree.ElementTree as ET
from dataclasses import replace
from types import SimpleNamespace

import chain
import numpy as np
import orjson
import pytest
from matplotlib import rc_context, rcParams
from matplotlib.colors import to_rgba
from matplotlib.text import Text

import simulator as hosim
from simulator.cli.check import describe
from simulator.errors import ConfigError, InvariantError, Shortfall
from simulator.metrics.figures import FIGURES, PLAIN, Figure, figure_of, present, registered
from simulator.metrics.rows import Row, by_place
from simulator.report import drawing, files, perfetto, tables, timeline
from simulator.report.changes import changes
from simulator.report.readings import KINDS, largest, space, usages
from simulator.report.sentences import sentences
from simulator.report.words import ABSENT, percent, quantity, ratio, shown
from simulator.run.stories import plan
from simulator.trace import CAUSES, lasts


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One run of the chain."""
    return hosim.run(chain.write(tmp_path_factory.mktemp("inputs")))


def texts(picture):
    return {text.get_text() for text in picture.findobj(Text)}


@pytest.mark.parametrize(
    ("fraction", "shown"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.99999, "99.9 %"),
        (0.984, "98 %"),
        (0.0996, "10 %"),
        (0.034, "3.4 %"),
        (0.0004, "0 %"),
        (-0.0004, "0 %"),
        (0.0006, "0.1 %"),
        (1.23, "123 %"),
        (None, ABSENT),
        (float("nan"), ABSENT),
    ],
)
def test_percent(fraction, shown):
    assert percent(fraction) == shown


WORSE = {
    **dict.fromkeys(("step_ns", "peak_hbm_bytes", "peak_reserved_hbm_bytes", "energy_j", "step_usd"), 1),
    **dict.fromkeys(("moved_h2d_bytes", "compactions", "short_bytes", "at_half_slowdown", "largest_batch"), 0),
    "life_ssd_years": -1,
}
"""For each figure that `hosim diff` compares: whether more of it is worse, or less, or neither."""


@pytest.mark.parametrize(("column", "way"), WORSE.items())
@pytest.mark.parametrize("change", [-3, -1, 1, 3])
def test_a_change_is_worse_one_way_and_beyond_the_tolerance(column, way, change):
    figure = next(f.at(place) for f in FIGURES if (place := f.place_in(column)) is not None)
    stated = {column: {key: getattr(figure, key) for key in ("unit", "head", "worse", "is_compared")}}
    rest = {"stalls": {}, "figures": stated}
    both = ({"rows": [{"policy": "mine", "status": "ok", column: value}]} | rest for value in (100, 100 + change))
    (row,) = changes(*both, 0.01)
    assert row.moved is (abs(change) > 1)
    assert row.worse is (change * way > 1)


def test_every_figure_that_is_compared_has_a_way():
    compared = {figure.column for figure in FIGURES if figure.is_compared or figure.column == "step_ns"}
    assert {next(f.column for f in FIGURES if f.place_in(column) is not None) for column in WORSE} == compared


def test_a_new_figure_moves_no_text_of_another_table(tmp_path, monkeypatch):
    path = chain.write(tmp_path)
    before = plan(path).text()
    assert "  copies  " in before
    copies = Figure("copies_<>", "count", "copies <>", "...", over="link")
    monkeypatch.setattr("simulator.metrics.figures.FIGURES", registered(*FIGURES, copies))
    figure_of.cache_clear()
    try:
        assert figure_of("copies_h2d").head == "copies h2d"
        assert figure_of("copies_ns").unit == "count"  # what the table of the plan must not ask
        assert plan(path).text() == before
    finally:
        figure_of.cache_clear()


def test_a_new_figure_changes_nothing_of_what_diff_says(tmp_path, monkeypatch):
    """Its pattern fits where a row is short of memory, which is a text, and a tier has the name of another figure."""
    path, machine = chain.write(tmp_path), tmp_path / "machine.yaml"
    machine.write_text(machine.read_text().replace("hbm", "reserved_hbm"))
    for name, budget in (("old", "4.3 MB"), ("new", "1 MB")):
        path.write_text(chain.SCENARIO.replace("4.3 MB", budget))
        hosim.run(path).write(tmp_path / name)
    before = hosim.diff(tmp_path / "old", tmp_path / "new")
    assert "short at" in str(before)
    (peak,) = (figure for figure in before.rows[0].figures if figure.figure.column == "peak_reserved_hbm_bytes")
    assert peak.name == "peak reserved_hbm"
    new = Figure("short_<>", "B", "lacking <>", "...", over="tier")
    monkeypatch.setattr("simulator.metrics.figures.FIGURES", registered(*FIGURES, new))
    figure_of.cache_clear()
    try:
        assert (figure_of("short_at").unit, str(hosim.diff(tmp_path / "old", tmp_path / "new"))) == ("B", str(before))
    finally:
        figure_of.cache_clear()


def test_a_column_that_is_not_registered_has_no_unit():
    assert {figure_of(column).unit for column in ("idle_ns", "size_bytes", "busy_fraction")} == {"count"}


def test_a_name_of_the_machine_gives_no_two_figures_the_same_column(tmp_path):
    path, machine = chain.write(tmp_path), tmp_path / "machine.yaml"
    machine.write_text(machine.read_text().replace("h2d:", "transfer:"))
    said = "link 'transfer': a name gives no two figures the same column, found exposed_transfer_ns twice"
    with pytest.raises(ConfigError, match=said):
        hosim.run(path)
    with pytest.raises(ConfigError, match=said):
        describe(str(machine))


@pytest.mark.parametrize(
    ("column", "over"), [("wait_peer_ns", ""), ("peak_<>_bytes", "tier"), ("late_ns", ""), ("step_<>", "link")]
)
def test_a_figure_that_another_would_hide_is_refused(column, over):
    with pytest.raises(InvariantError, match="a figure has a column of its own"):
        registered(*FIGURES, Figure(column, "count", "late", "Late.", over=over))


@pytest.mark.parametrize("column", ["<>", "<>_times", "x_<>_y_<>", "x <>", "late", ""])
def test_a_column_of_places_that_can_never_be_one_is_refused(column):
    with pytest.raises(InvariantError, match="with one <> in it where a figure is over places, else none, found over"):
        registered(Figure(column, "count", "late", "Late.", over="link"))


def test_a_column_with_a_place_is_of_a_figure_over_places():
    with pytest.raises(InvariantError, match=r"'late_<>': .*, found over nothing; write for example moved_<>_bytes"):
        registered(Figure("late_<>", "count", "late", "Late."))


def test_what_is_absent_is_a_dash():
    assert quantity(None, "ns") == ratio(float("nan")) == ABSENT
    assert quantity(0, "ns") == "0 ns"
    assert present(0)


def test_shares_in_a_failed_expectation_have_three_digits_too():
    assert [shown(column, 1 / 3) for column in ("utilisation", "masked_fraction")] == ["33 %", "33 %"]
    assert [shown(column, 4 / 3) for column in ("crowding_h2d", "slowdown_vs_fastest")] == ["1.33x", "1.33x"]
    assert shown("ranks", 8) == "8"


def test_every_kind_cause_and_phase_has_a_colour_of_its_own():
    assert set(drawing.KIND) == set(KINDS)
    assert set(drawing.CAUSE) == set(CAUSES)
    everything = [*drawing.KIND.values(), *drawing.CAUSE.values()]
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize("width", [30, 60, 100, 300])
def test_a_folded_table_fits_and_loses_nothing(width, results):
    rows = list(results.values())
    parts = tables.folded(rows, width)
    assert all(part[0].head == "policy" for part in parts)
    shown = [column.head for part in parts for column in part[1:]]
    assert shown == [column.head for section in tables.sections(rows) for column in section]
    for part in parts:
        assert len(part) == 2 or sum(c.width for c in part) + 2 * (len(part) - 1) <= width


def test_folder_names_are_safe_and_differ():
    names = files.folder_names(["static", "Static", "a/b: c", "a b c", "..", "plan.jsonl", "comparison.png"])
    expected = ["static", "Static-2", "a-b-c", "a-b-c-2", "row", "plan.jsonl", "comparison.png-2"]
    assert list(names.values()) == expected


def test_usage_is_the_running_sum_of_the_residencies(results):
    row = results["static"]
    for usage in usages(row):
        assert usage.total_bytes.max() == row.summary[f"peak_{usage.tier}_bytes"]
        assert (usage.kind_bytes >= 0).all()
        assert (np.diff(usage.time_ns) >= 0).all()
    assert [usage.limit_bytes for usage in usages(row)] == [4_300_000, 10**9]
    assert list(usages(results["resident"])) == []


def test_stalls_by_cause_sum_to_the_stall(results):
    row = results["static"]
    assert by_place(row) == [
        {"cause": "capacity", "on": "hbm", "ns": 100_000},
        {"cause": "transfer", "on": "h2d", "ns": 100_000},
    ]
    names = ("op", "cause", "on", "tensor", "lasted_ns")
    assert [tuple(stall[name] for name in names) for stall in largest(row)] == [
        ("step1/fwd/5", "capacity", "hbm", "", 100_000),
        ("step1/bwd/0", "transfer", "h2d", "a0", 100_000),
    ]


@pytest.mark.parametrize(("which", "kind"), [("timeline", "svg"), ("comparison", "png")])
def test_the_same_picture_gives_the_same_bytes_whatever_a_session_or_a_users_file_says(which, kind, results):
    """`usetex` would ask for a program that may not be there, the others would move or colour what is drawn."""
    mine = {"text.usetex": True, "font.size": 20, "axes.facecolor": "red", "savefig.bbox": "tight"}
    drawn = []
    for style in ({}, mine):
        with rc_context(style):
            picture = results["static"].timeline() if which == "timeline" else results.comparison()
            drawn.append(io.BytesIO())
            picture.figure.write(drawn[-1], kind)
            assert style.items() <= rcParams.items(), "a session keeps its own"
    first, second = (out.getvalue() for out in drawn)
    assert first == second


def test_a_timeline_in_the_axes_of_another_row_is_as_if_drawn_anew(results):
    """Of the row before nothing shows through: no title, legend, limit, tick or curve."""
    names = ("static", "reactive", "static")
    anew = {name: results[name].timeline().figure.png() for name in names}
    assert anew["static"] != anew["reactive"]
    ax = results["reactive"].timeline()
    for name in names:
        ax = timeline.timeline(results[name], drawing.emptied(ax))
        assert ax.figure.png() == anew[name]


def test_the_timeline_names_its_lanes_units_and_limits(results):
    out = io.BytesIO()
    picture = results["static"].timeline().figure
    picture.write(out, "svg")
    ET.fromstring(out.getvalue())
    lanes, *tiers = picture.axes
    assert [label.get_text() for label in lanes.get_yticklabels()] == ["compute", "d2h", "h2d"]
    assert [ax.get_ylabel() for ax in tiers] == ["hbm [MB]", "ddr [MB]"]
    assert tiers[-1].get_xlabel() == "time [ms]"
    said = texts(picture)
    assert {"stall: capacity", "stall: transfer", "activation", "room", "peak 4.30 MB, budget 4.30 MB"} <= said
    assert "stall: host" not in said


def test_the_timeline_of_many_steps_shows_the_last_two(tmp_path):
    workload = chain.WORKLOAD.replace("steps: 2", "steps: 6")
    row = hosim.run(chain.write(tmp_path, workload=workload), policies=["static"])["static"]
    first, last = row.timeline().figure.axes[0].get_xlim()
    assert last - first == pytest.approx(2 * row.summary["step_ns"] / 1e6)
    assert last == pytest.approx(row.summary["makespan_ns"] / 1e6)


def _row(label, step=None, shortfall=None, **more):
    summary = {"status": "ok" if step else "infeasible", "step_ns": step, **more}
    hardware = SimpleNamespace(links={"d2h": None}, compute_tier="hbm", tiers={})
    about = {"moved_d2h_bytes": 1, **summary}
    return Row(label, label, about, job=None, hardware=hardware, budget_bytes=2000, shortfall=shortfall)


def test_a_pixel_of_memory_shows_the_most_that_lies_in_it(tmp_path):
    """An op of 1 us with a large workspace between two of a second: the curve reaches what the label says."""
    ops = [
        {"op": "a", "writes": ["x"], "duration_ns": 10**9},
        {"op": "b", "reads": ["x"], "writes": ["y"], "duration_ns": 1000, "workspace_bytes": 50_000_000},
        {"op": "c", "reads": ["y"], "writes": ["z"], "duration_ns": 10**9},
    ]
    tensors = [{"tensor": name, "size_bytes": 1000} for name in "xyz"]
    scenario = chain.write(tmp_path, scenario=chain.SCENARIO.replace("4.3 MB", "60 MB"))
    chain.write_lines(
        tmp_path / "graph.jsonl", [{"schema": "hosim-graph/1", "name": "spike", "steps": 2}, *tensors, *ops]
    )
    row = hosim.run(scenario, policies=["resident"])["resident"]
    drawn = timeline.timeline(row).figure.axes[1]
    tops = [curve.get_data().values.max() for curve in drawn.patches]
    assert max(tops) == pytest.approx(row.summary["peak_hbm_bytes"] / 1e6)


def test_an_unknown_row_is_answered_with_the_known_ones(results):
    with pytest.raises(
        KeyError, match=r"no row 'statik': use one of resident, reactive, static \(did you mean 'static'"
    ):
        results["statik"]
    assert "statik" not in results
    with pytest.raises(hosim.HosimError, match="must fit in hbm"):
        results["resident"].timeline()


def test_sentences_of_one_row():
    row = _row("static", 2_000_000, gap_fraction=0.0, bounded_by="compute", slowdown_vs_fastest=1.0)
    assert sentences([row]) == ["static takes 2.00 ms a step, at the lower bound (compute); it never waits."]


def test_sentences_name_the_gap_and_the_op():
    short = Shortfall("hbm", 130, 100, "op L31/fwd/loss", levers=("raise the budget",))
    fast = _row("static", 1000, gap_fraction=0.5, bounded_by="link d2h", hidden_fraction=0.97, slowdown_vs_fastest=1.0)
    assert sentences([_row("resident", shortfall=short), fast]) == [
        "resident does not fit in hbm: 30 B short at op L31/fwd/loss.",
        (
            "static takes 1.00 us a step, at most 50 % above the best plan (link d2h); "
            "it overlaps 97 % of its copying with compute."
        ),
    ]


def test_a_sentence_says_why_a_policy_that_could_move_data_moved_none():
    rows = [_row(name, 1000, moved_d2h_bytes=0, peak_hbm_bytes=1500) for name in ("resident", "reactive", "static")]
    why = "the peak of a step, 1.50 kB, fits in the 2.00 kB of hbm."
    assert sentences(rows)[1] == f"reactive and static move nothing: {why}"
    assert len(sentences(rows[:1])) == 1


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((), "."),
        ((1001,), "."),  # a tie is as fast
        ((1001, 1100, 2000), "; b and c may be as fast."),
        ((1100, 1200, 2000), "; any other row may be as fast."),
        ((1500, 2600), "; steps of b take longer; a may be as fast."),
        ((1100, 1200, 1300, 1400, 3000, 4000), "; steps of e and f take longer; 4 other rows may be as fast."),
    ],
)
def test_a_sentence_says_between_what_times_real_steps_lie_and_which_rows_may_be_as_fast(steps, said):
    rows = [_row("x", 1000), *(_row(label, step) for label, step in zip("abcdef", steps, strict=False))]
    for row in rows:
        step = row.summary["step_ns"]
        row.summary.update(real_low_ns=step, real_median_ns=step, real_high_ns=2 * step + 500)
    real = "x: a real step takes 1.00 us to 2.50 us, as 80 % of published measurements of such steps do"
    assert sentences(rows)[-1] == real + said


def test_sentences_on_a_row_that_computes_longer():
    fast = _row("static", 1000, slowdown_vs_fastest=1.0)
    slow = _row("recompute", 1300, slowdown_vs_fastest=1.3)
    assert sentences([fast, slow])[1] == "recompute takes 1.30x as long as static: it computes longer."


def test_comparison_shows_every_row(results):
    ax = results.comparison().figure.axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == list(results)
    assert isinstance(results.comparison().figure, drawing.Picture)


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    """The chain with room for four activations, by recompute and by offload over a slow link."""
    slow = {"links.*.bandwidth": "2 GB/s"}
    return hosim.run(chain.write(tmp_path_factory.mktemp("again")), set=slow, policies=["recompute", "static"])


def test_recompute_is_told_apart_in_tables_traces_and_pictures(again):
    row = again["recompute"]
    assert row.summary["recompute_ns"] > 0
    assert "recompute" in tables.plain([row]).splitlines()[0]
    assert "recompute" not in tables.plain([again["static"]])
    slices = [e for e in map(orjson.loads, perfetto.events(row)) if e["ph"] == "X" and e["name"].endswith("#2")]
    assert slices
    assert sum(e["dur"] for e in slices) * 1000 == row.summary["recompute_ns"] * row.graph.steps
    legend = texts(row.timeline().figure)
    assert "recompute" in legend
    assert "recompute" not in texts(again["static"].timeline().figure)
    assert "recompute" in {t.get_text() for t in again.comparison().figure.legends[0].get_texts()}
    widths = {p.get_facecolor(): p.get_width() for p in again.comparison().figure.axes[0].patches if p.get_y() < 0.5}
    assert to_rgba(drawing.RECOMPUTE) in widths


def test_a_row_that_recomputes_has_the_bound_of_all_plans_and_one_that_does_not_its_own(again):
    recompute, static = again["recompute"].summary, again["static"].summary
    assert recompute["bounded_by"] == "room or recompute at fwd/5"
    assert recompute["bound_ns"] < static["bound_ns"]
    assert "the best plan for this placement (room or recompute at fwd/5); it spends" in again.sentences[0]


def test_a_bound_that_other_homes_can_beat_says_so():
    rows = [_row("static", 1000, gap_fraction=0.0, bounded_by=kind) for kind in ("link read", "critical path")]
    rows = [replace(row, homes_are_given=True) for row in rows]
    said = [sentences([row])[0] for row in rows]
    assert "at the lower bound for this placement (link read)" in said[0]
    assert "at the lower bound (critical path)" in said[1]


def test_a_bound_that_recompute_can_beat_is_not_called_one_that_no_plan_can():
    fast = _row("static", 1000, gap_fraction=0.5, bounded_by="link d2h", slowdown_vs_fastest=1.0)
    slow = _row("recompute", 1300, slowdown_vs_fastest=1.3, recompute_ns=300, compute_ns=1000)
    first, second = sentences([fast, slow])
    assert "the best plan without recompute (link d2h)" in first
    assert second == "recompute takes 1.30x as long as static: it spends 300 ns on recompute."


@pytest.fixture(scope="module")
def in_pieces(tmp_path_factory):
    """The chain with addresses, in as much room as it needs in bytes."""
    rows = "  - {policy: reactive, label: fit, options: {evict: lru, look_ahead: 0}, allocator: best_fit}\n"
    price = "allocator: {page: 100 kB, compaction: {per_page: 1 us}}\nassumed:\n  allocator: round numbers\n"
    folder = tmp_path_factory.mktemp("pieces")
    machine = chain.MACHINE.replace("assumed:\n", price)
    scenario = chain.SCENARIO.replace("policies:\n", "policies:\n" + rows)
    return hosim.run(chain.write(folder, machine=machine, scenario=scenario))


def test_what_no_row_uses_has_no_column(results):
    """A link that carries nothing under any row, and a memory that holds nothing."""
    rows = [replace(row, summary=row.summary | {"moved_d2h_bytes": 0}) for row in results.values()]
    assert [column.head for column in tables.sections(rows)[-1]] == ["peak hbm", "peak ddr", "moved h2d"]
    rows[-1] = replace(rows[-1], summary=rows[-1].summary | {"moved_d2h_bytes": 1, "peak_ddr_bytes": 0})
    assert [column.head for column in tables.sections(rows)[-1]] == ["peak hbm", "peak ddr", "moved d2h", "moved h2d"]
    assert [column.head for column in tables.sections(rows[:1])[-1]] == ["status"]


def test_only_rows_with_addresses_have_columns_counters_and_a_picture_of_them(in_pieces):
    fit, plain = in_pieces["fit"], in_pieces["static"]
    assert fit.summary["peak_reserved_hbm_bytes"] >= fit.summary["peak_hbm_bytes"]
    assert "compactions" not in plain.summary
    heads = [column.head for column in tables.sections([fit, plain])[-1]]
    assert heads[-2:] == ["reserved hbm", "compactions"]
    counters = {e["name"] for e in map(orjson.loads, perfetto.events(fit)) if e["ph"] == "C"}
    assert {"hbm: reserved", "hbm: largest hole"} <= counters
    assert not {e["name"] for e in map(orjson.loads, perfetto.events(plain)) if e["ph"] == "C"} & {
        "hbm: reserved",
        "hbm: largest hole",
    }
    assert {"reserved", "largest hole"} <= texts(timeline.timeline(fit).figure)
    assert not {"reserved", "largest hole"} & texts(timeline.timeline(plain).figure)


def test_a_counter_shows_what_is_held_once_an_instant_is_over(results):
    row = results["static"]
    rows = row.trace.residencies.whole()
    time_ns, delta = rows["time_ns"][rows["tier"] == 0], rows["delta_bytes"][rows["tier"] == 0]
    counted = [e for e in map(orjson.loads, perfetto.events(row)) if e["ph"] == "C" and e["name"].startswith("hbm (")]
    assert 1 < len(counted) < len(delta)
    for event in counted:
        assert event["args"] == {"[B]": delta[time_ns <= round(event["ts"] * 1000)].sum()}


@pytest.mark.parametrize(
    ("step_ns", "said"), [(1_004_999, "static and later tie at 1.00 ms"), (1_005_001, "static is fastest: 1.00 ms")]
)
def test_steps_within_half_a_per_cent_tie(results, step_ns, said):
    first, later = (
        replace(results["static"], label=label, summary=results["static"].summary | {"step_ns": ns})
        for label, ns in (("static", 1_000_000), ("later", step_ns))
    )
    assert sentences([first, later])[0].startswith(f"{said} a step")


def test_what_is_free_lies_in_holes(in_pieces):
    kept = space(in_pieces["fit"])
    used = next(usage for usage in usages(in_pieces["fit"]) if usage.tier == "hbm")
    last = lasts(kept.time_ns)
    live = used.total_bytes[np.searchsorted(used.time_ns, kept.time_ns[last], "right") - 1]
    assert (kept.reserved_bytes[last] >= live).all()
    assert (kept.hole_bytes[last] <= 4_300_000 - live).all()
    assert space(in_pieces["static"]) is None


def test_offsets_fixed_before_the_run_show_no_holes(tmp_path):
    scenario = chain.SCENARIO.replace("  - static\n", "  - {policy: static, label: laid, allocator: fixed}\n")
    laid = hosim.run(chain.write(tmp_path, scenario=scenario))["laid"]
    assert not space(laid).has_holes
    assert "hbm: largest hole" not in {e["name"] for e in map(orjson.loads, perfetto.events(laid)) if e["ph"] == "C"}
    assert "largest hole" not in texts(timeline.timeline(laid).figure)


def test_figures_have_their_own_headings_or_those_that_are_given():
    rows = [{"step_ns": 1_000, "stall_ns": 0}, {"step_ns": 2_000, "stall_ns": None}]
    assert [column.head for column in tables.figures(rows, ["step_ns", "stall_ns"])] == ["step", "stall"]
    (mine,) = tables.figures(rows, [PLAIN["step_ns"].headed("mine")])
    assert (mine.head, mine.cells) == ("mine", ("1.00 us", "2.00 us"))
    assert tables.occurring(rows, ["stall_ns", "step_ns", "drain_ns"]) == ["step_ns"]

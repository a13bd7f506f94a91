"""Choices: for how many settings a claim holds, and what the selected ones give."""

import json
import math
import re

import chain
import choices
import pytest
from choices import enumerate_choices
from unstated import opened

import simulator as hosim_api
from simulator import catalog
from simulator.errors import ConfigError
from simulator.report.words import percent
from simulator.run import prepare, run_case

pytestmark = pytest.mark.usefixtures("pictures_are_blank")

CHOICES = """\
  selects: [step]
  choices:
    - {choice: link, fields: ["links.*.bandwidth"], values: [2 GB/s, 4 GB/s, 8 GB/s], why: a test}
    - choice: who leaves first
      fields: [scenario.policies.1.options.evict]
      values: {least recent: lru, oldest: fifo}
      why: a test
"""
EXPECT = """\
  - {row: reactive, printed: 1.9 ms, figure: step, why: the step}
  - {row: reactive, column: moved_d2h_bytes, printed: 2 MB, figure: moved, why: bytes that move}
"""


def claim(name="chain", choices=CHOICES, expect=EXPECT):
    """The scenario of the chain with a claim."""
    said = "claim:\n  sentence: it takes 1.9 ms\n  source: table 2\n" + choices
    return f"{chain.SCENARIO.replace('name: chain', f'name: {name}')}{said}expect:\n{expect}"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What came of one scenario."""
    return enumerate_choices([chain.write_open(tmp_path_factory.mktemp("inputs"), claim())])


def test_every_combination_is_run_and_judged_alone(found, tmp_path):
    assert len(found.tables["points"]) == 2 * 6
    for row in found.tables["points"]:
        evict = {"least recent": "lru", "oldest": "fifo"}[row["who leaves first"]]
        path = chain.write_open(tmp_path, chain.SCENARIO.replace("evict: lru", f"evict: {evict}"))
        alone = hosim_api.run(path, policies=["reactive"], set={"links.*.bandwidth": row["link"]})["reactive"].summary
        expected = {"step": alone["step_ns"] / 1_900_000, "moved": alone["moved_d2h_bytes"] / 2_000_000}
        assert row["error"] == pytest.approx(expected[row["figure"]] - 1)


def test_a_figure_is_told_with_the_least_the_median_and_the_most_of_all_settings(found):
    step, moved = found.rows
    own = sorted(row["error"] for row in found.tables["points"] if row["figure"] == "step")
    assert (step["settings"], step["ran"]) == (6, 6)
    assert [step["error_least"], step["error_median"], step["error_most"]] == [own[0], own[3], own[-1]]
    assert step["held"] == sum(abs(error) <= 0.05 for error in own) > 0
    assert moved["selected"] == step["held"]


def test_what_selects_is_a_figure_that_is_printed(tmp_path):
    path = chain.write_open(tmp_path, claim(choices=CHOICES.replace("[step]", "[stop]")))
    with pytest.raises(ConfigError, match="found 'stop'; use one of step, moved"):
        enumerate_choices([path])


def test_settings_that_select_are_those_that_reproduce_the_figure(found):
    held = {row["link"] for row in found.tables["points"] if row["figure"] == "step" and row["holds"]}
    assert {row["link"] for row in found.tables["points"] if row["selected"]} == held == {"4 GB/s"}
    assert found.sentences[0] == "chain: 2 of 6 settings (33 %) reproduce the step together."


@pytest.mark.slow
def test_a_scenario_with_the_same_choice_is_held_to_what_another_one_selects(tmp_path):
    link = "\n".join(line for line in CHOICES.splitlines()[1:3]) + "\n"
    other = claim("other", link, "  - {row: static, printed: 1.5 ms, figure: other_step, why: another step}\n")
    for name, scenario in (("a", claim()), ("b", other)):
        (tmp_path / name).mkdir()
        chain.write_open(tmp_path / name, scenario)
    paths = [tmp_path / name / "scenario.yaml" for name in "ab"]
    found = enumerate_choices(paths)
    points = [row for row in found.tables["points"] if row["scenario"] == "other"]
    assert {row["link"]: row["selected"] for row in points} == {"2 GB/s": False, "4 GB/s": True, "8 GB/s": False}
    said = "another step, 1.5 ms printed: holds for 1 of 1 selected setting; of all, for 1 of 3 (33 %)."
    assert said in found.sentences
    assert "other: 1 of 3 settings (33 %) agree with what chain selects." in found.sentences


@pytest.mark.slow
def test_a_scenario_that_selects_is_held_to_nothing_that_another_one_selects(tmp_path):
    nowhere = CHOICES.replace("[step]", "[moved]")
    paths = []
    for name, scenario in (("a", claim()), ("b", claim("other", nowhere, EXPECT.replace("2 MB", "9 GB")))):
        (tmp_path / name).mkdir()
        paths.append(chain.write_open(tmp_path / name, scenario))
    found = enumerate_choices(paths)
    selected = {row["scenario"]: row["selected"] for row in found.rows}
    assert selected == {"chain": 2, "other": 0}


def predicting(tmp_path, other):
    """A scenario whose selected settings are to predict another one, beside it."""
    chain.write_open(tmp_path, other, "other")
    return chain.write_open(tmp_path, claim(choices=CHOICES + "  predicts: [other.yaml]\n"))


PREDICTED = "other with what chain selects"
STEP = "  - {row: reactive, column: stall_ns, printed: 0.69 ms, within: 0.01, figure: stall, why: its stall}\n"


@pytest.mark.slow
def test_other_scenarios_are_run_with_the_settings_that_are_selected_alone(tmp_path):
    found = enumerate_choices([predicting(tmp_path, claim("other", "", STEP))])
    points = [row for row in found.tables["points"] if row["scenario"] == PREDICTED]
    assert {(row["link"], row["who leaves first"]) for row in points} == {
        ("4 GB/s", "least recent"),
        ("4 GB/s", "oldest"),
    }
    for row in points:
        evict = {"least recent": "lru", "oldest": "fifo"}[row["who leaves first"]]
        (tmp_path / evict).mkdir()
        path = chain.write_open(tmp_path / evict, chain.SCENARIO.replace("evict: lru", f"evict: {evict}"))
        alone = hosim_api.run(path, policies=["reactive"])["reactive"].summary
        assert row["error"] == pytest.approx(alone["stall_ns"] / 690_000 - 1)
    told = found.rows[-1]
    assert (told["scenario"], told["settings"], told["selected"]) == (PREDICTED, 2, 2)
    held = sum(row["holds"] for row in points)
    assert f"its stall, 0.69 ms printed: holds for {held} of 2 selected settings." in found.sentences
    assert f"{PREDICTED}: 2 settings." in found.sentences
    assert f"{PREDICTED}: six layers" in str(found)


@pytest.mark.slow
def test_settings_that_another_scenario_cannot_state_are_told(tmp_path):
    other = claim("other", "", STEP).replace("  - {policy: reactive, options: {evict: lru, look_ahead: 0}}\n", "")
    found = enumerate_choices([predicting(tmp_path, other.replace("row: reactive", "row: static"))])
    assert {row["scenario"] for row in found.tables["points"]} == {"chain"}
    assert found.sentences[-1].startswith("2 combinations of choices cannot be built, such as: ")


def test_a_scenario_that_is_to_be_predicted_is_read_before_anything_runs(tmp_path):
    path = chain.write_open(tmp_path, claim(choices=CHOICES + "  predicts: [deepseek_v3_nsa_decoed]\n"))
    with pytest.raises(ConfigError, match=r"did you mean 'deepseek_v3_nsa_decode'\?"):
        enumerate_choices([path])


def test_a_scenario_that_is_to_be_predicted_prints_something(tmp_path):
    with pytest.raises(ConfigError, match=r"what is predicted is another .* which prints numbers .* 'other.yaml'"):
        enumerate_choices([predicting(tmp_path, chain.SCENARIO.replace("name: chain", "name: other"))])


@pytest.mark.slow
def test_what_is_printed_as_nothing_holds_where_there_is_nothing(tmp_path):
    none = "  - {row: static, column: recompute_ns, printed: 0 s, figure: again, why: what runs again}\n"
    found = enumerate_choices([chain.write_open(tmp_path, claim(expect=EXPECT + none))])
    again = found.rows[-1]
    assert (again["figure"], again["held"], again["ran"]) == ("again", 6, 6)


@pytest.mark.slow
def test_what_is_not_asked_for_is_not_computed_and_changes_nothing(tmp_path):
    loaded = catalog.resolve(chain.write(tmp_path))
    whole, step = (run_case(prepare(loaded, with_bounds=bounds))["reactive"].summary for bounds in (True, False))
    assert whole["gap_fraction"] > 0
    assert whole["least_peak_bytes"] > 0
    assert not {"bound_ns", "bounded_by", "gap_fraction", "least_peak_bytes"} & set(step)
    assert step == {column: whole[column] for column in step}


@pytest.mark.slow
def test_rows_that_set_the_same_share_a_machine_and_its_bounds(tmp_path):
    rows = "policies:\n" + "".join(
        f"  - {{policy: resident, label: {name}, set: {{links.*.bandwidth: {rate} GB/s}}}}\n"
        for name, rate in (("a", 2), ("b", 2), ("c", 8))
    )
    text = chain.SCENARIO.split("policies:")[0] + rows + "assumed:\n  budget: a test\n  links.*.bandwidth: a test\n"
    case = prepare(catalog.resolve(chain.write_open(tmp_path, text)))
    assert case.for_row("a") is case.for_row("b")
    assert case.for_row("c") is not case.for_row("a")
    assert case.for_row("static") is case


@pytest.mark.slow
def test_the_table_is_told_and_the_points_are_written(found, tmp_path):
    found.write(tmp_path / "out")
    assert "Selected settings" in str(found)
    assert len((tmp_path / "out" / "points.csv").read_text().splitlines()) == 13
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["rows"]


POLICIES = """\
  selects: [step]
  choices:
    - {choice: policy, fields: [scenario.policies.1.policy], values: [reactive, lookahead], why: a test}
    - choice: options
      fields: [scenario.policies.1.options]
      values: {least recent: {evict: lru}, oldest: {evict: fifo}, few ops ahead: {distance: 2}}
      why: a test
"""


@pytest.mark.slow
def test_combinations_that_cannot_be_are_no_settings(tmp_path):
    scenario = claim(choices=POLICIES).replace("policy: reactive, opt", "policy: reactive, label: reactive, opt")
    found = enumerate_choices([chain.write_open(tmp_path, scenario)])
    assert {(row["policy"], row["options"]) for row in found.tables["points"]} == {
        ("reactive", "least recent"),
        ("reactive", "oldest"),
        ("lookahead", "few ops ahead"),
    }
    assert found.sentences[-1].startswith("3 combinations of choices cannot be built, such as: policy 'reactive'")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("8 GB/s]", "8 furlongs]", r"choices\.0 \(link: 8 furlongs\): a rate is needed"),
        ("options.evict]", "policy]", "a policy is one that hosim has, found 'lru'"),
        ("oldest: fifo", "oldest: banana", "option 'evict': .* found 'banana'"),
        ("8 GB/s]", "4 GB/s]", r"choices\.0\.values: a value is listed once.*'?4 GB/s'? twice"),
        ("oldest: fifo", "the same: lru", r"choices\.1\.values: a value is listed once.*'lru' twice"),
        ("choice: who leaves first", "choice: link", "each choice has a name of its own, found 'link' twice"),
        ("[step]", "[step]\n  predicts: [scenario.yaml]", "predicted is another scenario, .* found 'scenario.yaml'"),
    ],
)  # fmt: skip
def test_what_would_only_make_settings_fewer_is_refused_before_anything_runs(monkeypatch, tmp_path, old, new, message):
    monkeypatch.setattr("choices.judged_setting", None)
    assert old in CHOICES
    scenario = claim(choices=CHOICES.replace(old, new)).replace(
        "policy: reactive,", "policy: reactive, label: reactive,"
    )
    with pytest.raises(ConfigError, match=message):
        enumerate_choices([chain.write_open(tmp_path, scenario)])


RATIO = "  - {row: reactive, over: 2 ms, printed: -5 %, figure: saved, why: what is saved}\n"
OTHER = "  - {row: reactive, column: moved_d2h_bytes + moved_h2d_bytes, printed: 4 MB, figure: both, why: both ways}\n"


@pytest.mark.slow
def test_a_figure_that_is_made_of_what_selects_follows_and_predicts_nothing(tmp_path):
    found = enumerate_choices([chain.write_open(tmp_path, claim(expect=EXPECT + RATIO + OTHER))])
    assert {row["figure"]: row["role"] for row in found.rows} == {
        "step": "selects",
        "moved": "alike",
        "saved": "follows",
        "both": "alike",
    }
    (said,) = (one for one in found.sentences if one.startswith("what is saved"))
    what = "follows from what selects, 2 of 2 selected settings; of all, for 2 of 6 (33 %)."
    assert said == f"what is saved, -5 % printed: {what}"


@pytest.mark.slow
def test_a_figure_that_is_the_same_in_all_settings_depends_on_no_choice(tmp_path):
    """It is told so, and not as if it had held for one setting after another."""
    wrong = "  - {row: static, column: moved_d2h_bytes, printed: 9 MB, figure: planned, why: what a plan moves}\n"
    found = enumerate_choices([chain.write_open(tmp_path, claim(expect=EXPECT + wrong))])
    assert "bytes that move, 2 MB printed: holds, and depends on none of these choices." in found.sentences
    assert "what a plan moves, 9 MB printed: does not hold, and depends on none of these choices." in found.sentences
    table = str(found).split("\n\n")[1]
    assert [line.split("  ")[-5].strip() for line in table.splitlines()[2:]] != []
    lines = {line.strip().split("  ")[0]: line for line in table.splitlines()[1:]}
    assert "2 of 6" in lines["the step"]
    assert "any choice" in lines["bytes that move"]
    assert "no choice" in lines["what a plan moves"]
    assert all("alike" in lines[name] for name in ("bytes that move", "what a plan moves"))


@pytest.mark.slow
def test_ratios_of_two_rows_follow_if_both_rows_select(tmp_path):
    rest = "  - {row: static, printed: 1.6 ms, within: 0.2, figure: planned, why: the planned step}\n"
    ratio = "  - {row: reactive, over: static, printed: 1.2x, within: 0.4, figure: slower, why: slower}\n"
    for selects, role in (("[step, planned]", "follows"), ("[step]", "")):
        scenario = claim(choices=CHOICES.replace("[step]", selects), expect=EXPECT + rest + ratio)
        found = enumerate_choices([chain.write_open(tmp_path, scenario)])
        assert found.rows[-1]["role"] == role


def test_settings_with_equal_figures_count_once(found):
    """The two orders of leaving differ in nothing on a chain."""
    assert found.sentences[1] == "Settings whose figures that select are equal count once: 1 of 3 (33 %)."
    assert "Selected settings; 1 outcome\n" in str(found)


@pytest.mark.slow
def test_settings_whose_peak_is_above_what_the_device_has_are_told_apart(tmp_path):
    """Rows may have more room than the machine: such a peak is told, and fits no device."""
    room = """\
  selects: [peak]
  choices:
    - {choice: device, fields: [tiers.hbm.capacity], values: [5 MB, 10 MB], why: a test}
    - choice: room
      fields: [scenario.policies.0.set]
      values: {less: {tiers.hbm.capacity: 80 MB}, more: {tiers.hbm.capacity: 90 MB}}
      why: a test
"""
    peak = "  - {row: resident, column: peak_hbm_bytes, printed: 7 MB, within: 0.2, figure: peak, why: the peak}\n"
    scenario = claim(choices=room, expect=peak).replace("budget: 4.3 MB\n", "")
    scenario = scenario.replace("- resident\n", "- {policy: resident, set: {tiers.hbm.capacity: 90 MB}}\n")
    scenario = scenario.replace("  budget: room for four activations\n", "  tiers.hbm.capacity: a test\n")
    found = enumerate_choices([chain.write_open(tmp_path, scenario)])
    assert [(row["device"], row["fits"], row["selected"]) for row in found.tables["points"]] == [
        ("5 MB", False, True),
        ("5 MB", False, True),
        ("10 MB", True, True),
        ("10 MB", True, True),
    ]
    (first, _, said, *_) = found.sentences
    assert first == "chain: 2 of 2 settings that fit the device (100 %; 4 are listed) reproduce the peak together."
    assert said == "2 of 4 (50 %) fit no device, as a peak is above what it has."


def settings(errors, held):
    """Of two figures that select, each with a tolerance of 5 %."""
    alike = {"role": "selects", "within": 0.05, "fits": True}
    return [
        [alike | {"error": error - 1, "selected": own, "holds": own} for error in pair]
        for pair, own in zip(errors, held, strict=True)
    ]


def test_a_placebo_counts_what_figures_that_nobody_printed_would_have_hit():
    """A grid of settings so dense that each placebo hits, and one so thin that hardly any does."""
    dense = [(1.03**a, 1.03**a * 1.03**b) for a in range(20) for b in range(20)]
    (said,) = choices._placebo(settings(dense, [True, *[False] * 399]))
    assert said.startswith("Placebo: for 100 % of 1,024 other sets of figures, over the middle nine tenths")
    assert "some setting matches, too; for 100 % of them 1 or more do" in said
    thin = [(3.0**a, 3.0**a * 3.0**b) for a in range(4) for b in range(4)]
    (said,) = choices._placebo(settings(thin, [True] * 4 + [False] * 12))
    share = float(re.search(r"^Placebo: for ([\d.]+) % of", said)[1])
    assert 0 < share < 10
    assert "; for 0 % of them 4 or more do" in said


def test_a_placebo_that_is_hit_as_often_as_its_window_is_wide():
    """One figure, a tight cluster at each whole power of two: a window of 5 % is hit for a known share of the range."""
    ends = [2.0**power for power in range(11)]
    (said,) = choices._placebo(settings([(end,) for end in ends], [True, *[False] * 10]))
    width = math.log(1 / 0.95) + math.log(1 / 0.95)
    share = float(re.search(r"^Placebo: for ([\d.]+) % of", said)[1])
    assert share == pytest.approx(100 * width / math.log(2), abs=2)


@pytest.mark.parametrize("errors", [[], [(1.0, 1.0)], [(0.0, 1.0), (1.0, 2.0)]])
def test_no_placebo_where_there_is_no_range(errors):
    assert choices._placebo(settings(errors, [False] * len(errors))) == []


@pytest.mark.slow
def test_what_was_counted_before_is_held_against_what_is_counted_now(tmp_path, found):
    same, other = found.sentences[0], "chain: 3 of 6 settings (50 %) reproduce the step together."
    record = f"  counted:\n    - '{same}'\n    - '{other}'\n  source"
    again = enumerate_choices([chain.write_open(tmp_path, claim().replace("  source", record, 1))])
    assert again.sentences[len(found.sentences) :] == [f"chain records otherwise: {other}"]


@pytest.mark.slow
def test_without_figures_that_select_settings_are_counted(tmp_path):
    found = enumerate_choices([chain.write_open(tmp_path, claim(choices=CHOICES.replace("[step]", "[]")))])
    assert found.sentences == ["chain: 6 settings."]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ("  choices: []\n", "a claim lists choices, and prints numbers"),
        (CHOICES.replace("links.*", "lines.*"), "did you mean 'links'"),
        (CHOICES.replace("[2 GB/s, 4 GB/s, 8 GB/s]", "[2 GB/s]"), "choices.0.values"),
    ],
)
def test_what_cannot_be_chosen_is_refused(tmp_path, choices, message):
    with pytest.raises(ConfigError, match=message):
        enumerate_choices([chain.write_open(tmp_path, claim(choices=choices))])


DEPLOYMENT = """\
schema: hosim/scenario/1
name: deployment
title: a deployment
hardware: cloudmatrix384_node
workload: deepseek_v3_nsa_prefill
policies:
  - {policy: resident, set: {tiers.hbm.capacity: 2 TB}}
  - {policy: static, label: offloaded, options: {move: [kv_cache]}, set: {tiers.hbm.capacity: 2 TB}}
assumed: {tiers.hbm.capacity: a test}
claim:
  sentence: it peaks at so much
  source: table 3
  selects: [peak, offloaded]
  screens: peak
  choices:
    - {choice: layers, fields: [workload.model.layers], values: [4, 5], why: a test}
    - {choice: weights, fields: [workload.dtypes.weights], values: [fp8, bf16], why: a test}
    - {choice: ranks, fields: [workload.model.feed_forward.ranks], values: [16, 32], why: a test}
    - {choice: chunks, fields: [workload.chunk], values: [65536, 32768], why: a test}
expect:
  - {row: resident, column: peak_hbm_bytes, printed: 47 GB, figure: peak, kind: shown, why: the peak}
  - {row: offloaded, column: peak_hbm_bytes, printed: 45.5 GB, within: 0.0135, figure: offloaded, kind: shown, why: it}
"""


def deployment(tmp_path, *changes):
    """The scenario with what is to be changed in it."""
    text = DEPLOYMENT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    tmp_path.mkdir(exist_ok=True)
    return chain.write_open(tmp_path, text, "deployment")


@pytest.mark.slow
def test_settings_that_cannot_have_a_peak_are_not_run(tmp_path):
    """By what moves nothing, and by what a plan that moves the cache alone leaves; the same are selected."""
    every = enumerate_choices([deployment(tmp_path / "a", ("  screens: peak\n", ""))])
    found = enumerate_choices([deployment(tmp_path / "b")])
    names = [one.choice for one in opened(catalog.resolve(tmp_path / "b" / "deployment.yaml")).claim.choices]

    def settings_of(one, figure, key):
        rows = [row for row in one.tables["points"] if row["figure"] == figure and row[key]]
        return {tuple(row[name] for name in names): row["error"] for row in rows}

    near, ran = settings_of(every, "peak", "holds"), settings_of(found, "peak", "holds")
    selected = settings_of(every, "offloaded", "selected")
    assert len(selected) < len(ran) == len(found.tables["points"]) / 2 < len(near) < 16
    assert ran.items() <= near.items()
    assert settings_of(found, "offloaded", "selected") == selected
    said = f"{len(selected)} of 16 settings ({percent(len(selected) / 16)}) reproduce the peak and it together"
    assert found.sentences[0] == f"deployment: {said}; {len(ran)} were run, the others cannot."


def test_where_no_setting_has_the_peak_nothing_runs(tmp_path):
    found = enumerate_choices([deployment(tmp_path, ("47 GB, figure: peak", "9 TB, figure: peak"))])
    assert found.sentences == ["deployment: 0 of 16 settings may have the peaks that select."]
    assert found.tables["points"] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("screens: peak", "screens: offloaded"),
        ("screens: peak", "screens: nothing"),
        ("selects: [peak, offloaded]", "selects: [offloaded]"),
        ("column: peak_hbm_bytes, printed: 47 GB, figure: peak", "printed: 5 s, figure: peak"),
    ],
)
def test_what_screens_is_a_peak_of_what_moves_nothing_and_selects(monkeypatch, tmp_path, old, new):
    monkeypatch.setattr("choices.judged_setting", None)
    with pytest.raises(ConfigError, match=r"screens: a screening figure is one of selects: peak_hbm_bytes of one row"):
        enumerate_choices([deployment(tmp_path, (old, new))])

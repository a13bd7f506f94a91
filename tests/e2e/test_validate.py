"""`hosim validate`: the table, the exit code, and what is refused."""

import json
import re

import chain
import pytest

import simulator as hosim_api
from simulator.errors import ConfigError

CLAIM = "claim: {sentence: a step takes 1.5 ms, source: a paper}\n"
CLAIM_LONG = "claim:\n  sentence: a step takes 1.5 ms\n  source: a paper"
HELD = "1 printed figure predicted and held: 1"
STEP = "expect:\n  - {row: static, printed: 1.5 ms, within: 0.01, figure: step, why: the step}\n"
FIT = (
    "set:\n  compute.achieved_fraction.default: 1.0\nfitted:\n  compute.achieved_fraction.default: "
    "{parameter: rate, figure: FIGURE, why: so that it comes out}\n"
)


def write(folder, *more):
    return chain.write(folder, scenario=chain.SCENARIO + CLAIM + "".join(more))


def test_a_figure_that_holds(hosim, tmp_path):
    done = hosim("validate", write(tmp_path, STEP))
    assert (done.code, done.err) == (0, "")
    source, head, line, *_ = done.out.splitlines()
    assert source == "a paper"
    assert head.split() == ["claim", "printed", "obtained", "difference", "tolerance", "verdict", "fitted"]
    assert line.strip().split("  ")[0] == "the step"
    assert line.split()[1:] == ["step", "1.5", "ms", "1.50", "ms", "0", "%", "1.0", "%", "holds", "-"]
    assert done.out.endswith(f"\n{HELD} with nothing fitted or chosen, off by at most 0 %.\n")


def test_what_is_shown_says_its_setting_its_range_and_when_both_agree(hosim, tmp_path):
    stated = "kind: shown, about: 1.5 ms, range: [1 ms, 2 ms], agrees_if: a link is as fast"
    claim = CLAIM.replace("source: a paper", "source: a paper, setting: six layers")
    expect = STEP.replace("printed: 1.5 ms", f"printed: 1.2 ms, {stated}")
    path = chain.write(tmp_path, scenario=chain.SCENARIO + claim + expect)
    done = hosim("validate", path)
    assert (done.code, done.err) == (0, "")
    assert re.search(r"the step +1\.2 ms +1\.50 ms \(1\.00 ms to 2\.00 ms\) +\+25 % +- +shown", done.out)
    shown = "Shown in a setting that no source states\n  chain: six layers\n  the step: agrees if a link is as fast\n"
    assert shown in done.out
    (row,) = json.loads(hosim("validate", path, "--json").out)["rows"]
    assert (row["range"], row["setting"], row["agrees_if"]) == (
        "1.00 ms to 2.00 ms",
        "six layers",
        "a link is as fast",
    )


def test_half_the_bandwidth_breaks_it(hosim, tmp_path):
    done = hosim("validate", write(tmp_path, STEP), "--scale", "links.*.bandwidth=0.5")
    assert done.code == 1
    assert "BROKEN: chain: static: step_ns must be about 1.50 ms (within 1.0 %), found" in done.out


def test_what_is_not_printed_must_hold_too_and_is_a_line_only_if_it_fails(hosim, tmp_path):
    path = write(tmp_path, STEP, "  - {row: static, faster_than: reactive, why: a plan beats a runtime}\n")
    assert "a plan beats a runtime" not in hosim("validate", path).out
    path = write(tmp_path, STEP, "  - {row: reactive, faster_than: static, why: a runtime beats a plan}\n")
    done = hosim("validate", path)
    assert done.code == 1
    assert "a runtime beats a plan" in done.out


def test_what_something_is_fitted_to_is_not_predicted(hosim, tmp_path):
    path = write(tmp_path, STEP, FIT.replace("FIGURE", "step"))
    for command in ("validate", "check", "run"):
        done = hosim(command, path)
        assert done.code == 1
        assert "expect.0.figure: no scenario predicts a printed figure that something in it was fitted to" in done.err
        assert "found 'step', which compute.achieved_fraction.default of chain was fitted to" in done.err


def test_a_fit_is_held_and_named(hosim, tmp_path):
    path = write(tmp_path, STEP.replace("figure:", "kind: fitted, figure:"), FIT.replace("FIGURE", "step"))
    done = hosim("validate", path)
    assert done.code == 0
    assert "rate  compute.achieved_fraction.default, to step: so that it comes out" in done.out
    path = write(tmp_path, STEP.replace("figure:", "kind: fitted, figure:"))
    assert "a fitted figure is named in the table fitted of the scenario" in hosim("validate", path).err


def test_free_parameters_are_counted_by_the_figures_that_hold_and_need_them(hosim, tmp_path):
    fit = FIT.replace("FIGURE", "other")
    done = hosim("validate", write(tmp_path, STEP, fit))
    assert done.out.endswith(f"\n{HELD} with 1 number fitted (rate), off by at most 0 %.\n")
    done = hosim("validate", write(tmp_path, STEP.replace("figure:", "kind: shown, figure:"), fit))
    assert "\n0 printed figures predicted and held.\n" in done.out


def test_a_figure_that_is_shown_once_more_still_holds(hosim, tmp_path):
    again = "  - {row: reactive, kind: shown, printed: 1.5 ms, figure: step, why: the same of a runtime}\n"
    done = hosim("validate", write(tmp_path, STEP, again))
    assert re.search(r"^ *the same of a runtime +1\.5 ms .* shown +-$", done.out, re.MULTILINE)
    assert done.out.endswith(f"\n{HELD} with nothing fitted or chosen, off by at most 0 %.\n")


def test_only_what_stands_for_a_headline_is_run(hosim, tmp_path):
    more = "  - {row: reactive, faster_than: static, why: a runtime beats a plan}\n"
    path = write(tmp_path, STEP.replace("figure:", "headline: true, figure:"), more)
    assert hosim("validate", path).code == 1
    done = hosim("validate", path, "--headline")
    assert (done.code, done.out.splitlines()[-1]) == (0, "Of 1 headline expectation 1 holds.")
    done = hosim("validate", path, "--headline", "--scale", "links.*.bandwidth=0.5")
    assert (done.code, "Of 1 headline expectation 1 BROKEN." in done.out) == (1, True)
    done = hosim("validate", write(tmp_path, STEP), "--headline")
    assert (done.code, "expects something of a row, found nothing" in done.err) == (1, True)


def test_what_was_chosen_to_explain_is_told_and_written(hosim, tmp_path):
    path = write(tmp_path, "  chosen: {two steps: no other number explains it}\n", STEP)
    path.write_text(path.read_text().replace("claim: {sentence: a step takes 1.5 ms, source: a paper}", CLAIM_LONG))
    done = hosim("validate", path, "--out", tmp_path / "out")
    assert done.out.endswith(
        f"\nChosen\n  two steps  no other number explains it\n\n{HELD} with 1 choice that explains (two steps), "
        "off by at most 0 %.\n"
    )
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["rows"][0]["chosen"] == "two steps"


@pytest.mark.usefixtures("pictures_are_blank")
def test_the_page_has_the_count_the_table_and_its_notes(hosim, tmp_path):
    missed = (
        "  - {row: static, column: peak_hbm_bytes, printed: 9 MB, figure: peak, why: the <peak>, missed: not known}\n"
    )
    path = write(tmp_path, STEP, missed, FIT.replace("FIGURE", "other"))
    done = hosim("validate", path, "--out", tmp_path / "out")
    assert (done.code, done.err) == (0, "")
    files = {p.name for p in (tmp_path / "out").iterdir()}
    assert files > {"report.html", "summary.csv", "summary.json", "scenario.yaml"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"<p>{HELD} with 1 number fitted (rate), off by at most 0 %.</p>" in page
    assert "<p>Of 2 printed figures 1 missed.</p>" in page
    assert '<td class="left">the &lt;peak&gt;</td>' in page
    assert all(f"<h2>{head}</h2>" in page for head in ("a paper", "Fitted", "Missed"))
    assert "the &lt;peak&gt;: not known</li>" in page
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["rows"][0]["verdict"] == "holds"
    assert hosim("validate", path, "--out", tmp_path / "out").code == 0, "an earlier one is replaced"


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ("links.*.bandwidth", "a change is a key, '=' and a value, found 'links.*.bandwidth'"),
        ("links.*.bandwidth=-1", "scale: figures are multiplied by a number from 0 on"),
        ("links.*.bandwith=2", "scale (links.*.bandwith: 2x): a change names a field of the hardware"),
        ("links.*.source=2", "scale (links.*.source: 2x): a figure that is multiplied is a number, found 'hbm'"),
    ],
)
def test_a_scale_that_cannot_be(hosim, tmp_path, scale, message):
    done = hosim("validate", write(tmp_path, STEP), "--scale", scale)
    assert done.code == 1
    assert message in done.err


def test_from_python_it_is_a_table(tmp_path):
    found = hosim_api.validate([write(tmp_path, STEP)])
    assert found.table[["claim", "printed", "obtained", "verdict"]].to_numpy().tolist() == [
        ["the step", "1.5 ms", "1.50 ms", "holds"]
    ]
    assert not found.is_broken
    with pytest.raises(ConfigError, match="a claim is named to be validated, found none"):
        hosim_api.validate([])


def test_without_printed_figures_it_only_judges(hosim, tmp_path):
    expect = "expect:\n  - {row: static, faster_than: reactive}\n"
    done = hosim("validate", chain.write(tmp_path, scenario=chain.SCENARIO + expect))
    assert (done.code, done.out) == (0, "No figure is printed; of 1 expectation none fails.\n")
    done = hosim("validate", chain.write(tmp_path))
    assert done.code == 1
    assert "a scenario that is validated expects something of a row, found nothing; add expect, or run it" in done.err

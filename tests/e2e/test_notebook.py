"""What a notebook shows: results as tables, and sliders whose answers are those of a run."""

from __future__ import annotations

import sys

import chain
import pytest

import simulator as hosim


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    return chain.write(tmp_path_factory.mktemp("notebook"))


def test_results_show_themselves_as_sentences_and_tables(scenario):
    results = hosim.run(scenario)
    shown = results._repr_html_()
    assert all(f"<p>{sentence}</p>".replace("'", "&#39;") in shown for sentence in results.sentences)
    assert shown.count("<table>") >= 2
    assert all(f">{label}</td>" in shown for label in results)
    one = results["static"]._repr_html_()
    assert ">static</td>" in one
    assert ">reactive</td>" not in one
    assert " short" in results["resident"]._repr_html_()


def test_sweeps_and_differences_show_themselves(scenario, tmp_path):
    sweep = hosim.sweep(scenario, {"links.*.bandwidth": "10 GB/s, 20 GB/s"}, workers=1, cache=False)
    assert sweep._repr_html_().count("<td") == 6 * len(sweep.rows) + len(sweep.rows)
    assert sweep.sentences[0] in sweep._repr_html_()
    for name, bandwidth in (("old", "2 GB/s"), ("new", "20 GB/s")):
        ran = hosim.run(scenario, set={"links.*.bandwidth": bandwidth}, policies=["static"])
        (tmp_path / name).write_bytes(ran.json())
    found = hosim.diff(tmp_path / "old", tmp_path / "new")
    assert found.conclusion in found._repr_html_()
    assert "<h2>static</h2>" in found._repr_html_()


def test_what_a_document_says_cannot_become_markup(tmp_path):
    text = chain.SCENARIO.replace("- static", "- {policy: static, label: a<b>c}")
    shown = hosim.run(chain.write(tmp_path, scenario=text), policies=["a<b>c"])._repr_html_()
    assert "a&lt;b&gt;c" in shown
    assert "<b>c" not in shown


@pytest.mark.slow
def test_sliders_answer_as_a_run_does():
    widget = hosim.interact("tiny_train_910c")
    *sliders, shown = widget.children
    named = {slider.description: slider for slider in sliders}
    assert list(named) == ["bandwidth", "capacity", "sequence"]
    usual = hosim.run("tiny_train_910c", policies=["static"])["static"].summary["step_ns"]
    assert widget.ask.result["static"].summary["step_ns"] == usual
    named["bandwidth"].value = 2
    twice = hosim.run("tiny_train_910c", policies=["static"], set={"links.*.bandwidth": "67.2 GB/s"})
    assert widget.ask.result["static"].summary["step_ns"] == twice["static"].summary["step_ns"] < usual
    assert twice.sentences[0].split(";")[0].split(",")[0] in shown.value
    assert ("67.2 GB/s", 2) in named["bandwidth"].options
    named["bandwidth"].value = 1
    named["capacity"].value = 300_000_000
    assert "resident" not in widget.ask.result
    assert widget.ask.result["static"].summary.get("step_ns") != usual
    named["capacity"].value = 600_000_000
    half = named["sequence"].options[2]
    named["sequence"].value = half[1]
    said = hosim.run("tiny_train_910c", policies=["static"], set={"workload.sequence": half[1]})["static"].summary
    assert widget.ask.result["static"].summary["step_ns"] == said["step_ns"] < usual
    named["sequence"].value = widget.ask.usual["sequence"]
    assert widget.ask.result["static"].summary["step_ns"] == usual


def test_a_graph_of_ones_own_has_no_slider_for_its_sequence(scenario):
    assert [slider.description for slider in hosim.interact(scenario).children[:-1]] == ["bandwidth", "capacity"]


def test_what_is_asked_is_checked(scenario):
    with pytest.raises(hosim.ConfigError, match="statik"):
        hosim.interact(scenario, policy="statik")


def test_without_ipywidgets_one_is_told_what_to_install(scenario, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(hosim.ConfigError, match=r"pip install 'hosim\[notebook\]'"):
        hosim.interact(scenario)

"""A bench that misses a bar says so, also by its exit code; and the page shows what was missed."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench import bars, engine, offsets, ranks
from pages import ROOT

BENCH = Path(bars.__file__).parent


def test_a_figure_misses_its_bar_on_one_side_only():
    assert bars.missed({"a": 1.0, "b": 2.0}, least={"a": 1.0}, most={"b": 2.0}) == []
    with pytest.raises(KeyError):
        bars.missed({"a": 1.0}, most={"b": 2.0})
    found = bars.missed({"a": 0.99, "b": 2.01}, least={"a": 1.0}, most={"b": 2.0})
    assert found == ["a 0.99 (must be at least 1)", "b 2.01 (must be at most 2)"]
    assert bars.told(found) == f"missed: {found[0]}; {found[1]}"
    assert bars.told([]) == "every bar is met"


def measured(factor):
    """Each case as fast as its bar times a factor."""
    rates = {name: factor * bar for name, bar in engine.LEAST.items()} | {"pool1": factor * engine.LEAST["pool384"]}

    def fresh(name, ops, runs):
        more = {"us_per_op": 1.0, "bytes_per_op": 100.0}
        return {"R": rates[name], "R_least": rates[name], "R_most": rates[name], **more}

    return fresh


@pytest.mark.parametrize("options", [[], ["--ranks"], ["--json"], ["--ranks", "--json"]])
def test_an_engine_that_is_too_slow_ends_with_1(options, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["engine.py", *options])
    monkeypatch.setattr(engine, "fresh", measured(1))
    assert engine.main() == 0
    capsys.readouterr()
    monkeypatch.setattr(engine, "fresh", measured(0.99))
    assert engine.main() == 1
    said = capsys.readouterr().out
    misses = json.loads(said)["missed"] if "--json" in options else said.splitlines()[-1].split(";")
    assert len(misses) == (2 if "--ranks" in options else 3)


@pytest.mark.parametrize(("processor_s", "code"), [(60.0, 0), (60.01, 1)])
def test_many_ranks_are_judged_by_processor_time(processor_s, code, monkeypatch, capsys):
    row = {"processor_seconds": processor_s, "seconds": 1e9, "ops": 1, "step_ns": 1, "base_bytes": 0, "most_bytes": 1}
    monkeypatch.setattr("sys.argv", ["ranks.py", "8"])
    monkeypatch.setattr(ranks, "_apart", lambda count: {"ranks": count, **row})
    assert ranks.main() == code
    assert ("missed: 8 ranks" in capsys.readouterr().out) is bool(code)


@pytest.mark.parametrize(("power", "code"), [(1.1, 0), (1.2, 1)])
def test_a_search_for_offsets_that_grows_too_fast_ends_with_1(power, code, monkeypatch, capsys):
    monkeypatch.setattr(offsets, "nested", lambda count: count)
    monkeypatch.setattr(offsets, "drawn", lambda count: count)
    monkeypatch.setattr(offsets, "seconds", lambda search, count: (count**power, 1.0))
    assert offsets.main() == code
    assert ("missed: spread nested" in capsys.readouterr().out) is bool(code)


@pytest.mark.parametrize(("codes", "code", "said"), [
    ([0, 0], 0, "every bar is met"), ([0, 1], 1, "missed: b.py --x"), ([2, 1], 1, "missed: a.py; b.py --x"),
])  # fmt: skip
def test_all_run_and_those_that_miss_are_named(codes, code, said, monkeypatch, capsys):
    left = iter(codes)
    monkeypatch.setattr(bars, "PROGRAMS", ("a.py", "b.py --x"))
    monkeypatch.setattr(bars.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=next(left)))
    assert bars.main() == code
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_every_program_that_has_bars_is_run_before_a_release():
    """Whoever judges does so here, or ends by itself with what was missed."""
    judging = {path.name for path in BENCH.glob("*.py") if re.search(r"\bmissed\b", path.read_text(encoding="utf-8"))}
    assert {program.split()[0] for program in bars.PROGRAMS} == judging - {"bars.py"}
    for path in BENCH.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert path.name in judging or not re.search(r"\b(MUST|MOST|LEAST)\b|\(must", text), path.name


PAGE = (ROOT / "docs" / "evidence" / "speed.md").read_text(encoding="utf-8")


def test_the_page_shows_what_is_missed():
    """The bars of the page are those of today, and the last line of a table names the figures that miss theirs."""
    one_rank, pool = re.findall(r"measured by: python tests/bench/engine.py.*?```text\n(.*?)```", PAGE, re.DOTALL)
    rows = [line.split() for line in one_rank.splitlines()[1:4]] + [
        [name, rate, "", "", must] for name, rate, must in re.findall(r"^(\w+) +R (\S+) .* must (\S+),", pool, re.M)
    ]
    assert {name: float(must) for name, _, _, _, must, *_ in rows} == engine.LEAST
    growth, kept, over = (
        float(re.search(pattern, one_rank + pool)[1])
        for pattern in (r"costs (\S+) of one at 10k", r"takes (\S+) B, trace", r"costs (\S+) of one at one rank")
    )
    figures = {name: float(rate) for name, rate, *_ in rows}
    figures |= {"growth": growth, "bytes_per_op": kept, "ranks": over}
    named = [part.split()[0] for part in bars.missed(figures, least=engine.LEAST, most=engine.MOST)]
    told = " ".join(table.splitlines()[-1] for table in (one_rank, pool))
    assert re.findall(r"(\w+) \S+ \(must be", told) == named

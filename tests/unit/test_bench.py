"""A bench that misses a bar says so, also by its exit code; and the page shows what was missed."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import chakra_replay
import pytest
from bench import astra, bars, engine, mutants, offsets, ranks
from pages import ROOT

BENCH = Path(bars.__file__).parent


def test_what_mutants_break_is_in_the_program_once():
    assert mutants.mutants([])


def test_a_figure_misses_its_bar_on_one_side_only():
    assert bars.missed({"a": 1.0, "b": 2.0}, least={"a": 1.0}, most={"b": 2.0}) == []
    with pytest.raises(KeyError):
        bars.missed({"a": 1.0}, most={"b": 2.0})
    found = bars.missed({"a": 0.99, "b": 2.01}, least={"a": 1.0}, most={"b": 2.0})
    assert found == ["a 0.99 (must be at least 1)", "b 2.01 (must be at most 2)"]
    assert bars.told(found) == f"missed: {found[0]}; {found[1]}"
    assert bars.told([]) == "every bar is met"


@pytest.mark.parametrize("options", [[], ["--json"], ["--cases", "decode", "pool64"]])
@pytest.mark.parametrize(("factor", "growth", "most_bytes"), [(1, 1, 100), (0.99, 1, 100), (1, 1.01, 100), (1, 1, 101)])
def test_an_engine_that_is_too_slow_ends_with_1(factor, growth, most_bytes, options, monkeypatch, capsys):
    def apart(*, case="", alone=0, **_):
        if alone:
            return {"us_per_op": growth if alone == 1_000_000 else 1, "bytes_per_op": most_bytes}
        return {"R": factor * engine.LEAST[case], "simpy_us_per_op": 3.5}

    monkeypatch.setattr("sys.argv", ["engine.py", *options])
    monkeypatch.setattr(engine, "_apart", apart)
    missed = (2 if "decode" in options else len(engine.LEAST)) if factor < 1 else int(growth > 1 or most_bytes > 100)
    assert engine.main() == bool(missed)
    shown = capsys.readouterr().out
    misses = json.loads(shown)["missed"] if "--json" in options else shown.splitlines()[-1].split("must be")[1:]
    assert len(misses) == missed


@pytest.mark.parametrize(("share", "power", "missed"), [
    (0.4, 1.1, ""), (0.41, 1.1, "share"), (0.4, 1.12, "exponent"),
])  # fmt: skip
def test_many_ranks_are_judged_by_a_share_and_by_growth(share, power, missed, monkeypatch, capsys):
    def apart(count, engine):
        seconds = count**power * (share if engine == "compiled" else 1)
        return {"ranks": count, "ops": 1, "processor_seconds": seconds, "base_bytes": 0, "most_bytes": count}

    monkeypatch.setattr("sys.argv", ["ranks.py", "8", "1024"])
    monkeypatch.setattr(ranks, "_apart", apart)
    assert ranks.main() == bool(missed)
    assert [part.split()[0] for part in capsys.readouterr().out.splitlines()[-1].split(": ")[1:]] == [missed] * bool(
        missed
    )


@pytest.mark.parametrize(("speed", "missed"), [(5.0, 0), (4.99, 2)])
def test_beside_astra_sim_both_cases_are_judged(speed, missed, monkeypatch, capsys):
    found = {"compiled": speed, "compiled built": 1, "simpy": 1, "least": 1, "most": 9}
    monkeypatch.setattr("sys.argv", ["astra.py", __file__])
    monkeypatch.setattr(astra, "measured", lambda *_: found)
    assert astra.main() == bool(missed)
    assert capsys.readouterr().out.splitlines()[-1].count("must be") == missed
    monkeypatch.setattr("sys.argv", ["astra.py", "no-such-file"])
    assert astra.main() == 0
    assert "nothing is compared" in capsys.readouterr().out


@pytest.mark.parametrize("layers", [8, 40])
def test_what_astra_sim_runs_are_the_layers_of_the_bench(layers, tmp_path):
    """A scheduler of the tests, which does what ASTRA-sim does, ends when the engine does."""
    astra.write(tmp_path, "layers", 40)
    assert chakra_replay.replay_ns(tmp_path / "layers.0.et", 1, 0) == astra.hosim(layers, 9 * 40, "simpy")[2]


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
    shown = re.search(r"measured by: python tests/bench/engine.py.*?```text\n(.*?)```", PAGE, re.DOTALL)[1]
    rows = {
        name: (float(rate), float(must)) for name, rate, must in re.findall(r"^(\w+) +([\d.]+) +([\d.]+) ", shown, re.M)
    }
    assert {name: must for name, (_, must) in rows.items()} == engine.LEAST
    found = re.findall(r"(?:costs|takes) (\S+) .*\(must (\S+)\)", shown)
    assert [float(must) for _, must in found] == [*engine.MOST.values()]
    figures = {name: rate for name, (rate, _) in rows.items()}
    figures |= dict(zip(engine.MOST, (float(value) for value, _ in found), strict=True))
    named = [part.split()[0] for part in bars.missed(figures, least=engine.LEAST, most=engine.MOST)]
    assert re.findall(r"(\w+) \S+ \(must be", shown.splitlines()[-1]) == named

"""A bench that misses a bar says so, also by its exit code; and the page shows what was missed."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import chakra_replay
import pytest
from bench import astra, bars, engine, engines, offsets, ranks
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


@pytest.mark.parametrize(("growth", "most_bytes", "missed"), [
    (1.0, 100, ""), (1.01, 100, "growth"), (1.0, 101, "bytes_per_op"),
])  # fmt: skip
def test_the_compiled_engine_is_judged_by_growth_and_memory(growth, most_bytes, missed, monkeypatch, capsys):
    def apart(**asked):
        factor = growth if asked.get("alone") == 1_000_000 else 1
        alone = {"us_per_op": factor, "bytes_per_op": most_bytes}
        return alone | {"simpy [us an op]": 20, "compiled [us an op]": 1, "ratio": 20, "least": 20, "most": 20}

    monkeypatch.setattr("sys.argv", ["engines.py"])
    monkeypatch.setattr(engines, "_apart", apart)
    assert engines.main() == bool(missed)
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

"""The records of `tests/bench/measured.py`: their form, what stands on them, and errors that pages state."""

import re
from fnmatch import fnmatch
from statistics import mean, median

import pytest
import yaml
from bench import measured
from pages import ROOT

import simulator as hosim
from simulator import catalog

published = measured.published
RECORDS = published.records()
CONNECTOR = "vllm_h100_connector"


def errors(record, beginning):
    """Errors of the rows of a record whose case begins so."""
    (one,) = (each for each in RECORDS if each.record == record)
    rows = [row for row in one.rows if row.case.startswith(beginning)]
    assert rows
    return [found.error for found in measured.found_of([one.model_copy(update={"rows": rows})])]


def test_the_ratios_that_travel_are_of_these_records():
    """Which rows are predicted; that they come out so is held by the slow test."""
    shipped = yaml.safe_load(measured.RATIOS.read_text(encoding="utf-8"))
    counts: dict[str, dict[str, int]] = {}
    for record in RECORDS:
        for row in record.rows:
            if row.is_ == "predicted":
                of_class = counts.setdefault(row.pace, {})
                of_class[record.record] = of_class.get(record.record, 0) + 1
    assert {pace: {name: len(each) for name, each in own.items()} for pace, own in shipped.items()} == counts


@pytest.mark.slow
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.record)
def test_its_ratios_come_out_so(record):
    """Record by record, so that shards share them out."""
    found = [each for each in measured.found_of([record]) if each.row.is_ == "predicted"]
    shipped = yaml.safe_load(measured.RATIOS.read_text(encoding="utf-8")).items()
    of_record = {pace: {record.record: own[record.record]} for pace, own in shipped if record.record in own}
    assert measured.ratios_of(found) == of_record


def test_every_row_is_listed_and_the_page_sums_all_up():
    """Every printed figure of every record is a line of the command, and counts on the page."""
    for record in RECORDS:
        listed = "\n".join(measured.listed(record, {}))
        assert [row.case for row in record.rows if f"\n  {row.case} " not in listed] == []
    page = (ROOT / "docs" / "evidence" / "measurements.md").read_text(encoding="utf-8")
    kinds = [row.is_ for record in RECORDS for row in record.rows]
    counts = [kinds.count(kind) for kind in ("predicted", "calibrates", "missing")]
    told = "{} printed figures of {} records: {} predicted, {} used to calibrate, {} not expressible"
    assert f"\n{told.format(len(kinds), len(RECORDS), *counts)}\n" in page
    predicted = {record.record: sum(row.is_ == "predicted" for row in record.rows) for record in RECORDS}
    shown = {name: int(rows) for name, rows in re.findall(r"^(\w+) +(\d+) rows, median ", page, re.M)}
    assert shown == {name: count for name, count in predicted.items() if count} | {
        name: shown[name] for name in ("times", "memory", "all")
    }
    assert shown["all"] == sum(predicted.values()) == shown["times"] + shown["memory"]


def test_the_error_over_all_rows_is_stated_as_it_came_out():
    """The README and the page on trust say what the command printed last."""
    page = (ROOT / "docs" / "evidence" / "measurements.md").read_text(encoding="utf-8")
    rows, error, fast = re.search(r"^all +(\d+) rows, median +([\d.]+)%, .*? (\d+)% too fast$", page, re.M).groups()
    count = sum(int(rows) > 0 for rows in re.findall(r"^\w+ +(\d+) rows, median ", page, re.M)) - len(
        ("times", "memory", "all")
    )
    for path in (ROOT / "README.md", ROOT / "docs" / "evidence" / "trust.md"):
        text = " ".join(path.read_text(encoding="utf-8").split())
        beginning = f"over all {rows} predicted figures of {count} published records, the median error is {error} %"
        assert f"{beginning}, and {fast} % are too fast" in text, path.name


GOOD = {"case": "a", "printed": "3 ms", "pace": "pinned copies", "is": "predicted", "scenario": "s", "row": "static"}


@pytest.mark.parametrize(("change", "said"), [
    ({"printed": "3"}, "a number, a space and a unit"), ({"printed": "3 apples"}, "a number, a space and a unit"),
    ({"is": "missing"}, "a missing one none"), ({"is": "calibrates"}, "why says"), ({"first": 2.0}, "why says"),
    ({"tokens": 1}, "tokens are of a rate"), ({"pace": "memory"}, "is of sizes"), ({"printed": "3 GB"}, "is of sizes"),
    ({"pace": "copies"}, "rows.0.pace"), ({"colour": "red"}, "rows.0.colour: Extra"), ({"row": None}, "row: Input"),
    ({"scenario": None, "row": None, "x": 1}, "rows.0"),
])  # fmt: skip
def test_a_row_that_is_wrong_is_told_with_its_place(change, said, tmp_path):
    row = {key: value for key, value in (GOOD | change).items() if value is not None or key == "row"}
    document = {"record": "r", "title": "t", "source": "s", "date": "2026", "publisher": "p", "rows": [row]}
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(SystemExit, match=re.escape(said)) as told:
        published.read(path)
    assert str(told.value).startswith("r.yaml: rows.0")


def test_a_record_is_named_as_its_file_and_has_each_case_once(tmp_path):
    document = {"record": "r", "title": "t", "source": "s", "date": "2026", "publisher": "p", "rows": [GOOD]}
    path = tmp_path / "other.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(SystemExit, match="stem of the file, found 'r'"):
        published.read(path)
    path.write_text(yaml.safe_dump(document | {"record": "other", "rows": [GOOD, GOOD]}))
    with pytest.raises(SystemExit, match="found more of a"):
        published.read(path)


def found(record, unit, number, obtained, pace="pinned copies"):
    row = published.Row.model_validate(GOOD | {"printed": f"{number} {unit}", "pace": pace})
    return published.Found(RECORDS[0].model_copy(update={"record": record}), row, obtained)


def test_ratios_are_of_times_also_where_a_rate_is_printed():
    assert found("a", "ms", 3, 2).ratio == 1.5
    assert found("a", "tokens/s", 2, 3).ratio == 1.5
    assert found("a", "GB", 3, 2, "memory").ratio == 1.5
    assert published.Row.model_validate(GOOD | {"printed": "2 GB/s", "tokens": 3e9}).in_unit(1e9) == 3
    assert published.Row.model_validate(GOOD | {"printed": "2 tokens/s"}).in_unit(7) == 7


def test_a_record_weighs_as_much_as_another():
    assert measured.quantile([[1], [2] * 99], 0.5) == 1
    assert measured.quantile([[1], [2] * 99], 0.51) == 2
    assert measured.quantile([[3, 1, 2]], 0.9) == 3


def test_intervals_are_of_the_other_records():
    ratios = {"pinned copies": {"a": [1.0, 2.0], "b": [1.5, 2.5]}, "memory": {"a": [1.0]}}
    lines = [(inside, of) for _, inside, of in measured.held(ratios)]
    assert lines == [(1, 2), (1, 2), (0, 0)]


def test_a_figure_that_a_scenario_lacks_is_told():
    row = published.Row.model_validate(GOOD | {"scenario": "tiny_train_t4", "row": "none"})
    with pytest.raises(SystemExit, match="has no row 'none'"):
        measured._figure("a, b", row.parts[0], {("static", None): {}})
    with pytest.raises(SystemExit, match="the row is infeasible"):
        measured._figure("a, b", row.parts[0], {("none", None): {"status": "infeasible"}})


def has_more_bits(layer, layers):
    """Whether llama.cpp's quantizer has values and down projections of a layer in 6 bits (`use_more_bits`)."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


MIXED = [(record.record, name, each) for record in RECORDS for name, each in record.shared.items()
         if re.fullmatch("(mix|tied|down)[0-9][0-9]", name)]  # fmt: skip


@pytest.mark.parametrize(("record", "name", "dtypes"), MIXED, ids=lambda part: part if isinstance(part, str) else "")
def test_matrices_in_6_bits_are_those_that_the_quantizer_chooses(record, name, dtypes):
    """Each mixture is named by its number of layers; of DeepSeek-V3 only experts are, which its first 3 layers lack."""
    layers, ops = int(name[-2:]), ["ffn.down"] if name.startswith("down") else ["ffn.down", "attn.v"]
    for layer in range(3 if name.startswith("down") else 0, layers):
        for op in ops:
            is_listed = any(fnmatch(f"L{layer:02}/{op}.weight", pattern) for pattern in dtypes)
            assert is_listed == has_more_bits(layer, layers), (record, name, layer, op)


ADAM = {"deepspeed_zero3": (0.22, 0.51, 1.03, 2.41, 2.57), "eager_pytorch": (1.39, 2.75, 5.71, 11.93, 14.76)}
"""ZeRO-Offload, arXiv 2101.06840, table 4: seconds of CPU-Adam and of PyTorch's for 1, 2, 4, 8 and 10 B parameters."""


@pytest.mark.parametrize("software", ADAM)
def test_adam_on_a_host_takes_what_its_authors_print(software):
    loaded = catalog.resolve("zero_offload_v100", {"scenario.software": software, "workload.model.layers": 4})
    model = loaded.workload.model
    parameters = 12 * model.layers * model.hidden**2 + model.vocabulary * model.hidden
    took = hosim.run(loaded, policies=["static"])["static"].summary["host_compute_ns"]
    printed = mean(seconds / billions for seconds, billions in zip(ADAM[software], (1, 2, 4, 8, 10), strict=True))
    assert took / parameters == pytest.approx(printed, rel=0.03)


@pytest.mark.slow
def test_prompts_are_read_a_little_too_fast():
    found = errors(CONNECTOR, "8B, prompt read")
    assert median(found) == pytest.approx(-0.066, abs=0.005)
    assert max(map(abs, found)) < 0.085


@pytest.mark.slow
def test_caches_are_loaded_as_fast_as_measured_and_short_ones_too_fast():
    first, *rest = errors(CONNECTOR, "8B, cache loaded")
    assert first == pytest.approx(-0.274, abs=0.005)
    assert max(map(abs, rest)) < 0.12
    assert median(rest) == pytest.approx(-0.017, abs=0.005)


@pytest.mark.slow
def test_the_queue_of_copies_explains_what_many_hits_cost():
    found = errors(CONNECTOR, "8B, short prompts")
    assert median(map(abs, found)) < 0.09
    assert abs(found[9]) < 0.05  # 0.5 without the queue
    assert max(map(abs, found)) < 0.18

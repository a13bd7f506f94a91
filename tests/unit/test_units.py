"""Quantities: text in, whole numbers inside, and the same text out."""

# ruff: noqa: E501 - messages stand here as they are printed

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from simulator.errors import ConfigError, insist
from simulator.units import Bytes, BytesPerSecond, FieldError, Nanoseconds, counted, exact, human, nearest, parse


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("80 GiB", "B", 80 * 2**30),
        ("80 GB", "B", 80 * 10**9),
        ("64GB", "B", 64 * 10**9),
        ("64\u00a0GB", "B", 64 * 10**9),
        ("1.3 GiB", "B", 1_395_864_371),
        ("+.5 kB", "B", 500),
        ("1e3 B", "B", 1000),
        ("33.6 GB/s", "B/s", 33_600_000_000),
        ("3.35 TB/s", "B/s", 3_350_000_000_000),
        ("10 us", "ns", 10_000),
        ("10 µs", "ns", 10_000),
        ("10 \u03bcs", "ns", 10_000),
        ("0.7 ms", "ns", 700_000),
        ("5.36 s", "ns", 5_360_000_000),
        ("376 TFLOP/s", "FLOP/s", 376 * 10**12),
        ("9223372036854775807 B", "B", 2**63 - 1),
        (" inf ", "B", math.inf),
    ],
)
def test_reads_what_people_write(text, unit, value):
    assert parse(text, unit) == value


@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        (64, "B", "a size is a number and a unit, such as '64 GB', found 64; write it as '64 GB'"),
        (True, "B", "a size is a number and a unit, such as '64 GB', found True; write it as '64 GB'"),
        (None, "ns", "a time is a number and a unit, such as '10 us', found None; write it as '10 us'"),
        ("GB", "B", "a size is a number and a unit, such as '64 GB', found 'GB'; write it as '64 GB'"),
        ("", "B", "a size is a number and a unit, such as '64 GB', found ''; write it as '64 GB'"),
        ("64", "B", "a size is a number and a unit, such as '64 GB', found '64'; write it as '64 GB'"),
        ("nan B", "B", "a size is a number and a unit, such as '64 GB', found 'nan B'; write it as '64 GB'"),
        ("9**9**9 B", "B", "a size is a number and a unit, such as '64 GB', found '9**9**9 B'; write it as '64 GB'"),
        ("٣ GB", "B", "a size is a number and a unit, such as '64 GB', found '٣ GB'; write it as '64 GB'"),
        ("1 GB + 1 B", "B", "a size is a number and a unit, such as '64 GB', found '1 GB + 1 B'; write it as '64 GB'"),
        ("-64 GB", "B", "a size is at least 0 B and below 2^63, found '-64 GB'; 'inf' means no limit"),
        ("0.5 B", "B", "a size is a whole number of B, found '0.5 B'; write '1 B'"),
        ("1.5 ns", "ns", "a time is a whole number of ns, found '1.5 ns'; write '2 ns'"),
        ("1e400 B", "B", "a size is at least 0 B and below 2^63, found '1e400 B'; 'inf' means no limit"),
        ("8589934592 GiB", "B", "a size is at least 0 B and below 2^63, found '8589934592 GiB'; 'inf' means no limit"),
        (
            "33.6 GB",
            "B/s",
            (
                "a rate is needed, such as '33.6 GB/s', found '33.6 GB'; use one of B/s, kB/s, MB/s, GB/s, TB/s, PB/s, "
                "KiB/s, MiB/s, GiB/s, TiB/s (did you mean 'GB/s'?)"
            ),
        ),
        (
            "64 mB",
            "B",
            (
                "a size is needed, such as '64 GB', found '64 mB'; use one of B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB "
                "(did you mean 'MB'?)"
            ),
        ),
        (
            "376 TFLOPS",
            "FLOP/s",
            (
                "a rate of arithmetic is needed, such as '376 TFLOP/s', found '376 TFLOPS'; use one of FLOP/s, kFLOP/s, "
                "MFLOP/s, GFLOP/s, TFLOP/s, PFLOP/s (did you mean 'TFLOP/s'?)"
            ),
        ),
        *(
            (
                f"440 {unit}",
                "B/s",
                f"a rate is needed, such as '33.6 GB/s', found '440 {unit}'; that counts bits: divide it by 8",
            )
            for unit in ("Gb/s", "Gbps", "Gbit/s", "Kb/s", "Mib/s")
        ),
        (
            "64 Gb",
            "B",
            "a size is needed, such as '64 GB', found '64 Gb'; that counts bits: divide it by 8",
        ),
        (
            "1e-999 b",
            "B",
            "a size is needed, such as '64 GB', found '1e-999 b'; that counts bits: divide it by 8",
        ),
        ("5 Mb", "ns", "a time is needed, such as '10 us', found '5 Mb'; that counts bits: divide it by 8"),
        ("5 min", "ns", "a time is needed, such as '10 us', found '5 min'; use one of ns, us, ms, s"),
    ],
)
def test_says_what_is_wrong(text, unit, message):
    with pytest.raises(FieldError) as error:
        parse(text, unit)
    assert str(error.value) == message


@pytest.mark.parametrize("unit", ["B", "B/s", "ns", "FLOP/s"])
@given(value=st.integers(0, 2**63 - 1) | st.integers(0, 2**33).map(lambda n: n << 20) | st.just(math.inf))
def test_what_is_written_exactly_reads_back_equal(unit, value):
    assert parse(exact(value, unit), unit) == value


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text):
    try:
        value = parse(text, "B")
    except FieldError:
        return
    assert value == math.inf or 0 <= value < 2**63


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (64 * 2**30, "B", "64 GiB"),
        (64 * 10**9, "B", "64 GB"),
        (33_600_000_000, "B/s", "33.6 GB/s"),
        (1, "ns", "1 ns"),
        (0, "B", "0 B"),
        (math.inf, "B", "inf"),
    ],
)
def test_exact_takes_the_unit_that_fits(value, unit, text):
    assert exact(value, unit) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (5_361_234_567, "ns", "5.36 s"),
        (999_600, "ns", "1.00 ms"),
        (33_600_000_000, "B/s", "33.6 GB/s"),
        (376 * 10**12, "FLOP/s", "376 TFLOP/s"),
        (88_046_829_568, "B", "88.0 GB"),
        (0, "B", "0 B"),
        (-2_500, "ns", "-2.50 us"),
        (math.inf, "B", "unlimited"),
    ],
)
def test_people_get_three_digits(value, unit, text):
    assert human(value, unit) == text


def test_some_fields_are_finite_and_rates_are_positive():
    for kind, text, message in (
        (Bytes, "inf", "a size here is finite, such as '64 GB', found 'inf'; write one"),
        (Nanoseconds, "inf", "a time here is finite, such as '10 us', found 'inf'; write one"),
        (
            BytesPerSecond,
            "0 B/s",
            "a rate is more than 0 B/s, such as '33.6 GB/s', found '0 B/s'; write a positive rate",
        ),
    ):
        with pytest.raises(ValidationError) as error:
            TypeAdapter(kind).validate_python(text)
        assert str(error.value.errors()[0]["ctx"]["error"]) == message


def test_a_name_finds_its_neighbour():
    assert nearest("Static", ("static", "resident")) == "use one of static, resident (did you mean 'static'?)"
    assert nearest("zzz", ("static", "resident")) == "use one of static, resident"
    assert nearest("zzz", ()) == "remove it"


@pytest.mark.parametrize(("number", "shown"), [(0, "0 gaps"), (1, "1 gap"), (2, "2 gaps"), (1644, "1,644 gaps")])
def test_counted(number, shown):
    assert counted(number, "gap") == shown


def test_what_breaks_a_rule_is_refused_with_what_to_do():
    insist(1, "here", "it holds", "no")
    with pytest.raises(ConfigError, match="here: it holds, found no; correct it"):
        insist([], "here", "it holds", "no")

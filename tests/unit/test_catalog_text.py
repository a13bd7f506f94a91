"""The YAML of documents: strictly typed, with lines, and safe against hostile files."""

# ruff: noqa: E501 - messages stand here as they are printed

from pathlib import Path

import pytest
from documents import lay, refusal
from hypothesis import example, given
from hypothesis import strategies as st

from simulator import catalog
from simulator.catalog.text import compose, scalar, to_yaml
from simulator.errors import CONTROLS, ConfigError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lay(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("null", None),
        ("", None),
        ("12", 12),
        ("-3", -3),
        ("1e-6", 1e-6),
        (".5", 0.5),
        ("0", 0),
        *((text, text) for text in ("yes", "on", "True", "12:30", "017", "0x10", "1_000", "inf", ".inf", "1.2.3", "٣")),
    ],
)
def test_only_plain_numbers_and_words_are_typed(text, value):
    read = scalar(text)
    assert (read, type(read)) == (value, type(value))


def test_quotes_keep_text():
    assert compose("a: '12'\nb: \"true\"\nc: |\n  12\n", "x").data == {"a": "12", "b": "true", "c": "12\n"}


def test_an_alias_repeats_its_anchor():
    assert compose("a: &x {b: [1]}\nc: *x\n", "x").data == {"a": {"b": [1]}, "c": {"b": [1]}}


_KEYS = st.text(min_size=1, max_size=8).filter(str.isprintable)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text().filter(lambda text: not CONTROLS.search(text)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=10,
)


@example({"1e-05": 1e-05, "true": True, "x": "1e-05", "": None, "\u0130": "\u3000\n\t"})
@given(st.dictionaries(_KEYS, _VALUES, min_size=1, max_size=4))
def test_what_is_written_reads_back_equal(data):
    assert compose(to_yaml(data), "x").data == data


@given(st.binary(max_size=200) | st.text(alphabet="ab:-[]{}&*!|>'\"\n\t #%@,?1", max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError):
        catalog.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.yaml: a document holds keys and values, found an empty file; write the document"),
        ("# only\n", "x.yaml: a document holds keys and values, found an empty file; write the document"),
        (
            "- 1\n",
            "x.yaml:1: a document is a mapping of keys to values, found a list; write 'key: value' lines",
        ),
        (
            "\njust words\n",
            (
                "x.yaml:2: a document is a mapping of keys to values, found the value 'just words'; "
                "write 'key: value' lines"
            ),
        ),
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3: each key comes once, found 'a' again, first on line 1; remove one of them"),
        (
            "a:\n  b: [1, 2\nc: 3\n",
            (
                "x.yaml:3: a document is well-formed YAML, found while parsing a flow sequence at line 2, "
                "column 6 did not find expected ',' or ']' at line 3, column 2; correct the line: spaces for indentation, 'key: value' with a "
                "space, quotes around special characters"
            ),
        ),
        (
            "a: 1\nb: \x07\n",
            (
                "x.yaml:2: a document is well-formed YAML, found unacceptable character #x0007: control "
                "characters are not allowed at position 8; correct the line: spaces "
                "for indentation, 'key: value' with a space, quotes around special characters"
            ),
        ),
        (
            "a: *b\n",
            "x.yaml:1: a file is one document, with each anchor once, above its aliases, found undefined alias at line 1, column 4; correct the line",
        ),
        (
            "a: &x 1\nb: &x 2\n",
            (
                "x.yaml:2: a file is one document, with each anchor once, above its aliases, found duplicate anchor; first occurrence at line 1, "
                "column 4 second occurrence at line 2, column 4; correct the line"
            ),
        ),
        ("a: &a [*a]\n", "x.yaml:1: a document nests at most 32 deep, found more; flatten it"),
        ("? [a]\n: 1\n", "x.yaml:1: a key is a word, found a list or a mapping; write a word"),
        ("a: !!set {}\n", "x.yaml:1: a document has no tags, found 'tag:yaml.org,2002:set'; remove the tag"),
        (
            "a: 1\n---\nb: 1\n",
            (
                "x.yaml:2: a file is one document, with each anchor once, above its aliases, found expected a single document in the stream "
                "at line 1, column 1 but found another document at line 2, column 1; correct the line"
            ),
        ),
        ("a: " + "[" * 100_000, "x.yaml:1: a document nests at most 32 deep, found more; flatten it"),
        (
            "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else '1'] * 9)}]\n" for i in range(12)),
            "x.yaml: a document holds at most 100,000 values, found more, aliases included; make it smaller",
        ),
        (
            "name: x\n",
            (
                "x.yaml:1, schema: the key schema says that this is a hardware, software, workload, job, scenario or study document, found none; "
                "add schema: hosim/hardware/1 or hosim/software/1 or hosim/workload/1 or hosim/job/1 or hosim/scenario/1 or hosim/study/1"
            ),
        ),
        (
            "name: x\nschema: hosim/hardwear/1\n",
            (
                "x.yaml:2, schema: the key schema says that this is a hardware, software, workload, job, scenario or study document, found "
                "'hosim/hardwear/1'; use one of hosim/hardware/1, hosim/software/1, hosim/workload/1, hosim/job/1, hosim/scenario/1, hosim/study/1 (did you mean 'hosim/hardware/1'?)"
            ),
        ),
    ],
)
def test_broken_text_is_refused_with_its_line(folder, text, message):
    Path("x.yaml").write_text(text)
    assert refusal(catalog.load, "x.yaml") == message


def test_bytes_that_are_no_text(folder):
    Path("x.yaml").write_bytes(b"a: 1\nb: \xff\n")
    message = "x.yaml:2: a document is text in UTF-8, found the byte 0xff; save it as UTF-8"
    assert refusal(catalog.load, "x.yaml") == message


def test_a_file_that_is_far_too_large(folder):
    Path("x.yaml").write_bytes(b"#" * 4_000_001)
    message = "x.yaml: an input has at most 4,000,000 bytes, unpacked, found more than 4,000,000 bytes; check that it is the right file"
    assert refusal(catalog.load, "x.yaml") == message

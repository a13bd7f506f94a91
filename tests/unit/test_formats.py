"""Which format a file has, and what all line formats have in common."""

import gzip
import json
from pathlib import Path
from typing import Required

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import formats
from simulator.errors import ConfigError
from simulator.formats import jsonl


class Header(jsonl.Record, total=False):
    schema: Required[str]
    n: jsonl.Whole
    names: list[str]


Any_ = dict[str, object]
KINDS = dict.fromkeys(["a", "b", "b:c", 'd"', "a::b", "c", "d", '"', "\\", '":', ":", " ", "\u00e9", "x"], Any_)


def read(path: Path) -> list[dict[str, object]]:
    return [line.record for line in jsonl.read(path, "test/1", Header, KINDS)]


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("name", ["file.jsonl", "file.jsonl.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    records = [{"schema": "test/1", "n": 2**62}, *({"é": [i]} for i in range(25_000))]
    jsonl.write(tmp_path / name, iter(records))
    assert read(tmp_path / name) == records
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_compressed_files_have_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        jsonl.write(tmp_path / name, [{"schema": "test/1"}])
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert (tmp_path / "a.gz").read_bytes()[3:8] == bytes(5), "a name or a time is in the header"


def test_a_file_that_breaks_off_leaves_the_old_one(tmp_path: Path) -> None:
    path = written(tmp_path / "f", "old")

    def records():  # type: ignore[no-untyped-def]
        yield {"schema": "test/1"}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jsonl.write(path, records())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_is_no_folder_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the file can be written, found No such file or directory"):
        jsonl.write(tmp_path / "nowhere" / "f", [{"schema": "test/1"}])


def test_empty_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    lines = list(jsonl.read(written(tmp_path / "f", '{"schema":"test/1"}\n\n  \n{"a":1}'), "test/1", Header, KINDS))
    assert [line.number for line in lines] == [1, 4]


BAD_FILES = {
    "empty": ("", ":1: the first line is a header of test/1, found an empty file"),
    "no schema": ('{"n":1}\n', ':1: the first line is a header with "schema": "test/1", found the keys n'),
    "another version": ('{"schema":"test/2"}\n', "found 'test/2'"),
    "no object": ("[1]\n", ":1: each line is a JSON object, found [1]"),
    "a later line that is no object": ('{"schema":"test/1"}\n7\n', ":2: each line is a JSON object, found 7"),
    "broken JSON": ('{"schema":"test/1"}\n{"a":}\n', ":2: each line is a JSON object, found unexpected"),
    "no number": ('{"schema":"test/1","n":NaN}\n', ":1: each line is a JSON object"),
    "cut": ('{"schema":"test/1"}\n{"a":1', ":2: each line is a JSON object, found a last line that breaks off"),
    "not UTF-8": (b'{"schema":"test/1"}\n{"\xff":1}\n', ":2: each line is a JSON object"),
    "too deep": (b'{"schema":"test/1"}\n' + b"[" * 5000 + b"]" * 5000 + b"\n", "depth limit"),
    "an unknown key": (
        '{"schema":"test/1","nam":1}\n',
        "found 'nam'; use one of schema, n, names (did you mean 'names'?)",
    ),
    "a word for a number": ('{"schema":"test/1","n":"1"}\n', "n: this is a whole number, found '1'"),
    "a truth value for a number": ('{"schema":"test/1","n":true}\n', "found true"),
    "a fraction for a number": ('{"schema":"test/1","n":1.0}\n', "found 1.0"),
    "a negative number": ('{"schema":"test/1","n":-1}\n', "found -1"),
    "a huge number": ('{"schema":"test/1","n":4611686018427387905}\n', "found 4611686018427387905"),
    "a number beyond 64 bits": ('{"schema":"test/1","n":99999999999999999999}\n', "found 1e+20"),
    "a list of other things": (
        '{"schema":"test/1","names":["a",1]}\n',
        "names.1: this is a text, found 1",
    ),
    "a key twice": (
        '{"schema":"test/1","n":1,"n":2}\n',
        ":1: each key comes once, found 'n' again; remove one of them",
    ),
    "a key twice in a later line": (
        '{"schema":"test/1"}\n{"a" : 1, "\\u0061"\t:2}\n',
        ":2: each key comes once, found 'a' again",
    ),
    "UTF-16": ('{"schema":"test/1"}\n'.encode("utf-16"), ":1: a file is text in UTF-8, found UTF-16; save it as UTF-8"),
    "null": ('{"schema":"test/1","names":null}\n', "names: this is a list, found null"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused_with_file_and_line(tmp_path: Path, name: str) -> None:
    text, message = BAD_FILES[name]
    path = written(tmp_path / "f.jsonl", text)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:")
    assert message in str(caught.value)


def test_colons_and_quotes_in_texts_are_no_keys(tmp_path: Path) -> None:
    record = {"a": 'x":', "b:c": ['"a":', ":", "aten::mm", '\\":'], 'd"': ',"a":1'}
    path = tmp_path / "f"
    jsonl.write(path, [{"schema": "test/1"}, record])
    assert read(path)[1] == record
    twice = path.read_text().replace('"b:c"', '"d\\"":3,"b:c"')
    with pytest.raises(ConfigError, match=r"f:2: each key comes once, found 'd\"' again"):
        read(written(path, twice))


BLANKS = st.text(" \t\r", max_size=2)
KEYS = st.sampled_from(["a", "b", '"', "\\", '":', ":", " ", "\u00e9"])
MEMBERS = st.tuples(KEYS, BLANKS, BLANKS, st.sampled_from([1, '":', '" :', "x::y", ['":', ":"], []]))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(MEMBERS, max_size=4), max_size=4))
def test_a_file_is_refused_at_the_first_line_in_which_a_key_comes_twice(
    tmp_path_factory: pytest.TempPathFactory, lines: list[list[tuple[str, str, str, object]]]
) -> None:
    texts = [
        ",".join(['"x":0', *(f"{json.dumps(k)}{b}:{c}{json.dumps(v)}{b}" for k, b, c, v in line)]) for line in lines
    ]
    path = written(tmp_path_factory.mktemp("f") / "f", "\n".join(['{"schema":"test/1"}', *(f"{{{t}}}" for t in texts)]))
    twice = [2 + i for i, line in enumerate(lines) if len({key for key, *_ in line}) < len(line)]
    if twice:
        with pytest.raises(ConfigError, match=f"f:{twice[0]}: each key comes once"):
            read(path)
    else:
        assert read(path)[1:] == [{"x": 0, **{key: value for key, _, _, value in line}} for line in lines]


def test_a_key_twice_in_a_long_file_is_told_with_its_line(tmp_path: Path) -> None:
    lines = ['{"schema":"test/1"}', *(f'{{"a::b":{i}}}' for i in range(24_000)), '{"c":1,"c":2}', "", '{"d":1}']
    with pytest.raises(ConfigError, match="f:24002: each key comes once, found 'c' again"):
        read(written(tmp_path / "f", "\n".join(lines)))


@pytest.mark.parametrize("name", ["f.jsonl", "f.json", "f.jsonl.gz"])
def test_a_byte_order_mark_is_skipped(tmp_path: Path, name: str) -> None:
    text = b'\xef\xbb\xbf{"schema":"test/1"}\n'
    path = written(tmp_path / name, gzip.compress(text) if name.endswith("gz") else text)
    assert formats.sniff(path) == "test/1"
    assert read(path) == [{"schema": "test/1"}]


def test_files_that_cannot_be_read_are_one_error(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"schema":"hosim-plan/1"}\n', mtime=0)
    for path, message in [
        (tmp_path / "missing", "found no such file"),
        (tmp_path, "found a folder"),
        (written(tmp_path / "plain.gz", "{}"), "names one of the schemas"),  # read as it is
        (written(tmp_path / "packed", packed[:-12]), "found Compressed file ended"),
        (written(tmp_path / "cut.gz", packed[:-12]), "found Compressed file ended"),
        (written(tmp_path / "crc.gz", packed[:-8] + bytes(8)), "found CRC check failed"),
        (written(tmp_path / "bad.gz", packed[:10] + b"\x07" + packed[11:]), "invalid block type"),
    ]:
        with pytest.raises(ConfigError) as caught:
            formats.check(path)
        assert message in str(caught.value)


def test_counts_of_the_header_must_hold_if_given(tmp_path: Path) -> None:
    (header,) = jsonl.read(written(tmp_path / "f", '{"schema":"test/1","n":3}\n'), "test/1", Header, KINDS)
    jsonl.count(header, {"n": 3, "m": 7})
    with pytest.raises(ConfigError, match=r"f:1: the file has the 3 n that its header counts, found 2"):
        jsonl.count(header, {"n": 2})


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ('{"schema":"hosim-graph/1","ops":1}\n{"op"', "hosim-graph/1"),
        ('{"schema":"hosim-plan/1"}', "hosim-plan/1"),
        ('{"schema":"other/7"}\n', "other/7"),
        ('{"schema":7}\n', None),
        ("schema: hosim/scenario/1\n", None),
        ("[1]\n", None),
        ("", None),
        (b"\x00\xff", None),
    ],
)
def test_sniff_names_the_schema(tmp_path: Path, text: str | bytes, schema: str | None) -> None:
    assert formats.sniff(written(tmp_path / "f", text)) == schema


def test_sniff_looks_into_compressed_files(tmp_path: Path) -> None:
    assert formats.sniff(written(tmp_path / "f.gz", gzip.compress(b'{"schema":"hosim-plan/1"}'))) == "hosim-plan/1"


def test_sniff_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an input is a file, found no such file"):
        formats.sniff(tmp_path / "missing")


def test_a_json_file_that_breaks_off_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"f\.json:2: the file is a JSON object, found unexpected end of data"):
        formats.check(written(tmp_path / "f.json", '{"schema":\n"residency-trace/1",'))


def test_check_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"schemas hosim-graph/1, hosim-plan/1, residency-trace/1, found 'other/7'"):
        formats.check(written(tmp_path / "f", '{"schema":"other/7"}\n'))
    with pytest.raises(ConfigError, match=r"hosim-plan/1, residency-trace/1, found none"):
        formats.check(written(tmp_path / "f", "name: x\n"))

"""Inputs have an end and a size: regular files, of limited bytes, lines and bytes a line, also when unpacked."""

from __future__ import annotations

import gzip
import hashlib
import os
import socket
from pathlib import Path

import pytest

from simulator import catalog, formats, inputs
from simulator.cli.check import describe
from simulator.errors import ConfigError
from simulator.report import files

HEADER = b'{"schema":"hosim-graph/1"}\n'


def packed(path: Path, start: bytes, part: bytes, times: int) -> Path:
    """A small file that unpacks to many times a part."""
    path.write_bytes(gzip.compress(start) + gzip.compress(part) * times)
    return path


@pytest.fixture
def limits(monkeypatch):
    """The same limits, but small."""
    for name, most in (("MOST_BYTES", 3_000_000), ("MOST_LINES", 1000), ("LONGEST_LINE_BYTES", 1_000_000)):
        monkeypatch.setattr(inputs, name, most)


ENDLESS = {
    "newlines": (b"\n" * 4096, "at most 1,000 lines"),
    "one line": (b" " * 400_000, "in a line at most 1,000,000 bytes"),
    "long lines": (b" " * 900_000 + b"\n", "at most 3,000,000 bytes"),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_what_unpacks_to_no_end_is_refused_by_a_limit_that_is_named(case, limits, tmp_path):
    part, named = ENDLESS[case]
    path = packed(tmp_path / "bomb.jsonl.gz", HEADER, part, 10)
    with pytest.raises(ConfigError, match=named) as refused:
        describe(str(path))
    assert refused.value.found.startswith("more than")


def test_an_object_is_not_unpacked_to_no_end(limits, tmp_path):
    path = tmp_path / "result.json"
    path.write_bytes(b" " * 1_000_001)
    for read in (formats.read_graph, files.read_summary):
        with pytest.raises(ConfigError, match="found more than 1,000,000 bytes"):
            read(path)


@pytest.mark.slow
def test_the_limits_themselves_hold_within_little_memory(tmp_path):
    """As in a process of 1 GB: 4 GB of lines, of newlines, and of one line."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + 500_000_000, hard))
    try:
        for part in (b"\n" * 1_000_000, b" " * 1_000_000, b" " * 999_999 + b"\n"):
            with pytest.raises(ConfigError, match="at most"):
                describe(str(packed(tmp_path / "bomb.jsonl.gz", HEADER, part, 4000)))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


READERS = {
    "graph": formats.read_graph,
    "check": lambda path: describe(str(path)),
    "requests": formats.read_requests,
    "routing": formats.read_routing,
    "diff": files.read_summary,
    "document": catalog.load,
    "scenario": catalog.read_scenario,
    "digest": inputs.digest,
}


@pytest.mark.parametrize("reader", READERS)
def test_only_regular_files_are_read(reader, tmp_path):
    suffix = ".jsonl" if reader in ("graph", "check", "digest") else ".yaml"
    pipe, device, plug = (tmp_path / f"{name}{suffix}" for name in ("pipe", "device", "socket"))
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as unused:
        unused.bind(str(plug))
        for path in (pipe, device, plug):
            with pytest.raises(ConfigError, match="a device or a pipe"):
                READERS[reader](path)


def test_lines_are_those_of_the_file_whatever_the_blocks(monkeypatch, tmp_path):
    text = b"".join(b"%d\r%s\n" % (n, b"x" * (n * 37 % 101)) for n in range(200)) + b"last"
    (tmp_path / "lines").write_bytes(b"\xef\xbb\xbf" + text)
    for size in (3, 7, 64, 1 << 18):
        monkeypatch.setattr(inputs, "_BLOCK_BYTES", size)
        found = [line for block in inputs.blocks(tmp_path / "lines") for line in block]
        assert found == [*(line + b"\n" for line in text.split(b"\n")[:-1]), b"last"]


def test_a_digest_is_of_the_file_as_it_lies_there(tmp_path):
    path = packed(tmp_path / "graph.jsonl.gz", b"", b"x", 3)
    assert inputs.digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert inputs.whole(path) == b"xxx"

"""Files that users name: whole or as they were, never waited for, and named where they cannot be written."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from full import small_files

from simulator.errors import ConfigError
from simulator.outputs import check_file, written


def test_all_files_are_replaced_or_none(tmp_path: Path) -> None:
    files = [tmp_path / "a.yaml", tmp_path / "b.jsonl.gz"]
    files[0].write_text("old")
    with suppress(KeyboardInterrupt), written(*files) as parts:
        parts[0].write_text("new")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]
    assert files[0].read_text() == "old"
    with written(*files) as parts:
        assert [part.suffix for part in parts] == [".yaml", ".gz"]
        for part in parts:
            part.write_text("new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.yaml": "new", "b.jsonl.gz": "new"}


def test_a_full_disk_leaves_the_old_file_and_names_it(tmp_path: Path) -> None:
    file = tmp_path / "x.xml"
    file.write_text("old")
    must = "the file can be written, found File too large; make room"
    fails = pytest.raises(ConfigError, match=f"--junit {file}: {must}")
    with fails, small_files(100), written(file, option="--junit") as (part,):
        part.write_text("x" * 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["x.xml"]
    assert file.read_text() == "old"


@pytest.mark.parametrize("kind", ["a pipe", "a link to a pipe", "a device", "a folder"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    if "pipe" in kind:
        os.mkfifo(tmp_path / "pipe")
        place.symlink_to(tmp_path / "pipe")
    elif kind == "a device":
        place = Path("/dev/null")
    else:
        place.mkdir()
    place = tmp_path / "pipe" if kind == "a pipe" else place
    with pytest.raises(ConfigError, match=f"--out {place}: an output is a file, found a (device or a pipe|folder)"):
        check_file("--out", place)
    with pytest.raises(ConfigError, match="an output is a file"), written(place):
        pytest.fail("it was opened")


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "inner" / "file")
    for text in ("first", "second"):
        with written(link) as (part,):
            part.write_text(text)
        assert (tmp_path / "inner" / "file").read_text() == text
    assert link.is_symlink()
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    check_file("--out", loop)


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() == 0, reason="the superuser may write all files")
def test_a_file_that_is_protected_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    file.chmod(0o444)
    with pytest.raises(ConfigError, match="found Permission denied"):
        check_file("--out", file)

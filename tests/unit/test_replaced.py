"""The output folder takes its place as a whole: nobody's files are lost, and nothing stays of a run that was killed."""

import errno
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from simulator import interrupts
from simulator.errors import ConfigError
from simulator.report import files


def _run(out, also=lambda folder: None, **texts):
    with files.replaced(out) as folder:
        files.write_texts(folder, {name.replace("_", "."): text for name, text in texts.items()})
        also(folder)
        files.write_summary(folder, [{"policy": "x"}], {})


def _names(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


RUN = ["summary.csv", "summary.json"]


def test_what_comes_into_the_folder_meanwhile_is_kept_and_told(tmp_path, capsys):
    out = tmp_path / "out"
    _run(out, a_txt="old")

    def put(folder):
        (out / "below").mkdir()
        (out / "below" / "mine.txt").write_text("mine")

    _run(out, put, b_txt="new")
    assert _names(out) == ["b.txt", *RUN]
    assert (tmp_path / "out~1" / "below" / "mine.txt").read_text() == "mine"
    kept = f"hosim: {out}~1: kept; something came into the folder while that was replaced\n"
    assert capsys.readouterr().err == kept
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "out~1"]


def test_what_comes_under_a_name_of_the_results_is_kept_beside_them(tmp_path):
    out = tmp_path / "out"

    def put(folder):
        out.mkdir()
        (out / "b.txt").write_text("mine")

    _run(out, put, b_txt="new")
    assert _names(out) == ["b.txt", *RUN]
    assert ((out / "b.txt").read_text(), (tmp_path / "out~1" / "b.txt").read_text()) == ("new", "mine")


def test_a_file_that_takes_the_place_is_kept_beside_it(tmp_path):
    out = tmp_path / "out"
    _run(out, lambda folder: out.write_text("mine"))
    assert _names(out) == RUN
    assert (tmp_path / "out~1").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "out~1"]


def test_an_interrupt_just_after_the_workspace_is_made_leaves_nothing(tmp_path, monkeypatch):
    own, seen = os.mkdir, []

    def mkdir(path, *more, **named):
        own(path, *more, **named)
        seen.append(os.path.basename(path))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "out")
    assert seen[0].startswith(".out.partial-")
    assert list(tmp_path.iterdir()) == []


def test_memory_that_runs_out_is_not_said_of_the_folder(tmp_path):
    def fails(folder):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with pytest.raises(MemoryError):
        _run(tmp_path / "out", fails)
    assert list(tmp_path.iterdir()) == []


def _killed(out, when):
    """A run that is killed before it replaces the folder, or in the midst of that."""

    def run():
        own = Path.rename
        if when == "removing":
            files.shutil.rmtree = lambda own, **_: (next(own.glob("*/summary.json")).unlink(), _kill())
        if when == "replacing":
            Path.rename = lambda self, target: _kill() if self.name == "new" else own(self, target)
        with files.replaced(out) as folder:
            (folder / "half").write_text("")
            if when == "filling":
                _kill()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("when", ["filling", "replacing"])
def test_what_a_killed_run_left_is_removed_by_the_next(when, tmp_path, capsys):
    out = tmp_path / "out"
    _run(out, a_txt="old")
    _killed(out, when)
    (left,) = (p for p in tmp_path.iterdir() if p.name.startswith(".out.partial-"))
    with pytest.raises(KeyboardInterrupt), files.replaced(out):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == f"hosim: {left}: removed; a run that was killed had left it\n"
    assert _names(tmp_path) == [f"out/{name}" for name in ("a.txt", *RUN)], "the earlier run is in its place again"


def test_what_is_left_of_a_folder_that_was_being_removed_is_nobodys(tmp_path, capsys):
    out = tmp_path / "out"
    _run(out, a_txt="old")
    _killed(out, "removing")
    (left,) = tmp_path.glob(".out.partial-*")
    assert _names(left)
    assert _names(out) == ["half"]
    (out / "half").unlink()
    _run(out, b_txt="new")
    assert capsys.readouterr().err == f"hosim: {left}: removed; a run that was killed had left it\n"
    assert _names(out) == ["b.txt", *RUN]


def test_an_interrupt_waits_while_the_folder_takes_its_place(tmp_path, monkeypatch):
    out, rename = tmp_path / "out", Path.rename
    _run(out, a_txt="old")

    def interrupted(path, target):
        rename(path, target)
        if path.name != "new":
            signal.raise_signal(signal.SIGINT)  # to this thread: another would take it whenever it is its turn

    monkeypatch.setattr(Path, "rename", interrupted)
    monkeypatch.setattr(interrupts, "complete", [])
    monkeypatch.setattr(files, "complete", interrupts.complete)
    with pytest.raises(KeyboardInterrupt):
        _run(out, b_txt="new")
    assert _names(tmp_path) == [f"out/{name}" for name in ("b.txt", *RUN)]
    assert interrupts.complete == [str(out)]


def test_a_folder_that_cannot_even_be_opened_is_one_error_and_removed(tmp_path, monkeypatch):
    """As with a umask that takes everything, unless root asks."""

    opened = os.open

    def refused(path, *arguments, **more):
        if Path(path).name.startswith(".out.partial-"):
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **more)

    monkeypatch.setattr(files.os, "open", refused)
    with pytest.raises(ConfigError, match="found Permission denied"):
        _run(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_a_living_run_fills_is_left_alone(tmp_path, capsys):
    """Two runs at once into one folder: each is whole, and who comes last stays."""
    out = tmp_path / "out"
    with files.replaced(out) as first:
        _run(out, a_txt="second")
        files.write_texts(first, {"b.txt": "first"})
        files.write_summary(first, [], {})
    assert _names(out) == ["b.txt", *RUN]
    assert capsys.readouterr().err == ""
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_process_number_may_come_again(tmp_path):
    (tmp_path / f".out.partial-{os.getpid()}").mkdir()
    _run(tmp_path / "out")
    assert _names(tmp_path) == [f"out/{name}" for name in RUN]


def test_the_folder_is_as_open_as_any_other(tmp_path):
    (tmp_path / "other").mkdir()
    _run(tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError("short write")])
def test_a_full_disk_is_no_file_of_that_name(error, tmp_path):
    with pytest.raises(ConfigError, match=f"found {error.strerror or error}; make room") as raised:
        _run(tmp_path / "out", also=lambda folder: (_ for _ in ()).throw(error))
    assert "None" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def _write_half(folder):
    (folder / "file").write_text("half")
    raise RuntimeError("midway")


def test_a_folder_that_fails_leaves_nothing_and_keeps_the_old_one(tmp_path):
    out = tmp_path / "new" / "out"
    with pytest.raises(RuntimeError, match="midway"), files.replaced(out) as partial:
        _write_half(partial)
    assert list(tmp_path.iterdir()) == []
    with files.replaced(out) as partial:
        files.write_summary(partial, [{"policy": "x"}], {})
    before = (out / "summary.json").read_bytes()
    with pytest.raises(KeyboardInterrupt), files.replaced(out) as partial:
        raise KeyboardInterrupt
    assert (out / "summary.json").read_bytes() == before
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_an_earlier_folder_is_only_what_its_summary_lists(tmp_path):
    out = tmp_path / "out"
    with files.replaced(out) as partial:
        files.write_summary(partial, [{"policy": "x"}], {})
    files.check_target(out)
    (out / "below").mkdir()
    (out / "below" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"'below/mine\.txt'"):
        files.check_target(out)

"""The check of the house sees each rule broken in a house of three files."""

from __future__ import annotations

import house
import pytest

from simulator.engine import in_use

ONE = '''"""One."""\n\nfrom simulator.room.other import b\n\na = b\n'''
OTHER = '''"""Other."""\n\nTYPE_CHECKING = False\nif TYPE_CHECKING:\n    from simulator.room import one\n\nb = 1\n'''


MOST = {"compiled": (380, 14), "simpy": (438, 15)}
"""Functions that a row needs in which nothing moves, and how many deep they call, by engine: no more, ever."""


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Say what is wrong with files by their path, where so much is allowed."""
    monkeypatch.setattr(house, "HOUSE", tmp_path)

    def faults(files, **allowed):
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(text)
        known = {
            "rooms": {"room": [100, 9], "hall": [100, 9]},
            "twice": [],
            "circles": [],
            "public": 99,
            "used_once": 1,
            **allowed,
        }
        read = [house.read(path) for path in sorted(tmp_path.rglob("*.py"))]
        return [fault for fault in house.faults(read, known) if not fault.startswith("docstrings")]

    return faults


def test_code_is_counted_without_blanks_comments_and_docstrings(check, capsys):
    text = '"""Of a file,\n\nwith two lines."""\n\n# why\na = (\n    1,\n)\n'
    assert check({"room/one.py": text}, rooms={"room": [2, 1]}) == [
        "room: a room keeps to 2 lines of code in 1 files, found 3 in 1",
        "the core: a room keeps to 2 lines of code in 1 files, found 3 in 1",
    ]
    assert "room               3       2     -1       1       1      0" in capsys.readouterr().out


def test_circles_are_found_where_only_types_are_imported(check):
    files = {"room/one.py": ONE, "room/other.py": OTHER}
    expected = ["room.one, room.other: imports go one way inside a room, found a circle; cut it"]
    assert check(files) == expected
    assert check(files, circles=[["room.one", "room.other", "room.third"]]) == []


def test_a_file_name_is_there_once(check):
    files = {"room/one.py": "a = 1\n", "hall/one.py": "a = 1\n"}
    assert check(files) == ["one: a file, or a class, has a name of its own, found it several times; find another"]
    assert check(files, twice=["one"]) == []


def test_a_class_name_is_there_once(check):
    files = {"room/one.py": "class Same:\n    pass\n", "hall/other.py": "class Same:\n    pass\n"}
    assert check(files) == ["Same: a file, or a class, has a name of its own, found it several times; find another"]


def test_files_and_functions_are_short(check):
    assert check({"room/one.py": "\n" * 401}) == ["room.one: a file has at most 400 lines, found 401"]
    long = "def f():\n" + "    a = 1\n" * 50
    assert check({"room/one.py": long}) == ["room.one, f: a function has at most 50 lines"]
    assert check({"room/one.py": long.replace("    a = 1\n", '    """a"""\n', 1)}) == []


def test_local_names_say_what_they_hold(check):
    text = "def f(xs):\n    found = [{name} for {name} in xs]\n    {use}\n"
    assert check({"room/one.py": text.format(name="x", use='insist(xs, "xs", "must", found)')}) == []
    expected = "room.one, f: {}: a local name says what it holds; find another"
    assert check({"room/one.py": text.format(name="x", use="return found")}) == [expected.format("found")]
    assert check({"room/one.py": text.format(name="one", use="raise E(found)")}) == [expected.format("one")]
    assert check({"room/one.py": "def f(at):\n    return at\n"}) == [expected.format("at")]


def test_public_names_are_counted(check):
    text = "a: int = 1\nb = _c = 2\n\ndef f():\n    d = 1\n\nclass G:\n    def h(self):\n        return _c\n"
    assert check({"room/one.py": text}, public=4) == []
    assert check({"room/one.py": text}, public=3) == [
        "at most 3 names are public, found 4; begin those of one file with _"
    ]


def test_functions_that_one_place_uses_are_counted(check):
    text = "def f():\n    g()\n    h.g\n\ndef g():\n    f()\n"
    assert check({"room/one.py": text}, used_once=0.5) == []
    assert check({"room/one.py": text}, used_once=0.4) == [
        "at most 40.0% of functions are used once, found 50.0%; merge some"
    ]


@pytest.mark.parametrize(("engine", "most"), MOST.items())
def test_the_smallest_run_stays_small(engine, most):
    if engine == "compiled" and in_use() != "compiled":
        pytest.skip("the compiled engine is not built")
    functions, _, frames = house.run("tiny_train_t4", engine)
    assert functions <= most[0]
    assert frames <= most[1]


def test_no_unit_is_guessed_from_a_name(check):
    assert check({"room/one.py": 'a = "b_ns".endswith(("_ns", "_x"))\n'}) == [
        "room.one, _ns: a column's unit is its figure's; ask that, or hand over one"
    ]


def test_docstrings_have_their_share(tmp_path, monkeypatch):
    monkeypatch.setattr(house, "HOUSE", tmp_path)
    (tmp_path / "one.py").write_text("a = 1\n" * 9 + 'def f():\n    """f"""\n')
    read = [house.read(tmp_path / "one.py")]
    allowed = {"rooms": {"simulator": [99, 9]}, "twice": [], "circles": [], "public": 99, "used_once": 1}
    assert list(house.faults(read, allowed)) == ["docstrings: they are 25 to 35 % of the text, found 9.1%"]

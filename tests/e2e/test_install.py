"""The wheel in a clean environment: with the compiled replay, and without where there is no compiler."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[2]
NO_COMPILER = {"CC": "no-compiler", "CXX": "no-compiler"}
KINDS = {"compiled": {}, "no compiler": NO_COMPILER, "pure": {"HOSIM_PURE": "1"}}
SAID = {
    "compiled": "",
    "no compiler": "hosim: its replay is not compiled (",  # and why, in the words of setuptools
    "pure": "hosim: HOSIM_PURE is set, so the replay is not compiled.",
}
COMPILER = (sysconfig.get_config_var("CXX") or "c++").split()[0]
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler is installed")

INSTALL = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]

pytestmark = pytest.mark.slow


def _done(command: list[object], **more: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=170, check=False, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Each kind of wheel, by way of an sdist, and what was said."""
    wheels = {}
    for kind, env in KINDS.items():
        folder = tmp_path_factory.mktemp("dist")
        build = [sys.executable, "-m", "build", "--outdir", folder, ROOT]
        if importlib.util.find_spec("hatchling") and importlib.util.find_spec("setuptools"):
            build.insert(3, "--no-isolation")
        said = _done(build, env={**os.environ, **env})
        (wheel,) = folder.glob("hosim-*.whl")
        wheels[kind] = wheel, said.stdout + said.stderr
    return wheels


def _extension(wheel: Path) -> list[str]:
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith(("pp", "build_hook.py"))]
    return [name for name in names if Path(name).suffix in (".so", ".pyd")]


@needs_compiler
def test_one_wheel_is_for_all_versions_of_python(built):
    wheel, said = built["compiled"]
    at = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-cp311-abi3-{at}.whl")
    assert [Path(name).name.split(".")[0] for name in _extension(wheel)] == ["_replay"]
    assert "not compiled" not in said


@pytest.mark.parametrize("kind", ["no compiler", "pure"])
def test_without_a_compiler_the_wheel_is_pure_and_says_so(built, kind):
    wheel, said = built[kind]
    assert wheel.name.endswith("-py3-none-any.whl")
    assert _extension(wheel) == []
    assert said.count("not compiled") == 1
    assert SAID[kind] in said


def _clean(folder: Path) -> tuple[Path, Path, dict[str, object]]:
    """An environment with the dependencies alone: its python, its packages, and how to run it."""
    venv.create(folder / "home", with_pip=False)
    (site,) = folder.glob("home/lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{Path(click.__file__).parents[1]}\n")
    (folder / "empty").mkdir()
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HOSIM_ENGINE")}
    return folder / "home" / "bin" / "python", site, {"cwd": folder / "empty", "env": env}


@pytest.fixture(scope="module")
def ran(built, tmp_path_factory):
    """What two kinds say of themselves and of a run, in a clean environment."""
    found = {}
    for kind in ("compiled", "pure"):
        folder = tmp_path_factory.mktemp("clean")
        python, site, clean = _clean(folder)
        _done([*INSTALL, "--no-index", "--force-reinstall", "--target", site, built[kind][0]])
        where = [python, "-c", "import hosim, simulator; assert hosim is simulator; print(simulator.__file__)"]
        assert Path(_done(where, **clean).stdout.strip()).is_relative_to(site)
        command = [python, "-m", "simulator"]
        version = _done([*command, "--version"], **clean).stdout
        listed = _done([*command, "list"], **clean).stdout
        done = _done([*command, "run", "tiny_train_910c", "--policy", "static", "--out", "out"], **clean)
        found[kind] = version, listed, done.stdout, clean["cwd"] / "out"
    return found


@pytest.mark.parametrize("kind", [pytest.param("compiled", marks=needs_compiler), "pure"])
def test_the_wheel_works_in_a_clean_environment(ran, kind):
    version, listed, _, out = ran[kind]
    assert f"(engine: {'compiled' if kind == 'compiled' else 'simpy'})" in version
    assert ("install a C++17 compiler and Python's headers" in version) == (kind == "pure")
    assert "llama3_8b_train_910c" in listed
    assert (out / "report.html").read_text().count("data:image/png") == 3  # with the front


def test_no_number_tells_which_engine_made_it(ran):
    texts = {text for _, _, text, _ in ran.values()}
    rows = {(out / "summary.csv").read_text() for *_, out in ran.values()}
    assert len(texts) == len(rows) == 1


@needs_compiler
def test_a_checkout_has_the_extension_beside_its_source_until_that_changes(built, tmp_path):
    (sdist,) = built["compiled"][0].parent.glob("hosim-*.tar.gz")
    _done(["tar", "xzf", sdist, "-C", tmp_path])
    (checkout,) = tmp_path.glob("hosim-*")
    room = checkout / "simulator" / "engine" / "replay"
    python, _, clean = _clean(tmp_path)

    def installed(**more: str) -> tuple[bool, str]:
        env = {**clean["env"], **more, "PYTHONPATH": str(Path(click.__file__).parents[1])}
        _done([python, *INSTALL[1:], "--no-build-isolation", "-e", checkout], cwd=tmp_path, env=env)
        return bool([*room.glob("_replay*")]), used()

    def used() -> str:
        return _done([python, "-m", "simulator", "--version"], **clean).stdout.partition("(")[2].partition(")")[0]

    assert installed() == (True, "engine: compiled")
    (source,) = room.glob("*.cpp")
    source.write_text(f"{source.read_text()}// changed\n")
    assert used() == "engine: simpy"
    assert installed() == (True, "engine: compiled")
    assert installed(HOSIM_PURE="1") == (False, "engine: simpy")

"""`hosim import torch`: a function of the user's becomes a graph that runs; without torch one line says what to do."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import ROOT, blocks

import simulator
from simulator.errors import ConfigError

READ = simulator.read_torch  # loaded before a test has a deadline
NEEDS_TORCH = pytest.mark.skipif(
    find_spec("torch") is None, reason='torch is not installed (pip install "hosim[torch]")'
)
MODULE = """\
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        return self.layers(x).pow(2).mean()

def with_optimizer():
    return Model(), torch.randn(32, 64), {"optimizer": torch.optim.AdamW}

def alone():
    return Model(), torch.randn(32, 64)

def a_step():
    model = Model().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    def step(x, scale):
        optimizer.zero_grad()
        (model(x) * scale).backward()
        optimizer.step()
    return step, torch.randn(32, 64, dtype=torch.bfloat16), {"scale": 2.0, "name": "mine-alone"}

def captured():
    import hosim
    return hosim.torch.capture(Model(), torch.randn(8, 64), free_early=True)

def branches():
    def step(x):
        if x.sum() > 0:
            x = -x
    return step, torch.randn(4)

def fails():
    raise ZeroDivisionError("of the user")

def nothing():
    return None

def empty():
    return ()

def only_options():
    return {"loss": None},

def word():
    return nn.Linear(8, 8), torch.empty(2, 8), {"loss": torch.sum, "optimizer": "adamx"}

def of_ranks():
    torch.distributed.init_process_group("gloo")
    return nn.parallel.DistributedDataParallel(nn.Linear(8, 8)), torch.empty(2, 8)

def named():
    return nn.Linear(8, 8), torch.empty(2, 8), {"loss": torch.sum, "optimizer": "adamw"}

def unnamed():
    return nn.Linear(8, 8), torch.empty(2, 8), {"loss": torch.sum, "optimizer": torch.optim.AdamW}

def word_loss():
    return nn.Linear(8, 8), torch.empty(2, 8), {"loss": "mse"}

def ends():
    raise SystemExit("the code ends")

def sharded():
    import os
    from torch.distributed.fsdp import fully_shard
    torch.distributed.init_process_group("nccl")
    assert (os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]) == ("0", "8")
    model = Model().to(torch.bfloat16)
    return fully_shard(model), torch.randn(32, 64, dtype=torch.bfloat16), {"optimizer": torch.optim.AdamW}

def prints():
    print("from the function")
    class Late(Model):
        def forward(self, x):
            import mine_late
            print("from the model")
            return super().forward(x) * mine_late.SCALE
    return Late(), torch.randn(32, 64)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with a module of the user's, where the command runs."""
    (tmp_path / "mine_steps.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "mine_late.py").write_text("SCALE = 2.0\n", encoding="utf-8")
    (tmp_path / "mine_needs.py").write_text("import absent_library\n", encoding="utf-8")
    (tmp_path / "mine_broken.py").write_text("def step(:\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("mine_steps", None)


@NEEDS_TORCH
def test_a_function_becomes_a_graph_that_runs(hosim, mine):
    done = hosim("import", "torch", "mine_steps:with_optimizer", "-o", "mine.yaml")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[-3:] == ["written:", "  mine.yaml", "  mine.jsonl"]
    assert any(line.startswith("  peak of live tensors in PyTorch: ") for line in lines)
    assert any(line.startswith("  views, ") for line in lines)
    assert hosim("check", "mine.yaml").code == 0
    done = hosim("run", "--hardware", "h100_sxm", "--workload", "mine.yaml", "--policy", "static")
    assert (done.code, done.err) == (0, "")
    assert "static  ok " in done.out
    assert "samples/s" in done.out  # of its 32 rows


@NEEDS_TORCH
def test_a_step_of_several_ranks_runs_on_them(hosim, mine):
    done = hosim("import", "torch", "mine_steps:sharded", "--ranks", "8", "-o", "mine.yaml")
    assert (done.code, done.err) == (0, "")
    assert "  All 8 ranks do what the first does; 8 share gradients." in done.out.splitlines()
    done = hosim("run", "--hardware", "dgx_h100", "--workload", "mine.yaml", "--policy", "resident")
    assert (done.code, done.err) == (0, "")
    assert "in 8 ranks" in done.out
    done = hosim("import", "torch", "mine_steps:alone", "-o", "alone.yaml")  # the ranks are gone
    assert "ranks" not in done.out


@NEEDS_TORCH
def test_an_exported_program_is_imported_or_refused_in_one_line(hosim, mine):
    (mine / "mine.pt2").write_bytes(b"PK")
    done = hosim("import", "torch", "mine.pt2", "-o", "mine.yaml")
    assert done.code == 1
    assert done.err.startswith("hosim: mine.pt2: torch.export.load reads the file, found BadZipFile")
    assert done.err.count("\n") == 1
    done = hosim("run", "--hardware", "h100_sxm", "--workload", "mine.pt2")
    assert "run `hosim import torch mine.pt2 -o mine.yaml`" in done.err


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@NEEDS_TORCH
def test_the_guide_goes_from_nothing_to_a_table(hosim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "how-to" / "bring-your-own-model.md").read_text(encoding="utf-8")
    part = text.partition("## A PyTorch module")[2].partition("\n##")[0]
    (code,), (commands,) = blocks(part, "py"), blocks(part, "text")
    assert len(code.splitlines()) + len(commands.splitlines()) <= 10
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    try:
        done = [hosim(*shlex.split(line)[1:]) for line in commands.splitlines()]
    finally:
        sys.modules.pop("mine", None)
    assert [one.code for one in done] == [0, 0]
    assert "static    ok " in done[-1].out
    assert "tokens/s  samples/s" in done[-1].out


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@NEEDS_TORCH
def test_the_guide_captures_a_step_of_decode(hosim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "how-to" / "bring-your-own-model.md").read_text(encoding="utf-8")
    part = text.partition("### A step of decode")[2].partition("\n##")[0]
    (code,), (command,) = blocks(part, "py"), blocks(part, "text")
    (tmp_path / "mine_decode.py").write_text(code, encoding="utf-8")
    try:
        assert hosim(*shlex.split(command)[1:]).code == 0
    finally:
        sys.modules.pop("mine_decode", None)
    graph = (tmp_path / "mine.jsonl").read_text(encoding="utf-8")
    assert graph.count('"kind":"kv_cache"') == 32
    assert graph.count(f'"size_bytes":{8 * 4098 * 32 * 128 * 2}') >= 32


@NEEDS_TORCH
def test_a_step_without_gradients_is_captured_by_phase(hosim, mine):
    assert hosim("import", "torch", "mine_steps:alone", "--phase", "prefill", "-o", "mine.yaml").code == 0
    graph = (mine / "mine.jsonl").read_text(encoding="utf-8")
    assert '"phase":"prefill"' in graph
    assert "backward" not in graph
    assert "title: A prefill of Model, captured from PyTorch" in (mine / "mine.yaml").read_text(encoding="utf-8")


@NEEDS_TORCH
@pytest.mark.parametrize(
    ("function", "name", "outputs"),
    [("alone", "Model", "kept"), ("a_step", "mine-alone", "kept"), ("captured", "Model", "freed")],
)
def test_what_a_function_may_return(hosim, mine, function, name, outputs):
    assert hosim("import", "torch", f"mine_steps:{function}", "-o", "mine.yaml").code == 0
    text = (mine / "mine.yaml").read_text(encoding="utf-8")
    assert f"\nname: {name}\n" in text
    assert ("\noutputs: freed\n" in text) == (outputs == "freed")


@NEEDS_TORCH
def test_an_optimizer_may_be_named(hosim, mine):
    texts = []
    for function in ("named", "unnamed"):
        assert hosim("import", "torch", f"mine_steps:{function}", "-o", "mine.yaml", "--force").code == 0
        texts.append((mine / "mine.jsonl").read_text(encoding="utf-8"))
    assert texts[0] == texts[1]
    assert "exp_avg" in texts[0]


@NEEDS_TORCH
def test_options_reach_the_capture(hosim, mine):
    done = hosim("import", "torch", "mine_steps:alone", "-o", "mine.yaml", "--name", "other", "--free-early")
    assert done.code == 0
    text = (mine / "mine.yaml").read_text(encoding="utf-8")
    assert "\nname: other\n" in text
    assert "outputs: freed" in text
    assert "workspace_bytes" not in (mine / "mine.jsonl").read_text(encoding="utf-8")


@NEEDS_TORCH
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("mine_steps:branches", r"mine_steps.py:\d+: nothing in a step depends on the values of tensors"),
        ("mine_steps:fails", r"mine_steps.py:\d+: .*found ZeroDivisionError: of the user"),
        ("mine_steps:nothing", "the function returns a module or a step, and its inputs, found NoneType"),
        ("mine_steps:empty", "the function returns a module or a step, and its inputs, found tuple"),
        ("mine_steps:only_options", "the function returns a module or a step, and its inputs, found tuple"),
        (
            "mine_steps:word",
            r"an optimizer is one of torch.optim, found 'adamx'; use one of .*AdamW.* \(did you mean 'Adam\w*'\?\)",
        ),
        ("mine_steps:of_ranks", r"found ValueError: .* RANK expected, but not set; say for how many .*: --ranks 8"),
        ("mine_steps:word_loss", "loss is a function, such as my_loss, found 'mse'; write it without quotes"),
        ("mine_steps:ends", r"mine_steps.py:\d+: .*found SystemExit: the code ends"),
        ("mine_broken:step", "import torch mine_broken:step: .*found SyntaxError"),
        ("mine_steps:absent", "import torch mine_steps:absent: .*has no attribute 'absent'; correct its name"),
        ("mine_absent:step", "import torch mine_absent:step: .*No module named 'mine_absent'; run this in the folder"),
        ("mine_steps.absent:step", "the module is there, found No module named 'mine_steps.absent'; run this in"),
        ("mine_steps.py:alone", "import torch mine_steps.py:alone: .*and name it without .py"),
        ("mine_needs:step", r"mine_needs.py:1: .*No module named 'absent_library'; correct it there"),
        ("mine_steps.py", "a step is named as package.module:function, found 'mine_steps.py'"),
        ("mine_steps:", "a step is named as package.module:function"),
        (":step", "a step is named as package.module:function"),
        ("../mine:step", "a step is named as package.module:function"),
        ("", "a step is named as package.module:function"),
    ],
)
def test_what_is_no_step_is_one_line(hosim, mine, source, said):
    done = hosim("import", "torch", source, "-o", "mine.yaml")
    assert (done.code, done.out) == (1, "")
    assert len(done.err.splitlines()) == 1
    assert re.search(said, done.err)
    assert not (mine / "mine.yaml").exists()


@NEEDS_TORCH
def test_what_the_function_prints_and_imports_late_stays_its_own(hosim, mine):
    before = list(sys.path)
    done = hosim("import", "torch", "mine_steps:prints", "-o", "mine.yaml", "--json")
    assert done.code == 0
    assert json.loads(done.out)["files"] == ["mine.yaml", "mine.jsonl"]
    assert "from the function" in done.err
    assert "from the model" in done.err
    assert sys.path == before
    sys.modules.pop("mine_late", None)


@given(st.text(max_size=40) | st.from_regex(r"[.:/\\ a-z]{0,12}", fullmatch=True))
def test_whatever_stands_for_a_function_is_refused_unless_it_is_a_name(source):
    module, _, function = source.partition(":")
    if all(part.isidentifier() for part in (*module.split("."), function)):
        return
    with pytest.raises(ConfigError, match=r"a step is named as package\.module:function"):
        READ(source)


def test_without_torch_one_line_says_what_to_install(hosim, mine, monkeypatch):
    import simulator.errors as door

    def absent(name):
        raise ImportError("No module named 'torch'", name="torch")

    monkeypatch.setattr(door, "import_module", absent)
    done = hosim("import", "torch", "mine_steps:alone", "-o", "mine.yaml")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "hosim: hosim.torch: a step of PyTorch is captured where torch is installed, found No module named 'torch'; "
        'run: pip install "hosim[torch]"\n'
    )


def test_help_says_that_the_function_runs(hosim):
    text = " ".join(hosim("import", "torch", "--help").out.split())
    assert "Run a function that makes a model" in text
    assert "--free-early" in text


def test_a_module_that_is_not_there_is_refused_before_torch_is_imported(tmp_path):
    """Its import takes seconds; and no code of the user's packages runs before it."""
    for folder, file in (("package", "__init__.py"), ("package", "steps.py"), ("space/inner", "steps.py")):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / file).write_text("raise SystemExit('it ran')\n")
    program = "import sys\nfrom simulator.importers.torch import read_torch\nfrom simulator.errors import ConfigError\n"
    modules = ["mine_absent", "package.absent", "space.inner.absent", "package.steps.absent"]
    for module in modules:
        program += f"try:\n    read_torch('{module}:step')\nexcept ConfigError as error:\n"
        program += "    print('torch' in sys.modules, error)\n"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    for module, line in zip(modules, done.stdout.splitlines(), strict=True):
        said = f"False import torch {module}:step: the module is there, found No module named '{module}'; run this in"
        assert line.startswith(said)

"""Programs of torch.export: their graphs are those of the modules, and files that went wrong are refused."""

import io
import json
import zipfile
from collections import Counter
from pathlib import Path
from random import Random

import pytest

torch = pytest.importorskip("torch", reason='torch is not installed (pip install "hosim[torch]")')

from examples import examples  # noqa: E402
from mutations import broken  # noqa: E402
from mutations import changed as other_tree  # noqa: E402
from torch import nn  # noqa: E402

import simulator as hosim  # noqa: E402
from simulator.errors import ConfigError  # noqa: E402
from simulator.lifetime import live_bytes  # noqa: E402

LONGEST_MESSAGE = 2000


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(100, 32), nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)
        self.register_buffer("scale", torch.ones(32))

    def forward(self, ids, *, offset):
        x = self.table(ids) + offset
        heads = self.norm(x).unflatten(-1, (2, 16)).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(-2)
        return x + self.down(torch.relu(self.up(x))) * self.scale


def inputs():
    return (torch.randint(0, 100, (4, 8)),), {"offset": torch.randn(32)}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    args, named = inputs()
    path = tmp_path_factory.mktemp("exported") / "mine.pt2"
    torch.export.save(torch.export.export(Model(), args, named), path)
    return path


def figures(graph):
    kinds = Counter()
    for tensor in graph.tensors:
        kinds[str(tensor.kind), tensor.persistent] += tensor.size_bytes
    ops = [
        (op.name.rpartition("/")[2].partition("@")[0].partition("#")[0], op.flops, op.read_bytes, op.write_bytes)
        for op in graph.ops
    ]
    return ops, kinds, int(live_bytes(graph).max())


def test_a_program_trains_nothing_and_reads_prompts(program):
    with pytest.raises(ConfigError, match="an exported program has no loss, found train; say --phase prefill, or imp"):
        hosim.read_torch(str(program), phase="train")
    assert {op.phase for op in hosim.read_torch(str(program), phase="prefill").graph.ops} == {"prefill"}


def test_a_program_is_the_graph_of_its_module(program):
    found = hosim.read_torch(str(program), free_early=True)  # Python holds what a program does not
    model, (args, named) = Model(), inputs()

    with hosim.torch.fake():
        model = Model()

        def run(ids, offset):
            with torch.no_grad():
                return model(ids, offset=offset)

    direct = hosim.torch.capture(run, *args, **named, free_early=True)
    assert figures(found.graph) == figures(direct.graph)
    assert {op.phase for op in found.graph.ops} == {"forward"}
    weights = {tensor.name: tensor.size_bytes for tensor in found.graph.tensors if tensor.kind == "weight"}
    held = {name: held.nbytes for name, held in [*model.named_parameters(), *model.named_buffers()]}
    assert weights == held
    assert sum(op.flops for op in found.graph.ops) == 2 * 32 * 2 * 32 * 128 + 4 * 4 * 8 * 8 * 32 // 2
    assert any(op.name == "up/fwd/addmm" for op in found.graph.ops)  # by module
    assert found.workload.name == "mine"
    assert found.workload.title == "A run of mine, captured from PyTorch"


def test_a_program_of_any_batch_runs_on_its_example(tmp_path):
    args, named = inputs()
    batch = torch.export.Dim("batch", min=1, max=64)
    made = torch.export.export(Model(), args, named, dynamic_shapes={"ids": {0: batch}, "offset": None})
    torch.export.save(made, tmp_path / "any.pt2")
    found = hosim.read_torch(str(tmp_path / "any.pt2"), name="any")
    assert (found.workload.batch, found.workload.sequence) == (4, 8)
    assert sum(op.flops for op in found.graph.ops) == 2 * 32 * 2 * 32 * 128 + 4 * 4 * 8 * 8 * 32 // 2


class _Runs:
    """What a pickle runs when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def changed(program, path, name, data):
    """Write a program with another file in it."""
    with zipfile.ZipFile(program) as archive, zipfile.ZipFile(path, "w") as out:
        for item in archive.infolist():
            out.writestr(item.filename, data if item.filename.endswith(name) else archive.read(item))
    return str(path)


def test_no_pickle_in_a_program_runs(program, tmp_path):
    buffer = io.BytesIO()
    torch.save(((_Runs(tmp_path / "ran"),), {}), buffer)
    with pytest.raises(ConfigError, match=r"bad\.pt2: torch\.export\.load reads the file"):
        hosim.read_torch(changed(program, tmp_path / "bad.pt2", "sample_inputs/model.pt", buffer.getvalue()))
    assert not (tmp_path / "ran").exists()
    torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    assert (tmp_path / "ran").exists()  # it would have


def test_a_file_that_is_no_program_is_refused(program, tmp_path):
    (tmp_path / "cut.pt2").write_bytes(program.read_bytes()[:500])
    with pytest.raises(ConfigError, match="not a zip file"):
        hosim.read_torch(str(tmp_path / "cut.pt2"))
    with pytest.raises(ConfigError, match="no such file"):
        hosim.read_torch(str(tmp_path / "absent.pt2"))
    with zipfile.ZipFile(program) as archive, zipfile.ZipFile(tmp_path / "p.pt2", "w", zipfile.ZIP_DEFLATED) as out:
        for item in archive.infolist():
            out.writestr(item.filename, bytes(1000) * 1000)
    with pytest.raises(ConfigError, match="stored as they are, found packed"):
        hosim.read_torch(str(tmp_path / "p.pt2"))
    with pytest.raises(ConfigError, match=r"torch\.export\.load reads the file, found TypeError"):
        hosim.read_torch(changed(program, tmp_path / "bad.pt2", "models/model.json", b'{"a": 1}'))


def read(program, number, folder):
    """Whether a program that went wrong could be read."""
    random = Random(f"exported {number}")
    path, name = (
        folder / "wrong.pt2",
        random.choice(["models/model.json", "weights_config.json", "sample_inputs/model.pt"]),
    )
    if random.random() < 0.3:
        path.write_bytes(broken(program.read_bytes(), random))
    else:
        with zipfile.ZipFile(program) as archive:
            data = next(archive.read(item) for item in archive.infolist() if item.filename.endswith(name))
        if name.endswith(".json") and random.random() < 0.6:
            data = json.dumps(other_tree(json.loads(data), random)).encode()
        else:
            data = broken(data, random)
        changed(program, path, name, data)
    message = ""
    try:
        hosim.read_torch(str(path))
    except ConfigError as error:
        message = str(error)
    assert len(message) < LONGEST_MESSAGE
    assert message.isprintable()
    return not message


def test_a_program_that_went_wrong_is_read_or_refused(program, tmp_path):
    assert {read(program, number, tmp_path) for number in range(12)} == {True, False}


@pytest.mark.slow
def test_thousands_of_programs_that_went_wrong(program, tmp_path):
    for number in range(12, 40 + examples(10_000)):
        read(program, number, tmp_path)

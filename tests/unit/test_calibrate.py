"""`hosim calibrate`: the profile says of each size what was measured; and noise is named."""

import os
import sys
from contextlib import nullcontext
from itertools import count, cycle
from types import SimpleNamespace

import numpy as np
import pytest

from simulator import catalog
from simulator.cost.service import transfer_ns
from simulator.errors import ConfigError
from simulator.execute import calibrate as measuring
from simulator.execute import tiers
from simulator.execute.calibrate import Probe, calibrate
from simulator.hardware import Link
from simulator.units import human

MIB = 1 << 20


@pytest.fixture(autouse=True)
def numpy_alone(monkeypatch):
    """What computes is numpy: torch takes seconds to import."""
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture
def quick(monkeypatch):
    """Each probe once a round."""
    monkeypatch.setattr(measuring, "_repeated", lambda once, _: [once()])


def copies(times_s, rounds=2):
    return [Probe("a copy", size, "B/s", lambda: 0, [[size / time_s]] * rounds) for size, time_s in times_s.items()]


@pytest.mark.parametrize(
    "times_s",
    [
        {4096: 50e-6, MIB: 1e-3, 16 * MIB: 16e-3},
        {4096: 50e-6, 65536: 60e-6, MIB: 2e-3, 16 * MIB: 16e-3, 128 * MIB: 200e-3},
        {4096: 500e-6, 65536: 70e-6, MIB: 450e-6},  # the smallest took longest
        {4096: 1e-6, MIB: 1e-3},  # no latency to be seen
    ],
)
def test_a_link_takes_as_long_as_was_measured(times_s):
    """Through latency, bandwidth and efficiency together."""
    link = Link.model_validate({"source": "ram", "target": "disk", **measuring._link(copies(times_s))})
    for size, time_s in times_s.items():
        assert transfer_ns(size, link) == pytest.approx(time_s * 1e9, rel=2e-3)


def test_the_first_of_several_copies_of_a_size_counts():
    """Of a GPU these are the pinned ones; pageable ones are cited beside them."""
    pinned, pageable = copies({4096: 1e-5, MIB: 1e-4}), copies({4096: 1e-4, MIB: 1e-3})
    assert measuring._link(pinned + pageable) == measuring._link(pinned)


def test_a_citation_states_the_spread_and_names_noise():
    """Median, least, most and count over all rounds; noisy if the medians of rounds differ by more than a tenth."""
    calm, noisy = ([1e9, 2e9, 3e9], [1.9e9, 2e9, 2.1e9]), ([1e9, 2e9, 3e9], [2.3e9])
    cited = [Probe("64 MiB", 64 * MIB, "B/s", lambda: 0, [*rounds]).citation for rounds in (calm, noisy)]
    assert cited[0] == {
        "from": "64 MiB", "value": "median 2.00 GB/s, least 1.00 GB/s, most 3.00 GB/s, of 6",
        "basis": "measured", "confidence": "A",
    }  # fmt: skip
    assert cited[1]["note"] == "noisy: its rounds differ by a factor of 1.15"


def test_probes_take_turns_round_after_round():
    """So a disturbance of some seconds does not meet all of one figure."""
    order, told = [], []
    probes = {
        name: [Probe(name, 10, unit, lambda name=name: order.append(name) or 2e-6)]
        for name, unit in (("rate", "B/s"), ("time", "ns"))
    }
    measuring._measure(probes, 3, 0.0, lambda *progress: told.append(progress))
    assert order == ["rate", "time"] * 3
    assert probes["rate"][0].rounds == [[5e6]] * 3
    assert probes["time"][0].rounds == [[pytest.approx(2000)]] * 3
    assert told[1] == ("measuring time", 1, 6)


def test_a_probe_is_repeated_for_its_time(monkeypatch):
    """Once at least."""
    monkeypatch.setattr(measuring, "perf_counter", count().__next__)
    assert measuring._repeated(lambda: 0.5, 0) == [0.5]
    assert measuring._repeated(lambda: 0.5, 3) == [0.5] * 3


@pytest.mark.usefixtures("quick")
def test_the_profile_is_that_of_what_was_measured(tmp_path):
    """Each figure has its measurement as the source, or says what it was assumed from."""
    machine = calibrate(tmp_path / "mine.yaml", folder=tmp_path, quick=True)
    read = catalog.load(tmp_path / "mine.yaml", "hardware", is_strict=True).document
    assert read == machine
    assert (machine.name, machine.tier_names, machine.compute_tier) == ("mine", ("ram", "disk"), "ram")
    assert {name: (link.source, link.target) for name, link in machine.links.items()} == {
        "d2h": ("ram", "disk"), "h2d": ("disk", "ram"),
    }  # fmt: skip
    assert machine.origins()["mine"] == 0
    assert [cited.text for cited in machine.sources["links.h2d"]] == [
        f"{size} from a file into new memory" for size in ("4 KiB", "64 KiB", "1 MiB", "16 MiB")
    ]
    assert machine.compute.peak_flops["bf16"] == machine.compute.peak_flops["fp32"]
    assert "as fp32" in machine.assumed["compute.peak.bf16"]
    spread = machine.sources["tiers.ram.bandwidth"][-1]
    assert human(machine.tiers["ram"].bandwidth_bytes_per_s, "B/s") in (spread.value or "")
    assert spread.text.startswith("16 MiB ")
    assert os.listdir(tmp_path) == ["mine.yaml"]


@pytest.mark.parametrize(("together", "carried"), [(2e9, 3e9), (3.5e9, 3.5e9)])
def test_a_bus_carries_what_one_of_its_links_carries_alone(tmp_path, monkeypatch, together, carried):
    """Even if copies both ways hinder each other: a copy that is alone takes as long as was measured."""
    rates = {"links.d2h": 3e9, "buses.file.bandwidth": together}
    monkeypatch.setattr(measuring, "_measure", lambda probes, *_: [
        probe.rounds.append([rates.get(path, 1e9)]) for path, every in probes.items() for probe in every
    ])  # fmt: skip
    machine = calibrate(tmp_path / "mine.yaml", folder=tmp_path, quick=True)
    assert machine.buses["file"].bandwidth_bytes_per_s == carried
    assert machine.buses["file"].links == ("d2h", "h2d")


@pytest.mark.usefixtures("quick")
def test_a_noisy_machine_is_named(tmp_path, monkeypatch):
    """By its figures, or by what other programs take of the cores; a quiet one by neither."""
    for others, rounds, noisy in ((0, [1, 1], False), (0, [1, 2], True), (1e9, [1, 1], True)):
        paces = cycle(rounds)
        monkeypatch.setattr(measuring, "_measure", lambda probes, *_, paces=paces: [
            probe.rounds.append([1e6 * next(paces)]) for every in probes.values() for probe in every for _ in (0, 1)
        ])  # fmt: skip
        monkeypatch.setattr(measuring, "_others_s", iter([0, others]).__next__)
        assert ("; noisy: " in calibrate(tmp_path / "mine.yaml", folder=tmp_path, quick=True).title) == noisy


def test_what_cannot_be_written_is_refused_before_it_is_measured(tmp_path, monkeypatch):
    """In a line that says what to do."""
    monkeypatch.setattr(measuring, "_measure", None)
    with pytest.raises(ConfigError, match=r"a profile is a .yaml, found 'this.json'; write for example"):
        calibrate(tmp_path / "this.json")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError, match="an output is a file, found a folder"):
        calibrate(tmp_path / "folder.yaml")
    with pytest.raises(ConfigError, match="name another folder"):
        calibrate(tmp_path / "mine.yaml", folder=tmp_path / "none")
    monkeypatch.setattr(measuring, "free_memory", lambda: 1000)
    with pytest.raises(ConfigError, match="memory: 1,048,576 B of it are free, found 1,000 B; end other programs"):
        calibrate(tmp_path / "mine.yaml")


class Tensor(np.ndarray):
    """A tensor of the library that stands for torch."""

    def copy_(self, source, non_blocking=False):
        self[:] = source


class Device:
    """``torch.cuda`` of a GPU that is none."""

    def synchronize(self):
        """Wait for nothing."""

    def stream(self, stream):
        return nullcontext()

    def Stream(self):  # noqa: N802 - as there
        return SimpleNamespace(synchronize=bool)

    def is_available(self):
        return True

    def mem_get_info(self):
        return 10**9, 2 * 10**9


def with_gpu():
    """What stands for torch with a GPU."""
    gpu = SimpleNamespace(__name__="torch", __version__="2.13.0+cu130", cuda=Device(), uint8=np.uint8)
    gpu.float32 = gpu.bfloat16 = gpu.float16 = gpu.float64 = np.float32
    gpu.matmul, gpu.empty_like, gpu.mm = np.matmul, np.empty_like, lambda *_: None
    gpu.asarray = lambda data, dtype, device: data
    gpu.rand = lambda *shape, device: None
    gpu.ones = lambda size, dtype, pin_memory: np.ones(size, dtype).view(Tensor)
    gpu.ones_like = lambda place, device: np.ones_like(place)
    return gpu


@pytest.mark.usefixtures("quick")
def test_with_a_gpu_there_are_three_tiers(tmp_path, monkeypatch):
    """Its memory, pinned memory that it copies from, and the file; pageable memory is cited beside it."""
    monkeypatch.setitem(sys.modules, "torch", with_gpu())
    machine = calibrate(tmp_path / "mine.yaml", folder=tmp_path, quick=True)
    assert catalog.load(tmp_path / "mine.yaml", "hardware", is_strict=True).document == machine
    assert (machine.tier_names, machine.compute_tier) == (("hbm", "ram", "disk"), "hbm")
    assert machine.tiers["hbm"].capacity_bytes == 10**9
    assert machine.sources["tiers.disk.capacity"][0].text == "what was free during calibration"
    assert {name: (link.source, link.target) for name, link in machine.links.items()} == {
        "d2h": ("hbm", "ram"), "h2d": ("ram", "hbm"), "write": ("ram", "disk"), "read": ("disk", "ram"),
    }  # fmt: skip
    assert {name: bus.links for name, bus in machine.buses.items()} == {
        "file": ("write", "read"), "pcie": ("d2h", "h2d"),
    }  # fmt: skip
    kinds = [cited.text.partition("B ")[2] for cited in machine.sources["links.h2d"]]
    assert kinds == ["pinned"] * 4 + ["pageable"] * 4 + ["pinned, beside 8 matmuls"] * 4
    assert machine.sources["host.reactive.copy"][0].text == "issuing a copy of pinned memory"


def test_memory_is_that_of_the_container(monkeypatch):
    """A limit of the group counts; no group, and a group without one, do not."""
    texts = {"meminfo": "MemTotal: 9000 kB\nMemAvailable: 5000 kB\n"}

    def read_text(path):
        if path.name not in texts:
            raise FileNotFoundError
        return texts[path.name]

    monkeypatch.setattr(tiers, "Path", lambda path: FakePath(path, read_text))
    assert tiers.free_memory() == 5000 << 10
    texts |= {"memory.max": "max\n", "memory.current": "7\n"}
    assert tiers.free_memory() == 5000 << 10
    texts |= {"memory.max": "1000000\n", "memory.current": "400000\n"}
    assert tiers.free_memory() == 600_000


class FakePath(SimpleNamespace):
    """A file of the system with a text of the test."""

    def __init__(self, path, read):
        super().__init__(name=path.rpartition("/")[2], read_text=lambda: read(self), path=path, read=read)

    def __truediv__(self, name):
        return FakePath(f"{self.path}/{name}", self.read)

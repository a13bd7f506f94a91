"""Pages as people open them: one file without network, below 5 MB, with timelines and tables that answer a mouse."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser

import browser
import chain
import pytest

import simulator as hosim
from simulator.cli import main

MOST_BYTES = 5_000_000
EMPTY = {"img", "meta", "br", "hr", "link", "input", "wbr"}


class Parsed(HTMLParser):
    """A page that is well formed: what it has, what it loads, and data of its own."""

    def __init__(self, text):
        super().__init__()
        self.open, self.loads, self.data, self.tables = [], [], [], 0
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.loads += [found[name] for name in ("src", "href", "srcset", "data") if name in found]
        self.tables += tag == "table"
        if tag not in EMPTY:
            self.open.append((tag, found))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, text):
        if self.open and self.open[-1] == ("script", {"type": "application/json"}):
            self.data.append(json.loads(text))


@pytest.fixture(scope="module")
def pages(ran, blank, tmp_path_factory):
    """A page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    scenario = chain.write(folder)
    shutil.copytree(ran, folder / "run")
    asked = ["run", str(scenario), "--policy", "static", "--set", "links.*.bandwidth=20 GB/s"]
    with blank(), pytest.raises(SystemExit, match="0"):
        main([*asked, "--out", str(folder / "faster")])
    grid = {"links.*.bandwidth": "10..40 GB/s:3", "scenario.budget": "4.3 MB, 6 MB"}
    hosim.sweep(scenario, grid, workers=1, cache=False).write(folder / "sweep")
    asked = ["sweep", str(scenario), *("--grid", "links.*.bandwidth=10 GB/s,20 GB/s"), "--no-cache", "--workers", "1"]
    with blank(), pytest.raises(SystemExit, match="0"):
        main([*asked, "--policy=static", "--out", str(folder / "asked")])
    (folder / "diff").mkdir()
    found = hosim.diff(folder / "run", folder / "faster")
    (folder / "diff" / "report.html").write_text(found.view.page(None), encoding="utf-8")
    return {name: folder / name / "report.html" for name in ("run", "faster", "sweep", "asked", "diff")}


@pytest.mark.parametrize("kind", ["run", "faster", "sweep", "diff"])
def test_a_page_is_one_small_file_that_loads_nothing(kind, pages):
    text = pages[kind].read_text(encoding="utf-8")
    page = Parsed(text)
    assert all(one.startswith(("data:", "#")) for one in page.loads)
    assert not re.search(r"""@import|url\(|fetch\(|XMLHttp|import\(""", re.sub('base64,[^"]*', "", text))
    assert len(text.encode()) < MOST_BYTES
    assert page.tables


def test_a_page_says_what_ran_where_with_what_and_how_to_run_it_again(pages):
    run, faster, sweep, asked = (pages[kind].read_text(encoding="utf-8") for kind in pages if kind != "diff")
    for text in (run, faster, sweep, asked):
        assert "<strong>model</strong>" in text
        assert "<strong>machine</strong>" in text
        assert "sha256" in text
        assert f"hosim {hosim.__version__}" in text
    again = "hosim run scenario.yaml --policy static --set &#39;links.*.bandwidth=20 GB/s&#39; --out faster"
    assert f"<code>{again}</code>" in faster
    command = "hosim sweep scenario.yaml --grid &#39;links.*.bandwidth=10 GB/s,20 GB/s&#39; --policy=static --out asked"
    assert f"<code>{command}</code>" in asked
    assert "<code>hosim" not in sweep + run, "nobody typed a command"


def test_a_timeline_that_zooms_has_every_bar_of_the_row_to_the_nanosecond(pages):
    row = hosim.run(pages["run"].parent / "scenario.yaml")["static"]
    told = next(one for one in Parsed(pages["run"].read_text(encoding="utf-8")).data[::-1])
    bars = set()
    for band in told["bands"]:
        now = 0
        for gap, length, look, name in zip(band["gap"], band["length"], band["look"], band["name"], strict=True):
            bars.add((told["names"][name], told["looks"][look][0], now + gap, now + gap + length))
            now += gap + length
    waits, spans = row.waits, row.spans
    assert len(bars) == len(waits) + len(spans)
    kinds = {tensor.name: tensor.kind.replace("_", " ") for tensor in row.graph.tensors}
    ops = {op.name: op.phase or "compute" for op in row.graph.ops}
    for span in spans.to_dict("records"):
        looks = (kinds | ops)[span["name"].split("/", 1)[1] if span["name"].startswith("step") else span["name"]]
        assert any(bar[1:] == (looks, span["start_ns"], span["end_ns"]) for bar in bars), span
    for wait in waits.to_dict("records"):
        found = [bar for bar in bars if bar[1:] == (f"stall: {wait['cause']}", wait["start_ns"], wait["end_ns"])]
        assert len(found) == 1
        assert not wait["tensor"] or found[0][0].endswith(f" lacks {wait['tensor']}")
    hbm = told["memories"][0]
    held = [0] * len(hbm["kinds"])
    peak = 0
    for changes in zip(*hbm["change"], strict=True):
        held = [now + change for now, change in zip(held, changes, strict=True)]
        peak = max(peak, sum(held))
    assert (hbm["tier"], peak) == ("hbm", row.summary["peak_hbm_bytes"])


@pytest.mark.usefixtures("pictures_are_blank")
def test_too_many_bars_leave_the_picture(tmp_path, monkeypatch):
    from simulator.report import html

    monkeypatch.setattr(html, "_MOST_BYTES", 1000)
    hosim.run(chain.write(tmp_path), policies=["static"]).write(tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "application/json" not in text
    assert '<div class="picture"><img alt="Timeline of static"' in text


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    if browser.FOUND is None:
        pytest.skip("no Chromium is installed")
    with browser.Browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("kind", ["run", "sweep", "diff"])
def test_a_page_opens_without_a_word_and_is_as_wide_as_the_window(kind, width, dark, pages, opened):
    opened.open(pages[kind], width, dark=dark)
    assert opened.said == []
    assert {url.split(":")[0] for url in opened.asked} <= {"file", "data"}
    assert opened.run("document.documentElement.scrollWidth") <= width
    back, ink = (opened.run(f"getComputedStyle(document.body).{what}") for what in ("backgroundColor", "color"))
    bright = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (back, ink)]
    assert (bright[0] < bright[1]) == dark
    assert abs(bright[0] - bright[1]) > 400


def test_a_timeline_zooms_and_names_what_is_under_the_mouse(pages, opened):
    opened.open(pages["run"])
    place = "document.querySelectorAll('.timeline')[1]"
    opened.run(f"{place}.scrollIntoView()")
    box = opened.run(f"{place}.querySelector('canvas').getBoundingClientRect().toJSON()")
    window = f"{place}.dataset.window.split(' ').map(Number)"
    whole = opened.run(window)
    x, y = box["x"] + box["width"] / 2, box["y"] + 18
    opened.mouse("Moved", x, y)
    tip = opened.run(f"{place}.querySelector('.tip').hidden ? '' : {place}.querySelector('.tip').textContent")
    assert re.search(r"(forward|backward|update|compute|stall: \w+), [\d.]+ (ns|us|ms), from ", tip), tip
    opened.mouse("Moved", box["x"] + box["width"] - 60, box["y"] + 3 * 36 + 120)
    assert "hbm: " in opened.run(f"{place}.querySelector('.tip').textContent")
    opened.mouse("Moved", x, y)
    opened.mouse("Pressed", x, y, button="left", clickCount=1)
    opened.mouse("Moved", x + 100, y, button="left")
    opened.mouse("Released", x + 100, y, button="left", clickCount=1)
    first, last = opened.run(window)
    share = (last - first) / (whole[1] - whole[0])
    assert 0.05 < share < 0.15
    opened.run(f"{place}.querySelector('button').click()")
    assert opened.run(window)[1] - opened.run(window)[0] == pytest.approx((last - first) / 2, abs=2)
    opened.run(f"{place}.querySelector('canvas').dispatchEvent(new MouseEvent('dblclick'))")
    assert opened.run(window) == whole
    assert opened.run(f"{place}.querySelector('img') === null"), "the picture stands in where nothing runs"
    line = f"(c => [...c.getContext('2d').getImageData(0, 18, c.width, 1).data])({place}.querySelector('canvas'))"
    pixels = opened.run(line)
    assert len({tuple(pixels[at : at + 3]) for at in range(0, len(pixels), 4)}) > 4, "it is drawn"
    assert opened.said == []


def test_tables_sort_by_what_numbers_are_worth(pages, opened):
    opened.open(pages["run"])
    cells = "[...document.querySelectorAll('table')].find((t) => t.tHead && t.tHead.textContent.includes('step'))"
    which = "[...t.tHead.rows[0].cells].findIndex((c) => c.textContent === 'step')"
    column = f"(() => {{ const t = {cells}; const n = {which};"
    read = f"{column} return [...t.tBodies[0].rows].map((r) => r.cells[n].textContent); }})()"
    click = f"{column} t.tHead.rows[0].cells[n].click(); }})()"
    before = opened.run(read)
    assert before[0] == "-"
    orders = []
    for _ in range(3):
        opened.run(click)
        orders.append(opened.run(read))
    assert orders[0] == [*sorted(before[1:], key=lambda text: float(text.split()[0])), "-"]
    assert orders[1] == orders[0][::-1]
    assert orders[2] == before

"use strict";
// What a page does by itself: tables that sort, and timelines with zoom and hover. No library: a timeline divides each
// pixel by height as its time is, so that no stall is too short to be seen, which charts of libraries do not.
const UNITS = {
  ns: [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]],
  B: [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]],
};
const SIZES = Object.fromEntries([...UNITS.ns, ...UNITS.B, ["h", 3.6e12], ["min", 6e10], ["k", 1e3], ["M", 1e6], ["G", 1e9]]);
const quantity = (value, unit) => {
  const [name, size] = UNITS[unit].find(([, size]) => Math.abs(value) >= size) || UNITS[unit].at(-1);
  return `${Number((value / size).toPrecision(4))} ${name}`;
};

// Tables: a click on a heading sorts by it, upwards, downwards, and as it was.
const worth = (cell) => {
  const found = /^([+-]?[\d.,]*\d)x?\s*([A-Za-z]*)/.exec(cell.textContent.trim());
  return found ? parseFloat(found[1].replaceAll(",", "")) * (SIZES[found[2]] || 1) : null;
};
const compared = (a, b) => {
  const [one, other] = [worth(a), worth(b)];
  if (one !== null && other !== null) return one - other;
  if (one !== null || other !== null) return one === null ? 1 : -1;
  return a.textContent.localeCompare(b.textContent);
};
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], lines = [...body.rows];
  const heads = table.tHead && lines.length > 1 ? [...table.tHead.rows[0].cells] : [];
  heads.forEach((head, column) => {
    const sort = () => {
      const now = { ascending: "descending", descending: "none" }[head.ariaSort] || "ascending";
      heads.forEach((other) => (other.ariaSort = "none"));
      head.ariaSort = now;
      const sorted = now === "none" ? lines : [...lines].sort((a, b) => compared(a.cells[column], b.cells[column]));
      body.append(...(now === "descending" ? sorted.reverse() : sorted));
    };
    head.tabIndex = 0;
    head.ariaSort = "none";
    head.onclick = sort;
    head.onkeydown = (event) => event.key === "Enter" && sort();
  });
}

// Timelines. Times are written as gaps and lengths, memory as changes: both are summed up here.
const running = (changes, from = 0) => changes.map((change) => (from += change));
const after = (times, moment) => { // how many are at most that late
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= moment) low = middle + 1; else high = middle;
  }
  return low;
};
function timeline(place) {
  const told = JSON.parse(place.querySelector("script").textContent);
  const [LANE, MEMORY, AXIS, GAP] = [36, 110, 24, 14];
  for (const band of told.bands) {
    let [now, most] = [0, 0];
    band.start = band.gap.map((gap, n) => { const start = now + gap; now = start + band.length[n]; return start; });
    band.end = band.start.map((start, n) => start + band.length[n]);
    band.reached = band.end.map((end) => (most = Math.max(most, end)));
  }
  for (const memory of told.memories) {
    memory.time = running(memory.gap);
    memory.held = memory.change.map((changes) => running(changes));
    memory.total = memory.time.map((_, n) => memory.held.reduce((sum, held) => sum + held[n], 0));
    memory.peak = memory.total.reduce((most, total) => Math.max(most, total), 1);
  }
  const canvas = document.createElement("canvas"), tip = document.createElement("div"), bar = document.createElement("p");
  const height = told.lanes.length * LANE + told.memories.length * (MEMORY + GAP) + AXIS;
  let [from, to, left, width, drag] = [told.from, told.to, 0, 0, null];
  const x = (moment) => left + ((moment - from) / (to - from)) * width;
  const moment = (x) => from + ((x - left) / width) * (to - from);
  const panel = (n) => told.lanes.length * LANE + n * (MEMORY + GAP) + GAP;

  function columns(draw, band, top, high) { // each pixel is divided as its time is
    const cover = told.looks.map(() => null), first = after(band.reached, from), starts = [];
    let n = first;
    for (; n < band.start.length && band.start[n] < to; n++) {
      const own = (cover[band.look[n]] ||= new Float64Array(width + 1));
      const [a, b] = [Math.max(0, x(band.start[n]) - left), Math.min(width, x(band.end[n]) - left)];
      const [one, last] = [Math.floor(a), Math.floor(b)];
      if (one === last) own[one] += b - a; else own[one] += one + 1 - a;
      for (let pixel = one + 1; pixel < last; pixel++) own[pixel] += 1;
      if (one < last) own[last] += b - last;
      if (b - a > 3 && a > 0) starts.push(a);
    }
    for (let pixel = 0; pixel < width; pixel++) {
      const whole = cover.reduce((sum, own) => sum + (own ? own[pixel] : 0), 0);
      let y = top + high;
      for (let look = 0; whole > 1e-9 && look < cover.length; look++) {
        const part = cover[look] ? (high * cover[look][pixel]) / whole : 0;
        if (part > 0) { draw.fillStyle = told.looks[look][1]; draw.fillRect(left + pixel, (y -= part), 1, part); }
      }
    }
    draw.fillStyle = "#fff";
    if (n - first <= 120) starts.forEach((start) => draw.fillRect(left + Math.round(start), top, 0.6, high));
  }
  function area(draw, memory, top) { // the most of each pixel, by kind
    const near = memory.limit && memory.limit <= 4 * memory.peak, most = 1.3 * Math.max(memory.peak, near ? memory.limit : 0);
    for (let pixel = 0; pixel < width; pixel++) {
      const last = after(memory.time, moment(left + pixel + 1)) - 1;
      let best = after(memory.time, moment(left + pixel)) - 1;
      for (let n = Math.max(0, best + 1); n <= last; n++) if (best < 0 || memory.total[n] > memory.total[best]) best = n;
      let y = top + MEMORY;
      for (let kind = 0; best >= 0 && kind < memory.kinds.length; kind++) {
        const part = (MEMORY * memory.held[kind][best]) / most;
        draw.fillStyle = told.looks[memory.kinds[kind]][1];
        draw.fillRect(left + pixel, (y -= part), 1, part);
      }
    }
    draw.fillStyle = "#222";
    if (near) for (let dash = left; dash < left + width; dash += 7) draw.fillRect(dash, top + MEMORY * (1 - memory.limit / most), 5, 1);
    draw.fillText(`peak ${quantity(memory.peak, "B")}${memory.allowed ? `, ${memory.allowed}` : ""}`, left + 4, top + 11);
  }
  function draw() {
    const dots = window.devicePixelRatio || 1, whole = place.clientWidth - 2;
    left = whole < 600 ? 64 : 110;
    width = Math.max(50, Math.floor(whole - left - 2));
    Object.assign(canvas, { width: whole * dots, height: height * dots });
    Object.assign(canvas.style, { width: `${whole}px`, height: `${height}px` });
    const draw = canvas.getContext("2d");
    draw.scale(dots, dots);
    draw.font = "12px system-ui, sans-serif";
    const name = (text, y) => { draw.fillStyle = "#222"; draw.fillText(text, 2, y, left - 8); };
    told.lanes.forEach((lane, n) => name(lane, n * LANE + LANE / 2 + 4));
    for (const band of told.bands) columns(draw, band, (band.lane + 0.5 + band.top) * LANE, band.high * LANE);
    told.memories.forEach((memory, n) => { name(memory.tier, panel(n) + MEMORY / 2); area(draw, memory, panel(n)); });
    const [unit, size] = UNITS.ns.find(([, size]) => to - from >= size) || ["ns", 1], rough = (to - from) / size / (width < 400 ? 3 : 8);
    const base = 10 ** Math.floor(Math.log10(rough)), tick = [1, 2, 5, 10].find((n) => n * base >= rough) * base;
    draw.fillStyle = "#222";
    for (let n = Math.ceil(from / size / tick); n * tick * size <= to; n++) {
      draw.fillRect(x(n * tick * size), height - AXIS + 3, 1, 5);
      draw.fillText(`${Number((n * tick).toPrecision(9))} ${unit}`, Math.min(x(n * tick * size) - 8, left + width - 40), height - 2);
    }
    draw.fillStyle = "rgba(0, 119, 187, 0.25)";
    if (drag) draw.fillRect(Math.min(drag.from, drag.to), 0, Math.abs(drag.to - drag.from), height - AXIS);
    place.dataset.window = `${Math.round(from)} ${Math.round(to)}`;
  }
  function show(low, high) {
    const least = Math.max(10, (told.to - told.from) / 1e6), long = Math.min(Math.max(high - low, least), told.to - told.from);
    from = Math.min(Math.max(told.from, low), told.to - long);
    to = from + long;
    draw();
  }
  const zoom = (times, at = (from + to) / 2) => show(at - (at - from) * times, at + (to - at) * times);
  const pan = (share) => show(from + share * (to - from), to + share * (to - from));
  const found = (at, y) => { // what is said of a place
    const now = moment(at), lane = Math.floor(y / LANE), part = y / LANE - lane - 0.5;
    for (const band of told.bands.filter((one) => one.lane === lane && part >= one.top && part <= one.top + one.high)) {
      const close = (to - from) / width, n = after(band.reached, now - close);
      if (n < band.start.length && band.start[n] <= now + close) {
        const long = quantity(band.length[n], "ns"), since = quantity(band.start[n], "ns");
        return `${told.names[band.name[n]]}\n${told.looks[band.look[n]][0]}, ${long}, from ${since}`;
      }
    }
    const number = told.memories.findIndex((_, n) => y >= panel(n) && y <= panel(n) + MEMORY), memory = told.memories[number];
    const n = memory ? after(memory.time, now) - 1 : -1;
    if (n < 0) return "";
    const kinds = memory.kinds.map((kind, k) => [told.looks[kind][0], memory.held[k][n]]).filter(([, size]) => size > 0).reverse();
    return [`${memory.tier}: ${quantity(memory.total[n], "B")} at ${quantity(now, "ns")}`, ...kinds.map(([name, size]) => `${name} ${quantity(size, "B")}`)].join("\n");
  };
  canvas.onpointermove = (event) => {
    if (drag) { drag.to = Math.min(Math.max(left, event.offsetX), left + width); draw(); }
    tip.textContent = event.offsetX >= left ? found(event.offsetX, event.offsetY) : "";
    tip.hidden = !tip.textContent;
    tip.style.left = `${Math.max(0, Math.min(event.offsetX + 14, place.clientWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${canvas.offsetTop + event.offsetY + 16}px`;
  };
  canvas.onpointerleave = () => (tip.hidden = true);
  canvas.onpointerdown = (event) => {
    if (event.button || event.offsetX < left) return;
    canvas.setPointerCapture(event.pointerId);
    drag = { from: event.offsetX, to: event.offsetX };
  };
  canvas.onpointerup = () => {
    const done = drag;
    drag = null;
    if (done && Math.abs(done.to - done.from) > 5) show(...[moment(done.from), moment(done.to)].sort((a, b) => a - b));
    else draw();
  };
  canvas.onpointercancel = () => { drag = null; draw(); };
  canvas.ondblclick = () => show(told.from, told.to);
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return; // the page scrolls
    event.preventDefault();
    if (event.shiftKey) pan((event.deltaY || event.deltaX) / 1000); else zoom(Math.exp(event.deltaY / 300), moment(event.offsetX));
  }, { passive: false });
  const keys = { "+": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25), 0: () => show(told.from, told.to) };
  canvas.onkeydown = (event) => { if (keys[event.key]) { event.preventDefault(); keys[event.key](); } };
  for (const [text, key, title] of [["+", "+", "closer"], ["−", "-", "farther"], ["←", "ArrowLeft", "earlier"], ["→", "ArrowRight", "later"], ["all", "0", "the whole"]]) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: text, title, onclick: keys[key] });
    bar.append(button);
  }
  const key = told.shown.map((look) => {
    const one = document.createElement("span");
    one.style.setProperty("--look", told.looks[look][1]);
    one.textContent = told.looks[look][0];
    return one;
  });
  Object.assign(canvas, { tabIndex: 0, role: "img", ariaLabel: place.querySelector("noscript").dataset.told });
  tip.className = "tip"; tip.hidden = true; bar.className = "key";
  bar.append(...key);
  place.append(bar, canvas, tip);
  draw();
  new ResizeObserver(draw).observe(place);
}
document.querySelectorAll(".timeline").forEach(timeline);

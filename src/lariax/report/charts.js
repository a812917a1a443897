// Charts of the report. Every text goes in as textContent; nothing from the data becomes markup.
// The files charts.js, pictures.js and page.js are put into one function, in this order.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 8;
const MARGIN = { left: 58, right: 26, top: 10, bottom: 34 };
const data = JSON.parse(document.getElementById("data").textContent);
const live = document.getElementById("live");

// --- small helpers

const numbers = (text, kind) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new kind(bytes.buffer);
};
const element = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  for (const child of children) node.append(child);
  return node;
};
const shape = (tag, attributes = {}, text = null) => {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  return node;
};
const superscript = (n) => String(n).replace("-", "⁻").replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]);
const words = (value, digits = 4) => {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "–" : value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e6) return String(Number(value.toPrecision(digits))).replace("-", "−");
  return value.toExponential(2).replace("e+", "e").replace(/-/g, "−");
};
const whole = (value) => (Number.isInteger(value) ? value.toLocaleString("en") : words(value));
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const colourOf = (i) => i % COLOURS;

// --- scales

const scale = (low, high, from, to, logarithmic) => {
  const f = logarithmic ? Math.log10 : (v) => v;
  const a = f(low), b = f(high), span = b - a || 1;
  return {
    at: (v) => from + ((f(v) - a) / span) * (to - from),
    back: (p) => { const v = a + ((p - from) / (to - from)) * span; return logarithmic ? 10 ** v : v; },
  };
};
const linearTicks = (low, high, count) => {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high * (1 + 1e-12) && ticks.length < 50; i++) ticks.push(i * step);
  return ticks;
};
const logTicks = (low, high, count) => {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  if (last - first < 1) return linearTicks(low, high, count);
  const stride = Math.max(1, Math.ceil((last - first + 1) / count)), ticks = [];
  for (let e = first; e <= last; e += stride) ticks.push(10 ** e);
  return ticks;
};
const tickDigits = (ticks) => {
  // As many as tell one tick from the next, and at least 4.
  const largest = Math.max(...ticks.map(Math.abs)), step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : 0;
  return largest > 0 && step > 0 ? clamp(Math.ceil(Math.log10(largest / step) - 1e-9) + 1, 4, 8) : 4;
};
const tickWords = (value, logarithmic, digits) => {
  const e = Math.log10(Math.abs(value));
  if (logarithmic && Math.abs(e - Math.round(e)) < 1e-9 && Math.abs(e) > 3) return "10" + superscript(Math.round(e));
  if (Math.abs(value) >= 1e6) return Number((value / 1e6).toPrecision(digits)) + "M";
  if (Math.abs(value) >= 1e4) return Number((value / 1e3).toPrecision(digits)) + "k";
  return words(value, digits);
};

// --- lines with very many points: what one pixel column can show is where a line enters, its extremes, and where it leaves

const firstAt = (xs, value) => {
  let low = 0, high = xs.length;
  while (low < high) { const middle = (low + high) >> 1; if (xs[middle] < value) low = middle + 1; else high = middle; }
  return low;
};
const thinned = (xs, values, from, to, x, y, usable, foot) => {
  // What is 0 or less is drawn at the foot of a logarithmic axis, so that lines go on.
  const ys = foot === null ? values : values.map((v) => (Number.isFinite(v) && v < foot ? foot : v));
  const parts = [];
  let column = null, open = false;
  const flush = () => {
    if (!column) return;
    const { px, ends } = column;
    const seen = [...new Set(ends)];
    seen.sort((a, b) => a - b);
    for (const i of seen) { parts.push(`${open ? "L" : "M"}${px.toFixed(1)} ${y.at(ys[i]).toFixed(1)}`); open = true; }
    column = null;
  };
  for (let i = from; i < to; i++) {
    if (!usable(ys[i])) { flush(); open = false; continue; }
    const px = x.at(xs[i]), cell = Math.round(px * 2);
    if (column && column.cell === cell) {
      const { ends } = column;
      if (ys[i] < ys[ends[1]]) ends[1] = i;
      if (ys[i] > ys[ends[2]]) ends[2] = i;
      ends[3] = i;
    } else { flush(); column = { cell, px, ends: [i, i, i, i] }; }
  }
  flush();
  return parts.join("");
};

// --- what all charts of the history share

const runs = data.runs.map((run) => ({
  name: run.name,
  times: Object.fromEntries(Object.entries(run.times).map(([name, text]) => [name, numbers(text, Float64Array)])),
}));
const shared = { against: "draws", logX: false, range: null };
const history = [], plots = [];
let printing = false;
const redrawAll = () => history.forEach((chart) => chart.draw());
const timeName = { draws: "draws", seconds: "seconds", iteration: "iterations" };

const numbersTable = (host, build) => {
  const details = element("details", {}, element("summary", {}, "Numbers"));
  details.addEventListener("toggle", () => {
    if (!details.open) return;
    const { head, rows } = build();
    const cells = (kind, values) => element("tr", {}, ...values.map((v) => element(kind, kind === "th" ? { scope: "col" } : {}, v)));
    const table = element("table", {}, element("thead", {}, cells("th", head)), element("tbody", {}, ...rows.map((r) => cells("td", r))));
    details.replaceChildren(details.firstChild, element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Numbers" }, table));
  });
  host.append(details);
};

class Plot {
  // A frame with axes, a cursor and a tip; subclasses say what is in it.
  constructor(host, height) {
    this.host = host;
    this.height = height;
    this.box = element("div", { class: "plot", tabindex: "0", role: "group", "aria-roledescription": "chart" });
    this.svg = shape("svg", { height, "aria-hidden": "true" });
    this.tip = element("div", { class: "tip", hidden: "" });
    this.box.append(this.svg, this.tip);
    this.legend = element("div", { class: "legend" });
    this.tools = element("div", { class: "tools" });
    host.append(this.box, element("div", { class: "below" }, this.legend, this.tools));
    plots.push(this);
  }
  watch() {
    let width = 0;
    new ResizeObserver(() => {
      if (this.box.clientWidth && this.box.clientWidth !== width) { width = this.box.clientWidth; this.draw(); }
    }).observe(this.box);
  }
  button(label, kind, pressed, action) {
    const button = element("button", { type: "button", class: kind });
    if (pressed !== null) button.setAttribute("aria-pressed", String(pressed));
    button.append(label);
    button.addEventListener("click", () => action(button));
    (kind === "series" ? this.legend : this.tools).append(button);
    return button;
  }
  frame(xs, ys, options) {
    // Clears the drawing and makes axes for the ranges xs and ys.
    const width = printing ? 340 : Math.max(this.box.clientWidth || 320, 120), { height } = this;
    this.width = width;
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const x = scale(xs[0], xs[1], MARGIN.left, width - MARGIN.right, options.logX);
    const y = scale(ys[0], ys[1], height - MARGIN.bottom, MARGIN.top, options.logY);
    const bottom = height - MARGIN.bottom;
    const yTicks = (options.logY ? logTicks : linearTicks)(ys[0], ys[1], 5);
    const yDigits = tickDigits(yTicks);
    for (const tick of yTicks) {
      const p = y.at(tick);
      if (p < MARGIN.top - 1 || p > bottom + 1) continue;
      this.svg.append(shape("line", { class: "grid-line", x1: MARGIN.left, x2: width - MARGIN.right, y1: p, y2: p }));
      const text = tickWords(tick, options.logY, yDigits);
      const narrow = text.length > 8 ? { textLength: MARGIN.left - 8, lengthAdjust: "spacingAndGlyphs" } : {}; // else it is cut
      this.svg.append(shape("text", { x: MARGIN.left - 6, y: p + 4, "text-anchor": "end", ...narrow }, text));
    }
    const room = Math.max(2, Math.floor((width - MARGIN.left - MARGIN.right) / 75));
    const xTicks = options.xTicks ?? (options.logX ? logTicks : linearTicks)(xs[0], xs[1], room), xDigits = tickDigits(xTicks);
    for (const tick of xTicks) {
      const p = x.at(tick);
      if (p < MARGIN.left - 1 || p > width - MARGIN.right + 1) continue;
      this.svg.append(shape("line", { class: "axis-line", x1: p, x2: p, y1: bottom, y2: bottom + 4 }));
      this.svg.append(shape("text", { x: p, y: bottom + 16, "text-anchor": "middle" }, tickWords(tick, options.logX, xDigits)));
    }
    this.svg.append(shape("line", { class: "axis-line", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }));
    if (options.xLabel) {
      const middle = (MARGIN.left + width - MARGIN.right) / 2;
      this.svg.append(shape("text", { x: middle, y: height - 4, "text-anchor": "middle" }, options.xLabel));
    }
    const id = `clip${(Plot.count = (Plot.count ?? 0) + 1)}`;
    const clip = shape("clipPath", { id });
    const top = MARGIN.top - 2;
    clip.append(shape("rect", { x: MARGIN.left, y: top, width: Math.max(width - MARGIN.left - MARGIN.right, 1), height: Math.max(bottom + 2 - top, 1) }));
    this.inside = shape("g", { "clip-path": `url(#${id})` });
    this.svg.append(clip, this.inside);
    this.x = x; this.y = y; this.bottom = bottom;
  }
  showTip(px, heading, rows) {
    this.tip.replaceChildren(element("p", {}, heading), ...rows.map((row) => {
      const p = element("p");
      if (row.colour !== undefined) p.append(element("span", { class: `swatch f${row.colour}` }));
      p.append(row.text);
      return p;
    }));
    this.tip.hidden = false;
    const left = px > this.width / 2 ? px - this.tip.offsetWidth - 12 : px + 12;
    this.tip.style.left = `${clamp(left, 0, Math.max(this.width - this.tip.offsetWidth, 0))}px`;
    this.tip.style.top = `${MARGIN.top}px`;
  }
  hideTip() { this.tip.hidden = true; }
}

const kindOf = (line) => (line.minor ? " minor" : line.raw ? " raw" : "");

class HistoryChart extends Plot {
  constructor(host, panel) {
    super(host, 240);
    this.panel = panel;
    this.logY = panel.log;
    this.several = runs.length > 1;
    let major = -1;
    this.lines = panel.lines.map((line) => {
      if (!line.minor && !line.raw) major += 1;
      return { ...line, values: numbers(line.values, Float32Array), shown: true, colour: colourOf(this.several ? line.run : Math.max(major, 0)) };
    });
    this.cursor = null;
    if (this.lines.length > 1 || this.several) {
      for (const line of this.lines) {
        const label = element("span", {}, element("span", { class: `swatch f${line.colour}${kindOf(line)}` }), this.several ? `${runs[line.run].name}: ${line.label}` : line.label);
        this.button(label, "series", true, (button) => {
          line.shown = !line.shown;
          button.setAttribute("aria-pressed", String(line.shown));
          this.draw();
        });
      }
    }
    this.logButton = this.button("log", "tool", this.logY, () => this.setLog(!this.logY));
    this.button("−", "tool", null, () => this.zoom(2)).setAttribute("aria-label", "Zoom out");
    this.button("+", "tool", null, () => this.zoom(0.5)).setAttribute("aria-label", "Zoom in");
    numbersTable(host, () => this.table());
    this.listen();
    this.watch();
  }
  setLog(on) { this.logY = on; this.logButton.setAttribute("aria-pressed", String(on)); this.draw(); }
  xs(line) { return runs[line.run].times[shared.against]; }
  usable(logY) { return logY ? (v) => v > 0 && Number.isFinite(v) : Number.isFinite; }
  bounds() {
    let low = Infinity, high = -Infinity, least = Infinity;
    for (const line of this.lines) {
      const xs = this.xs(line);
      if (!xs.length) continue;
      low = Math.min(low, xs[0]); high = Math.max(high, xs[xs.length - 1]);
      const positive = firstAt(xs, Number.MIN_VALUE);
      if (positive < xs.length) least = Math.min(least, xs[positive]);
    }
    if (shared.logX) low = Math.min(least, high);
    else if (shared.against !== "seconds") low = Math.min(low, 0); // seconds begin with compiling, when nothing happens
    if (!(high > low)) high = low + 1;
    return shared.range ? [Math.max(shared.range[0], shared.logX ? least : -Infinity), shared.range[1]] : [low, high];
  }
  heights(from, to) {
    // On a linear axis the first tenth, where a run comes from far away, may leave the frame; zooming in brings it back.
    const usable = this.usable(this.logY);
    if (!shared.range && !this.logY) from += (to - from) / 10;
    let low = Infinity, high = -Infinity;
    const see = (v) => { if (usable(v)) { if (v < low) low = v; if (v > high) high = v; } };
    for (const line of this.lines) {
      if (!line.shown) continue;
      const xs = this.xs(line);
      for (let i = Math.max(firstAt(xs, from) - 1, 0); i < xs.length && xs[i] <= to; i++) see(line.values[i]);
    }
    if (this.panel.bound !== null) see(this.panel.bound);
    if (!shared.range) for (const mark of this.panel.marks) { see(mark.low); see(mark.high); see(mark.estimate); }
    if (!(high >= low)) return this.logY ? [0.1, 1] : [0, 1];
    if (this.logY) return high / low < 1.2 ? [low / 1.5, high * 1.5] : [low / 1.15, high * 1.15];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  }
  draw() {
    const [from, to] = this.bounds();
    const [low, high] = this.heights(from, to);
    this.frame([from, to], [low, high], { logX: shared.logX, logY: this.logY, xLabel: timeName[shared.against] });
    const usable = this.usable(this.logY);
    if (this.panel.bound !== null && usable(this.panel.bound)) {
      const p = this.y.at(this.panel.bound);
      this.inside.append(shape("line", { class: "bound", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: p, y2: p }));
    }
    for (const line of this.lines) {
      if (!line.shown) continue;
      const xs = this.xs(line);
      const first = Math.max(firstAt(xs, shared.logX ? Math.max(from, Number.MIN_VALUE) : from) - (shared.logX ? 0 : 1), 0);
      const path = thinned(xs, line.values, first, Math.min(firstAt(xs, to) + 1, xs.length), this.x, this.y, usable, this.logY ? low : null);
      this.inside.append(shape("path", { class: `line k${line.colour}${kindOf(line)}`, d: path }));
    }
    this.panel.marks.forEach((mark, i) => this.drawMark(mark, i, usable));
    this.describe();
    if (this.cursor !== null) this.showCursor(this.cursor, false);
  }
  drawMark(mark, i, usable) {
    // What the certificate says, beside the end of the lines.
    const step = Math.min(7, 21 / this.panel.marks.length), px = this.width - MARGIN.right + 3 + step * (i + 0.5);
    const fit = (v) => clamp(usable(v) ? this.y.at(v) : this.bottom, MARGIN.top, this.bottom);
    const a = fit(mark.low), b = fit(mark.high);
    const own = this.lines.find((line) => line.run === mark.run && line.label === mark.label);
    const colour = own ? own.colour : this.several ? colourOf(mark.run) : 0;
    const beside = mark.label === "certificate" ? "" : " beside";
    const node = shape("line", { class: `mark k${colour}${beside}`, x1: px, x2: px, y1: a, y2: Math.abs(a - b) < 2 ? a - 2 : b, "stroke-width": Math.max(step - 1.5, 0.5) });
    node.append(shape("title", {}, `${mark.label}: ${words(mark.estimate)}, ${words(mark.low)} to ${words(mark.high)}`));
    this.svg.append(node);
  }
  describe() {
    const ends = this.lines.filter((line) => line.shown && line.values.length).slice(0, 6)
      .map((line) => `${line.label} ends at ${words(line.values[line.values.length - 1])}`);
    this.box.setAttribute("aria-label", `${this.panel.title} against ${timeName[shared.against]}. ${ends.join(", ")}. ` +
      "Left and right arrows read values, plus and minus zoom, 0 shows everything, L switches the logarithmic axis.");
  }
  showCursor(i, aloud) {
    const lead = this.lines.find((line) => line.shown) ?? this.lines[0];
    if (!lead) return;
    const xs = this.xs(lead);
    if (!xs.length) return;
    this.cursor = clamp(i, 0, xs.length - 1);
    const at = xs[this.cursor], px = this.x.at(at);
    this.mark?.remove();
    this.mark = shape("g");
    this.mark.append(shape("line", { class: "cursor", x1: px, x2: px, y1: MARGIN.top, y2: this.bottom }));
    const rows = [], usable = this.usable(this.logY);
    for (const line of this.lines) {
      if (!line.shown || rows.length >= 12) continue;
      const own = this.xs(line), j = clamp(firstAt(own, at), 0, own.length - 1), value = line.values[j];
      rows.push({ colour: line.colour, text: `${this.several ? runs[line.run].name + ": " : ""}${line.label} ${words(value)}` });
      if (usable(value)) this.mark.append(shape("circle", { class: `f${line.colour}`, cx: this.x.at(own[j]), cy: this.y.at(value), r: 3.5 }));
    }
    this.inside.append(this.mark);
    const heading = `${whole(at)} ${timeName[shared.against]}`;
    this.showTip(px, heading, rows);
    if (aloud) live.textContent = `${heading}: ${rows.map((row) => row.text).join(", ")}`;
  }
  hideCursor() { this.cursor = null; this.mark?.remove(); this.hideTip(); }
  nearest(px) {
    const lead = this.lines.find((line) => line.shown) ?? this.lines[0], xs = this.xs(lead), at = this.x.back(px);
    const i = clamp(firstAt(xs, at), 0, xs.length - 1);
    return i > 0 && at - xs[i - 1] < xs[i] - at ? i - 1 : i;
  }
  zoom(factor) {
    const [from, to] = this.bounds();
    const f = shared.logX ? Math.log10 : (v) => v, g = shared.logX ? (v) => 10 ** v : (v) => v;
    const middle = this.cursor === null ? (f(from) + f(to)) / 2 : clamp(f(this.x.back(this.x.at(this.xs(this.lines[0])[this.cursor]))), f(from), f(to));
    const half = ((f(to) - f(from)) / 2) * factor;
    this.setRange(g(middle - half), g(middle + half));
  }
  setRange(from, to) {
    const kept = shared.range;
    shared.range = null;
    const [low, high] = this.bounds();
    from = Math.max(from, low); to = Math.min(to, high);
    if (from <= low && to >= high) shared.range = null;
    else shared.range = to - from > (high - low) * 1e-9 ? [from, to] : kept;
    redrawAll();
  }
  listen() {
    let start = null, band = null;
    const place = (event) => clamp(event.clientX - this.box.getBoundingClientRect().left, MARGIN.left, this.width - MARGIN.right);
    this.box.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      if (event.pointerType === "mouse") { start = place(event); this.box.setPointerCapture(event.pointerId); }
      this.showCursor(this.nearest(place(event)), false);
    });
    this.box.addEventListener("pointermove", (event) => {
      const px = place(event);
      this.showCursor(this.nearest(px), false);
      if (start === null) return;
      band ??= shape("rect", { class: "band", y: MARGIN.top, height: this.bottom - MARGIN.top });
      band.setAttribute("x", Math.min(start, px)); band.setAttribute("width", Math.abs(px - start));
      this.inside.append(band);
    });
    const end = (event) => {
      if (start === null) return;
      const px = place(event), begun = start;
      start = null; band?.remove(); band = null;
      if (Math.abs(px - begun) > 5) this.setRange(this.x.back(Math.min(begun, px)), this.x.back(Math.max(begun, px)));
    };
    this.box.addEventListener("pointerup", end);
    this.box.addEventListener("pointercancel", () => { start = null; band?.remove(); band = null; });
    this.box.addEventListener("pointerleave", (event) => { if (start === null && event.pointerType === "mouse") this.hideCursor(); });
    this.box.addEventListener("blur", () => this.hideCursor());
    this.box.addEventListener("dblclick", () => { shared.range = null; redrawAll(); });
    this.box.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.cursor = this.nearest(place(event));
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8);
    }, { passive: false });
    this.box.addEventListener("keydown", (event) => this.press(event));
  }
  press(event) {
    const lead = this.lines[0];
    if (!lead || event.ctrlKey || event.metaKey || event.altKey) return;
    const count = this.xs(lead).length, step = Math.max(1, Math.round(count / (event.shiftKey ? 10 : 100)));
    const actions = {
      ArrowRight: () => this.showCursor(this.cursor === null ? 0 : this.cursor + step, true),
      ArrowLeft: () => this.showCursor(this.cursor === null ? count - 1 : this.cursor - step, true),
      Home: () => this.showCursor(0, true),
      End: () => this.showCursor(count - 1, true),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      0: () => { shared.range = null; redrawAll(); },
      Escape: () => this.hideCursor(),
      l: () => this.setLog(!this.logY), L: () => this.setLog(!this.logY),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }
  table() {
    const lead = this.lines[0], xs = lead ? this.xs(lead) : [], rows = [];
    const stride = Math.max(1, Math.ceil(xs.length / 100));
    for (let i = 0; i < xs.length; i += stride) {
      rows.push([whole(xs[i]), ...this.lines.map((line) => {
        const own = this.xs(line);
        return own.length ? words(line.values[clamp(firstAt(own, xs[i]), 0, own.length - 1)]) : "–";
      })]);
    }
    return { head: [timeName[shared.against], ...this.lines.map((line) => (this.several ? `${runs[line.run].name}: ` : "") + line.label)], rows };
  }
}

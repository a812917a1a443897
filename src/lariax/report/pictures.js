// --- pictures of the problem

const seriesOf = (picture) => Object.entries(picture.series).map(([name, { shape: dims, values }], i) =>
  ({ name, dims, values: numbers(values, Float32Array), colour: colourOf(i), shown: true }));

class Points extends Plot {
  constructor(host, picture) {
    super(host, 280);
    this.picture = picture;
    this.series = seriesOf(picture);
    this.range = null;
    if (this.series.length > 1) {
      for (const one of this.series) {
        const label = element("span", {}, element("span", { class: `swatch f${one.colour}` }), one.name);
        this.button(label, "series", true, (button) => { one.shown = !one.shown; button.setAttribute("aria-pressed", String(one.shown)); this.draw(); });
      }
    }
    this.box.setAttribute("aria-label", `${picture.title}: ${picture.y_label} against ${picture.x_label}.`);
    numbersTable(host, () => this.table());
    this.box.addEventListener("pointermove", (event) => this.hover(event));
    this.box.addEventListener("pointerdown", (event) => this.hover(event));
    this.box.addEventListener("pointerleave", () => { this.dot?.remove(); this.hideTip(); });
    this.watch();
  }
  draw() {
    const xs = [Infinity, -Infinity], ys = [Infinity, -Infinity];
    const see = (range, v) => { if (Number.isFinite(v)) { range[0] = Math.min(range[0], v); range[1] = Math.max(range[1], v); } };
    for (const { values, shown } of this.series) for (let i = 0; shown && i < values.length; i += 2) { see(xs, values[i]); see(ys, values[i + 1]); }
    if (this.picture.reference !== null) see(ys, this.picture.reference);
    const wide = ([low, high]) => { if (!(high >= low)) return [0, 1]; const room = (high - low) * 0.04 || Math.abs(high) * 0.1 || 1; return [low - room, high + room]; };
    this.frame(wide(xs), wide(ys), { logX: false, logY: false, xLabel: this.picture.x_label });
    if (this.picture.reference !== null) {
      const p = this.y.at(this.picture.reference);
      this.inside.append(shape("line", { class: "bound", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: p, y2: p }));
    }
    for (const { values, colour, shown } of this.series) {
      if (!shown) continue;
      const points = [];
      for (let i = 0; i < values.length; i += 2) if (Number.isFinite(values[i]) && Number.isFinite(values[i + 1])) points.push([this.x.at(values[i]), this.y.at(values[i + 1])]);
      if (this.picture.kind === "lines") {
        const d = points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
        this.inside.append(shape("path", { class: `line k${colour}`, d }));
      } else {
        const d = points.map(([a, b]) => `M${(a - 2.5).toFixed(1)} ${b.toFixed(1)}a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0 -5 0`).join("");
        this.inside.append(shape("path", { class: `point f${colour}`, d }));
      }
    }
    if (this.picture.y_label) this.svg.append(shape("text", { x: MARGIN.left, y: 9, "text-anchor": "start" }, this.picture.y_label));
  }
  hover(event) {
    const box = this.box.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    let best = null;
    for (const one of this.series) {
      for (let i = 0; one.shown && i < one.values.length; i += 2) {
        const a = this.x.at(one.values[i]), b = this.y.at(one.values[i + 1]), far = (a - px) ** 2 + (b - py) ** 2;
        if (!best || far < best.far) best = { far, a, b, one, i };
      }
    }
    if (!best) return;
    this.dot?.remove();
    this.dot = shape("circle", { class: `f${best.one.colour}`, cx: best.a, cy: best.b, r: 4.5 });
    this.inside.append(this.dot);
    this.showTip(best.a, best.one.name, [
      { text: `${this.picture.x_label || "x"} ${words(best.one.values[best.i])}` },
      { text: `${this.picture.y_label || "y"} ${words(best.one.values[best.i + 1])}` }]);
  }
  table() {
    const rows = [];
    for (const { name, values } of this.series) {
      const stride = 2 * Math.max(1, Math.ceil(values.length / 2 / 100));
      for (let i = 0; i < values.length; i += stride) rows.push([name, words(values[i]), words(values[i + 1])]);
    }
    return { head: ["series", this.picture.x_label || "x", this.picture.y_label || "y"], rows };
  }
}

class Bars extends Plot {
  constructor(host, picture) {
    super(host, 280);
    this.picture = picture;
    this.series = seriesOf(picture);
    if (this.series.length > 1) for (const one of this.series) this.legend.append(element("span", {}, element("span", { class: `swatch f${one.colour}` }), one.name));
    const shown = picture.categories.slice(0, 20).map((c, i) => `${c}: ${this.series.map((s) => `${s.name} ${words(s.values[i])}`).join(", ")}`);
    this.box.setAttribute("aria-label", `${picture.title}. ${shown.join("; ")}`);
    numbersTable(host, () => ({
      head: ["", ...this.series.map((s) => s.name)],
      rows: picture.categories.map((c, i) => [c, ...this.series.map((s) => words(s.values[i]))]),
    }));
    this.watch();
  }
  draw() {
    const { categories, reference } = this.picture, count = Math.max(categories.length, 1);
    const every = [0, ...(reference === null ? [] : [reference])];
    for (const { values } of this.series) for (const v of values) if (Number.isFinite(v)) every.push(v);
    let low = Infinity, high = -Infinity;
    for (const v of every) { low = Math.min(low, v); high = Math.max(high, v); }
    if (low === high) high = low + 1;
    this.frame([0, count], [low < 0 ? low * 1.05 : 0, high > 0 ? high * 1.08 : 0], { logX: false, logY: false, xTicks: [], xLabel: this.picture.x_label });
    const cell = (this.width - MARGIN.left - MARGIN.right) / count, zero = this.y.at(0);
    const width = Math.max((cell * 0.8) / this.series.length, 0.5);
    const stride = Math.ceil(count / Math.max(1, Math.floor((this.width - 80) / 64)));
    categories.forEach((category, i) => {
      const left = MARGIN.left + cell * (i + 0.1);
      this.series.forEach((one, j) => {
        const v = one.values[i];
        if (!Number.isFinite(v)) return;
        const top = Math.min(this.y.at(v), zero);
        const bar = shape("rect", { class: `f${one.colour}`, x: left + j * width, y: top, width: Math.max(width - 1, 0.5), height: Math.abs(this.y.at(v) - zero) });
        bar.append(shape("title", {}, `${category}, ${one.name}: ${words(v)}`));
        bar.addEventListener("pointerenter", () => this.showTip(left + cell / 2, category, this.series.map((s) => ({ colour: s.colour, text: `${s.name} ${words(s.values[i])}` }))));
        bar.addEventListener("pointerleave", () => this.hideTip());
        this.inside.append(bar);
      });
      if (i % stride === 0) {
        const room = Math.max(3, Math.floor((cell * stride) / 6.2));
        const label = category.length > room ? `${category.slice(0, room - 1)}…` : category;
        this.svg.append(shape("text", { x: MARGIN.left + cell * (i + 0.5), y: this.bottom + 16, "text-anchor": "middle" }, label));
      }
    });
    if (reference !== null) {
      const p = this.y.at(reference);
      this.inside.append(shape("line", { class: "bound", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: p, y2: p }));
    }
    if (this.picture.y_label) this.svg.append(shape("text", { x: MARGIN.left, y: 9, "text-anchor": "start" }, this.picture.y_label));
  }
}

// A ramp from dark blue over green to yellow that grows lighter all the way, by interpolation between its corners.
const RAMP = [[34, 24, 92], [38, 78, 138], [28, 128, 134], [70, 174, 104], [166, 208, 70], [252, 236, 110]];
const ramp = (t) => {
  const p = clamp(t, 0, 1) * (RAMP.length - 1), i = Math.min(Math.floor(p), RAMP.length - 2), f = p - i;
  return RAMP[i].map((c, k) => Math.round(c + f * (RAMP[i + 1][k] - c)));
};

class Heatmap {
  constructor(host, picture) {
    const [one] = seriesOf(picture), [rows, columns] = one.dims;
    let low = Infinity, high = -Infinity;
    for (const v of one.values) if (Number.isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); }
    const canvas = element("canvas", { width: columns, height: rows, role: "img" });
    canvas.setAttribute("aria-label", `${picture.title}: ${rows} by ${columns} values from ${words(low)} to ${words(high)}.`);
    const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
    for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
      const v = one.values[(rows - 1 - r) * columns + c], at = 4 * (r * columns + c);
      if (Number.isFinite(v)) { const [red, green, blue] = ramp(high > low ? (v - low) / (high - low) : 0.5); image.data.set([red, green, blue, 255], at); }
    }
    context.putImageData(image, 0, 0);
    canvas.style.imageRendering = "pixelated";
    canvas.style.aspectRatio = `${columns} / ${rows}`;
    canvas.style.maxHeight = "22rem";
    canvas.style.objectFit = "contain";
    const box = element("div", { class: "plot" }, canvas);
    const readout = element("p", { class: "hint" }, `${words(low)} (dark) to ${words(high)} (light)`);
    const still = readout.textContent, [left, right, bottom, top] = picture.extent ?? [0, columns, 0, rows];
    canvas.addEventListener("pointermove", (event) => {
      const area = canvas.getBoundingClientRect(), fit = Math.min(area.width / columns, area.height / rows);
      const c = Math.floor((event.clientX - area.left - (area.width - fit * columns) / 2) / fit);
      const r = rows - 1 - Math.floor((event.clientY - area.top - (area.height - fit * rows) / 2) / fit);
      if (c < 0 || r < 0 || c >= columns || r >= rows) { readout.textContent = still; return; }
      const x = left + ((c + 0.5) / columns) * (right - left), y = bottom + ((r + 0.5) / rows) * (top - bottom);
      readout.textContent = `${picture.x_label || "x"} ${words(x)}, ${picture.y_label || "y"} ${words(y)}: ${words(one.values[r * columns + c])}`;
    });
    canvas.addEventListener("pointerleave", () => { readout.textContent = still; });
    host.append(box, readout);
    const every = (count) => Array.from({ length: Math.min(count, 12) }, (_, i) => Math.floor((i * count) / Math.min(count, 12)));
    numbersTable(host, () => ({
      head: [`${picture.y_label || "y"} \\ ${picture.x_label || "x"}`, ...every(columns).map((c) => words(left + ((c + 0.5) / columns) * (right - left)))],
      rows: every(rows).reverse().map((r) => [words(bottom + ((r + 0.5) / rows) * (top - bottom)), ...every(columns).map((c) => words(one.values[r * columns + c]))]),
    }));
  }
}

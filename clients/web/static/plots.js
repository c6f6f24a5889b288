// Plots: the last hour of a scalar, a spectrum, an image. A plot stays the same element while its page is shown.

import uPlot from "./vendor/uPlot.esm.js";
import { ask, kindOf, look, now } from "./store.js";

const HOUR = 3600;
const plots = new Map();

const kept = (Kind) => (device, attribute) => {
  const key = `${device}/${attribute}`;
  if (!plots.has(key)) plots.set(key, new Kind(device, attribute));
  return plots.get(key).element;
};

export function dropPlots() {
  plots.forEach((plot) => plot.end());
  plots.clear();
}

class Plot {
  constructor(device, attribute, every, caption) {
    const entry = kindOf(device)?.attributes[attribute];
    Object.assign(this, { device, attribute, title: `${entry?.label ?? attribute}${entry?.unit ? ` [${entry.unit}]` : ""}${caption}` });
    this.element = document.createElement("figure");
    this.element.className = "trend";
    this.caption = document.createElement("figcaption");
    this.caption.textContent = this.title;
    this.element.append(this.caption);
    this.timer = setInterval(() => this.update(), every);
    queueMicrotask(() => this.update());
  }
  async update() {
    try {
      await this.draw();
      this.element.classList.remove("old");
    } catch {
      this.element.classList.add("old");
    }
  }
  end() {
    clearInterval(this.timer);
    this.plot?.destroy();
  }
}

function lines(parent, { time, range }) {
  const css = getComputedStyle(document.documentElement);
  const [stroke, line] = ["--ink", "--line"].map((name) => css.getPropertyValue(name).trim());
  const axis = { stroke, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  const clock = (_, ticks) => ticks.map((one) => new Date(one * 1000).toISOString().slice(11, 16));
  return new uPlot({
    width: 420, height: 150, legend: { show: false }, scales: { x: { time, range } }, tzDate: (one) => uPlot.tzDate(new Date(one * 1000), "UTC"),
    axes: [time ? { ...axis, values: clock } : axis, { ...axis, size: 64 }],
    series: [{}, { stroke, width: 1.4, spanGaps: false, points: { show: false }, paths: time ? uPlot.paths.stepped({ align: 1 }) : undefined }],
  }, [[], []], parent);
}

class Trend extends Plot {
  constructor(device, attribute) {
    super(device, attribute, 2000, ", last hour");
    this.plot = lines(this.element, { time: true, range: () => [now() - HOUR, now()] });
  }
  async draw() {
    const data = await ask("trend", { device: this.device, attribute: this.attribute });
    if (this.element.clientWidth) this.plot.setSize({ width: this.element.clientWidth, height: 150 });
    this.plot.setData(data);
  }
}

class Spectrum extends Plot {
  constructor(device, attribute) {
    super(device, attribute, 1000, ", by element");
    this.plot = lines(this.element, { time: false });
  }
  async draw() {
    const seen = look(this.device, this.attribute);
    if (seen.quality === "INVALID") throw new Error(seen.why);
    const values = (seen.value ?? []).map((one) => (typeof one === "number" ? one : null));
    if (this.element.clientWidth) this.plot.setSize({ width: this.element.clientWidth, height: 150 });
    this.plot.setData([values.map((_, at) => at), values]);
  }
}

// Rows downwards; dark is small. Elements without a value keep the ground.
class Picture extends Plot {
  constructor(device, attribute) {
    super(device, attribute, 5000, "");
    this.canvas = document.createElement("canvas");
    this.canvas.className = "heat";
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", this.title);
    this.element.append(this.canvas);
  }
  async draw() {
    const read = await ask("read", { device: this.device, attribute: this.attribute });
    const rows = !read?.length ? [] : Array.isArray(read[0]) ? read : [read];
    const finite = rows.flat().filter((one) => typeof one === "number");
    const [low, high] = finite.reduce(([a, b], one) => [Math.min(a, one), Math.max(b, one)], [Infinity, -Infinity]);
    this.caption.textContent = finite.length ? `${this.title}: ${rows.length} rows of ${rows[0].length}, from ${low.toPrecision(4)} (dark) to ${high.toPrecision(4)}` : `${this.title}: no values`;
    this.canvas.setAttribute("aria-label", this.caption.textContent);
    if (!finite.length) return;
    Object.assign(this.canvas, { width: rows[0].length, height: rows.length });
    const context = this.canvas.getContext("2d");
    const pixels = context.createImageData(rows[0].length, rows.length);
    rows.flat().forEach((one, at) => {
      if (typeof one !== "number") return;
      const share = high > low ? (one - low) / (high - low) : 0.5;
      pixels.data.set([255 * share ** 0.5, 255 * share ** 1.3, 90 + 120 * share * (1 - share) + 100 * share ** 3, 255], at * 4);
    });
    context.putImageData(pixels, 0, 0);
  }
}

export const trend = kept(Trend);
export const spectrum = kept(Spectrum);
export const image = kept(Picture);

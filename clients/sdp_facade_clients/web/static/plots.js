// Plots: a spectrum, an image, and what a trend has in common with them. A plot stays the same element while its page is shown.

import uPlot from "./vendor/uPlot.esm.js";
import { drawHappened } from "./happened.js";
import { age, text } from "./parts.js";
import { ask, isCut, kindOf, look, now, store, utc } from "./store.js";

const HEIGHT = 150; // of a plot [px]
const MOST_ROWS = 120; // of a waterfall
const READ_MS = 5000; // between two reads of an attribute that sends no events
const plots = new Map();

export const kept = (Kind) => (device, attribute, over) => {
  const key = `${Kind.name} ${device}/${attribute}`;
  if (!plots.has(key)) plots.set(key, new Kind(device, attribute, over));
  return plots.get(key).element;
};

// All at once: the page shows another time.
export const updatePlots = () => plots.forEach((plot) => plot.update());

export function dropPlots() {
  plots.forEach((plot) => plot.end());
  plots.clear();
}

// A figure is busy until it has been drawn once, or could not be.
export class Plot {
  constructor(device, attribute, every, caption = "", over = "") {
    const known = kindOf(device)?.attributes ?? {};
    const [entry, axis] = [known[attribute], known[over]];
    const title = `${entry ? labelOf(entry) : attribute}${axis ? ` over ${labelOf(axis)}` : ""}${caption}`;
    Object.assign(this, { device, attribute, entry, axis, title, read: -Infinity });
    this.places = () => (axis && look(device, over).value) || [];
    this.element = document.createElement("figure");
    this.element.className = "trend";
    this.element.dataset.plot = `${device}/${attribute}`;
    this.element.setAttribute("aria-busy", "true");
    this.caption = document.createElement("figcaption");
    this.caption.textContent = title;
    this.element.append(this.caption);
    this.timer = setInterval(() => this.update(), every);
    queueMicrotask(() => this.update());
  }
  async update() {
    try {
      this.caption.textContent = await this.draw();
      this.element.classList.remove("old");
    } catch {
      this.element.classList.add("old");
    }
    this.picture?.setAttribute("role", "img");
    this.picture?.setAttribute("aria-label", this.caption.textContent);
    this.element.setAttribute("aria-busy", "false");
  }
  lines(options) {
    this.plot = lines(this.element, options);
    this.picture = this.plot.root;
  }
  show(data) {
    if (this.element.clientWidth) this.plot.setSize({ width: this.element.clientWidth, height: HEIGHT });
    this.plot.setData(data);
  }
  // The newest value; it is an error if that is not current.
  async current() {
    const looked = look(this.device, this.attribute);
    if (!this.entry.followed && !isCut() && !(this.device in store.silent)) {
      if (performance.now() - this.read > READ_MS) {
        this.read = performance.now();
        this.found = await ask("read", { device: this.device, attribute: this.attribute });
      }
      Object.assign(looked, this.found);
    }
    if (looked.quality === "INVALID") throw new Error(looked.why);
    return looked;
  }
  // The title with the range of values, and their age.
  described(values, { time, quality }) {
    const [low, high] = range(values);
    const said = low <= high ? `from ${text(low, this.entry)} to ${text(high, this.entry)}` : "no values";
    const old = time ? `, of ${utc(time)}, ${age(now() - time)} old` : "";
    return `${this.title}: ${said}${old}${quality === "VALID" ? "" : `, ${quality.toLowerCase()}`}`;
  }
  end() {
    clearInterval(this.timer);
    this.plot?.destroy();
  }
}

export const labelOf = ({ label, unit }) => `${label}${unit ? ` [${unit}]` : ""}`;
const range = (values) => values.filter((one) => typeof one === "number")
  .reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);

const STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 86400]; // between two times [s]
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500]; // steps from name to name
const SCALES = [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
export function short(value) {
  const [scale, letter] = SCALES.find(([least]) => Math.abs(value) >= least) ?? [1, ""];
  return `${+(value / scale).toPrecision(5)}${letter}`;
}

// The dashed lines of the limits have their names; a limit outside of what the data need is not drawn.
const namesOfLimits = (limits) => (plot) => {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--alarm").trim();
  [ctx.textAlign, ctx.textBaseline] = ["left", "bottom"];
  ctx.font = `${11 * devicePixelRatio}px sans-serif`;
  for (const { value, title } of limits) {
    const y = plot.valToPos(value, "y", true);
    if (y > bbox.top && y < bbox.top + bbox.height) ctx.fillText(title, bbox.left + 4 * devicePixelRatio, y - 2 * devicePixelRatio);
  }
  ctx.restore();
};

// One line, and a dashed one for each limit; `names` label the elements of an array, `said` writes a number of the axis.
// A trend of a `device` has what happened in it; `second` writes the numbers of another line, which has an axis of its own.
function lines(parent, { time = false, range, names, limits = [], said = short, device = "", second, moved, zoomed }) {
  const css = getComputedStyle(document.documentElement);
  const [stroke, line, alarm, other] = ["--ink", "--line", "--alarm", "--focus"].map((name) => css.getPropertyValue(name).trim());
  const axis = { stroke, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  const clock = (_, ticks) => ticks.map((one) => new Date(one * 1000).toISOString().slice(11, ticks[1] - ticks[0] < 60 ? 19 : 16));
  const numbers = { ...axis, values: (_, ticks) => ticks.map((one) => said(one)) };
  // Every second name is one line lower, so that neighbours do not overlap.
  const named = (_, ticks) => ticks.map((one, at) => "\n".repeat(at % 2) + (names()[one] ?? ""));
  const byName = { ...axis, values: named, size: 60, space: 35, incrs: WHOLE };
  const scales = { x: { time, range } };
  if (time) scales.y = scales.other = { range: (_, low, high) => fitting(low, high) };
  const right = { ...axis, stroke: other, grid: { show: false }, scale: "other", side: 1, size: 64,
    values: (_, ticks) => ticks.map((one) => second(one)) };
  const cursor = !time ? {} : { drag: { x: true, y: false, setScale: false },
    sync: { key: "time", filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave" } } };
  const zoom = (plot) => {
    const { left, width } = plot.select;
    if (width) zoomed(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  };
  if (names) {
    // Whole bars, from zero.
    scales.x.range = (_, low, high) => [low - 0.5, high + 0.5];
    scales.y = { range: (_, low, high) => uPlot.rangeNum(Math.min(0, low), Math.max(0, high), 0.1, true) };
  }
  const points = { show: false };
  const paths = time ? uPlot.paths.stepped({ align: 1 }) : names ? uPlot.paths.bars() : undefined;
  return new uPlot({
    width: 420, height: HEIGHT, legend: { show: false }, scales,
    tzDate: (one) => uPlot.tzDate(new Date(one * 1000), "UTC"),
    cursor,
    hooks: time ? { draw: [namesOfLimits(limits), drawHappened(device)], setSelect: [zoom], setCursor: [moved] }
      : { draw: [namesOfLimits(limits)] },
    axes: [time ? { ...axis, values: clock, incrs: STEPS, size: 28 } : names ? byName : numbers, { ...numbers, size: 64 },
      ...(second ? [right] : [])],
    series: [{}, { stroke, width: 1.4, spanGaps: false, points, paths, fill: names ? line : undefined },
      ...limits.map(() => ({ stroke: alarm, width: 1, dash: [6, 4], points, auto: false })),
      ...(second ? [{ stroke: other, width: 1.4, dash: [2, 2], scale: "other", points, paths }] : [])],
  }, [[], [], ...limits.map(() => []), ...(second ? [[]] : [])], parent);
}

// The range of the data; of a value that never changes, some room around it.
function fitting(low, high) {
  if (low === null || high === null) return [0, 1];
  const room = high > low ? 0.1 * (high - low) : Math.abs(high) / 10 || 1;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
}

class Spectrum extends Plot {
  constructor(device, attribute, over) {
    super(device, attribute, 1000, "", over);
    this.isNamed = this.axis?.type === "DevString";
    this.lines({ names: this.isNamed ? this.places : undefined });
  }
  async draw() {
    const seen = await this.current();
    const values = (seen.value ?? []).map((one) => (typeof one === "number" ? one : null));
    const places = this.isNamed ? [] : this.places();
    this.show([values.map((_, at) => places[at] ?? at), values]);
    return this.described(values, seen);
  }
}

// Rows downwards; dark is small. Elements without a value keep the ground.
class Picture extends Plot {
  constructor(device, attribute, over, caption) {
    super(device, attribute, 1000, caption, over);
    this.picture = document.createElement("canvas");
    this.picture.className = "heat";
    this.element.append(this.picture);
  }
  async draw() {
    const seen = await this.current();
    return this.paint(!seen.value?.length ? [] : Array.isArray(seen.value[0]) ? seen.value : [seen.value], seen);
  }
  paint(rows, seen, height = rows.length) {
    const width = Math.max(0, ...rows.map((row) => row.length));
    const [first, last] = range(this.places());
    const [left, right] = [first, last].map((one) => `${short(one)}${this.axis?.unit ?? ""}`);
    const across = first <= last ? `, from left to right ${left} to ${right}` : "";
    const [low, high] = range(rows.flat());
    if (low <= high) {
      Object.assign(this.picture, { width, height });
      const context = this.picture.getContext("2d");
      const pixels = context.createImageData(width, height);
      rows.forEach((row, down) => row.forEach((one, at) => {
        if (typeof one !== "number") return;
        const share = high > low ? (one - low) / (high - low) : 0.5;
        const colour = [255 * share ** 0.5, 255 * share ** 1.3, 90 + 120 * share * (1 - share) + 100 * share ** 3, 255];
        pixels.data.set(colour, (down * width + at) * 4);
      }));
      context.putImageData(pixels, 0, 0);
    }
    return `${this.described(rows.flat(), seen)}; ${rows.length} rows of ${width}${across}`;
  }
}

// The newest spectra since the page was opened, the newest one above.
class Waterfall extends Picture {
  constructor(device, attribute, over) {
    super(device, attribute, over, ", waterfall, newest above");
    this.picture.classList.add("fall");
    this.rows = [];
  }
  async draw() {
    const seen = await this.current();
    if (store.past) this.rows = [];
    if (seen.time !== this.newest || store.past) {
      this.newest = seen.time;
      this.rows = [seen.value ?? [], ...this.rows].slice(0, MOST_ROWS);
    }
    return this.paint(this.rows, seen, MOST_ROWS);
  }
}

export const spectrum = kept(Spectrum);
export const image = kept(Picture);
export const waterfall = kept(Waterfall);

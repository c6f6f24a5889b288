// Plots: the last hour of a scalar, a spectrum, an image. A plot stays the same element while its page is shown.

import { html, nothing, render } from "./vendor/lit-html.js";
import uPlot from "./vendor/uPlot.esm.js";
import { redraw } from "./app.js";
import { drawHappened, happened, iso, markAt, marked } from "./happened.js";
import { age, quantity, saidLimits, text } from "./parts.js";
import { ask, isCut, kindOf, look, now, setAddress, store, utc } from "./store.js";

const HOUR = 3600;
const KEPT = 12 * HOUR; // that the server of this page remembers
const ARCHIVED = 900; // age at which the archive has a value for sure [s]
const NARROWEST = 2; // span that can be chosen [s]
const address = new URLSearchParams(location.search);
let hours = address.get("hours") === "12" ? 12 : 1; // of the trends; in the address, for others
// Spans [begin, end] that were chosen, each within the one before it; the last one is shown.
const chosen = [address.get("from"), address.get("to")].map((one) => Date.parse(one) / 1000);
let zooms = chosen[0] < chosen[1] ? [chosen] : [];
const pairs = new Map(); // by attribute of a device: the second one in its plot

const span = () => zooms.at(-1) ?? [now() - hours * HOUR, now()];
const isMoving = () => !zooms.length && !store.past;

// Show other spans, the last one of which is seen; none: the last hours.
export function setSpans(spans) {
  zooms = spans;
  const [begin, end] = zooms.at(-1) ?? [];
  setAddress("from", begin ? iso(begin) : null);
  setAddress("to", end ? iso(end) : null);
  updatePlots();
  redraw();
}
function zoomTo(begin, end) {
  if (end - begin >= NARROWEST) setSpans([...zooms, [begin, end]]);
}
const SHORTEST = 300; // time that a trend shows at the least [s]
const LATE = 60; // after the begin of the hour, from which a trend says when it begins [s]
const BINS = 400; // of a trend of the past
const HEIGHT = 150; // of a plot [px]
const MOST_ROWS = 120; // of a waterfall
const READ_MS = 5000; // between two reads of an attribute that sends no events
const plots = new Map();

const kept = (Kind) => (device, attribute, over) => {
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
class Plot {
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

const labelOf = ({ label, unit }) => `${label}${unit ? ` [${unit}]` : ""}`;
const range = (values) => values.filter((one) => typeof one === "number")
  .reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);

const STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 86400]; // between two times [s]
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500]; // steps from name to name
const SCALES = [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
function short(value) {
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
function lines(parent, { time = false, range, names, limits = [], said = short, device = "", second, moved }) {
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
    if (width) zoomTo(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
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
    hooks: { draw: [namesOfLimits(limits), ...(time ? [drawHappened(device)] : [])], ...(time ? { setSelect: [zoom], setCursor: [moved] } : {}) },
    axes: [time ? { ...axis, values: clock, incrs: STEPS } : names ? byName : numbers, { ...numbers, size: 64 }, ...(second ? [right] : [])],
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

class Trend extends Plot {
  constructor(device, attribute) {
    super(device, attribute, 2000);
    this.first = Infinity;
    this.data = [[], []];
    this.label = this.title;
    this.limits = saidLimits(this.entry, attribute);
    this.tools = document.createElement("div");
    this.tools.className = "tools of-plot";
    this.said = document.createElement("output");
    this.make();
  }
  // The axis has the unit where that changes with the size of the number.
  sayer(attribute) {
    const entry = kindOf(this.device)?.attributes[attribute];
    const said = (value) => quantity(value, entry, attribute);
    const isScaled = ["s", "B", "Hz"].includes(entry?.unit) || /%$/.test(said(0));
    return { entry, said, axis: isScaled ? said : short, title: isScaled ? entry.label : entry ? labelOf(entry) : attribute };
  }
  make() {
    this.plot?.destroy();
    this.second = pairs.get(`${this.device}/${this.attribute}`);
    [this.own, this.other] = [this.sayer(this.attribute), this.second && this.sayer(this.second)];
    this.label = `${this.own.title}${this.other ? `, dashed on the right ${this.other.title}` : ""}`;
    const begun = () => (zooms.length ? span() : [Math.max(span()[0], Math.min(this.first, now() - SHORTEST)), now()]);
    this.lines({ time: true, range: begun, limits: this.limits, said: this.own.axis, device: this.device,
      second: this.other?.axis, moved: () => this.moved() });
    this.plot.over.addEventListener("click", () => {
      const mark = markAt(this.device, this.plot, this.plot.cursor.left);
      if (mark) location.hash = mark.link;
    });
    this.element.append(this.said, this.tools);
    this.offer();
  }
  // The values at the pointer, and what is marked there.
  moved() {
    const { left, idx } = this.plot.cursor;
    const [times, values, ...others] = this.data;
    const time = idx === null || idx === undefined ? undefined : times[idx];
    if (time === undefined || left < 0) return (this.said.textContent = "");
    const before = (line) => line.slice(0, idx + 1).findLast((one) => one !== undefined);
    const say = (line, { said }) => ((found) => (typeof found === "number" ? said(found) : "no value"))(before(line));
    const mark = markAt(this.device, this.plot, left);
    this.plot.over.style.cursor = mark ? "pointer" : "";
    this.said.textContent = [utc(time), say(values, this.own), ...(this.other ? [say(others.at(-1), this.other)] : []),
      ...(mark ? [mark.said] : [])].join("; ");
  }
  offer() {
    const known = Object.entries(kindOf(this.device)?.attributes ?? {}).filter(([name, one]) => name !== this.attribute && one.followed
      && !one.length && !one.enum && /Double|Float|Long|Short/.test(one.type) && !one.stream && !one.expert);
    const pair = (event) => {
      const key = `${this.device}/${this.attribute}`;
      if (event.target.value) pairs.set(key, event.target.value);
      else pairs.delete(key);
      this.make();
      this.update();
    };
    render(html`<select aria-label=${`Second attribute beside ${this.own.title}`} @change=${pair}><option value="">with …</option>
      ${known.map(([name, one]) => html`<option value=${name} ?selected=${name === this.second}>${one.label}</option>`)}</select>
      <button aria-label=${`CSV of ${this.own.title}`} @click=${() => this.csv()}>CSV</button>
      <button aria-label=${`PNG of ${this.own.title}`} @click=${() => this.png()}>PNG</button>`, this.tools);
  }
  async draw() {
    const shown = span();
    happened(this.device, shown, isMoving());
    const [own, other] = await Promise.all([this.values(this.attribute), ...(this.second ? [this.values(this.second)] : [])]);
    this.first = own[0][0] ?? Infinity;
    const [times, values, ...others] = other ? uPlot.join([own, other]) : own;
    this.data = [times, values, ...this.limits.map(({ value }) => times.map(() => value)), ...others];
    if (this.plot.series.length === this.data.length) this.show(this.data); // else another pair was chosen meanwhile
    const when = zooms.length ? `${utc(shown[0])} to ${utc(shown[1])}` : hours === 1 ? "last hour" : `last ${hours} h`;
    this.title = `${this.label}, ${when}`;
    return [this.title, ...this.limits.map(({ title }) => title), ...why(own[0], own[1], shown), ...marked(this.device, shown)].join("; ");
  }
  // From the archive, unless the server of this page remembers the span itself.
  async values(attribute) {
    const { device } = this;
    const [begin, end] = span();
    const isOld = zooms.length && store.site.archive && (end < now() - ARCHIVED || begin < now() - KEPT);
    if (store.past || isOld) return this.archived(attribute, begin, zooms.length ? end : end + 1);
    return ask("trend", { device, attribute, hours: zooms.length ? (begin < now() - HOUR ? 12 : 1) : hours });
  }
  // Of each bin the least and the greatest value, so that no peak is lost; a bin without a value breaks the line.
  async archived(attribute, begin, end) {
    if (store.past?.why) throw new Error(store.past.why);
    const asked = { device: this.device, attribute, begin: iso(begin), end: iso(end), points: BINS };
    const { bin, series: [{ rows }] } = await ask("history", asked);
    const points = rows.flatMap(({ time, min, max }) => (min === max ? [min] : [min, max])
      .map((one, half) => [Date.parse(time) / 1000 + half * bin / 2, one]));
    return [points.map(([time]) => time), points.map(([, value]) => value)];
  }
  csv() {
    const [begin, end] = span();
    const [times, ...columns] = [this.data[0], this.data[1], ...(this.second ? [this.data.at(-1)] : [])];
    const rows = times.map((time, at) => [time, columns.map((one) => one[at] ?? "")]).filter(([time]) => begin <= time && time <= end)
      .map(([time, some]) => [iso(time), ...some].join(","));
    const names = [this.attribute, ...(this.second ? [this.second] : [])].map((one) => `${this.device}/${one}`);
    save(`${this.attribute}.csv`, new Blob([`${["time", ...names].join(",")}\n${rows.join("\n")}\n`], { type: "text/csv" }));
  }
  // With its caption, on the ground that the page has now.
  png() {
    const [source, css, size] = [this.plot.ctx.canvas, getComputedStyle(document.documentElement), devicePixelRatio];
    const picture = Object.assign(document.createElement("canvas"), { width: source.width, height: source.height + 20 * size });
    const context = picture.getContext("2d");
    context.fillStyle = css.getPropertyValue("--tile").trim();
    context.fillRect(0, 0, picture.width, picture.height);
    context.fillStyle = css.getPropertyValue("--ink").trim();
    context.font = `${11 * size}px sans-serif`;
    context.fillText(`${this.device}: ${this.title}`, 4 * size, 14 * size, picture.width - 8 * size);
    context.drawImage(source, 0, 20 * size);
    picture.toBlob((content) => save(`${this.attribute}.png`, content));
  }
}

function save(name, content) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Why a trend is empty, or begins within the span.
function why(times, values, [begin]) {
  const first = values.findIndex((one) => one !== null);
  if (store.past || zooms.length) return first < 0 ? ["no values of this time are known"] : [];
  if (!times.length) return ["no values yet: this page's server begins to follow it now"];
  if (first < 0) return [`no valid value since ${utc(times[0])}`];
  return times[0] > begin + LATE ? [`begins at ${utc(times[0])}, when this page's server began to follow it`] : [];
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

export const trend = kept(Trend);

// The choice between the times that trends go back, and the way back from a span that was chosen.
export function spans() {
  const choose = (event) => {
    hours = Number(event.target.value);
    setAddress("hours", hours === 1 ? null : hours);
    setSpans([]);
  };
  const [begin, end] = span();
  const closer = () => zoomTo(begin + (end - begin) / 4, end - (end - begin) / 4);
  return html`<div class="tools"><label>Trends of the last <select @change=${choose}>${[[1, "1 h"], [12, "12 h"]].map(([value, title]) =>
    html`<option value=${value} ?selected=${value === hours}>${title}</option>`)}</select></label>
    <button @click=${closer} title="Or drag over a part of a trend">Zoom in</button>
    ${zooms.length ? html`<button @click=${() => setSpans(zooms.slice(0, -1))}>Back</button>
      <span>${utc(begin)} to ${utc(end)}</span>` : nothing}</div>`;
}

export const spectrum = kept(Spectrum);
export const image = kept(Picture);
export const waterfall = kept(Waterfall);

// Trends: numbers over time, of the last hours or of a span that was chosen, with what happened in it.

import { html, nothing, render } from "./vendor/lit-html.js";
import uPlot from "./vendor/uPlot.esm.js";
import { redraw } from "./app.js";
import { happened, iso, markAt, marked } from "./happened.js";
import { quantity, saidLimits } from "./parts.js";
import { Plot, kept, labelOf, short, updatePlots } from "./plots.js";
import { AGAIN_MS, ask, isArchived, kindOf, look, now, postMortem, setAddress, store, utc } from "./store.js";

const HOUR = 3600;
const SHORTEST = 300; // time that a trend shows at the least [s]
const LATE = 60; // after the begin of the hour, from which a trend says when it begins [s]
const BINS = 400; // of a trend of the past, and those behind it, which are asked for at once as they may be played
const AHEAD = 40;
const KEPT = 12 * HOUR; // that the server of this page remembers
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
// Let a chosen span be another one, as that of a block that goes on; spans within it stay.
export const moveSpan = ([begin, end], next) => setSpans(zooms.map((one) => (one[0] === begin && one[1] === end ? next : one)));
function zoomTo(begin, end) {
  if (end - begin >= NARROWEST) setSpans([...zooms, [begin, end]]);
}
class Trend extends Plot {
  constructor(device, attribute) {
    super(device, attribute, 2000);
    this.first = Infinity;
    this.data = [[], []];
    this.binned = new Map(); // by attribute: the bins of an archived span
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
    const title = entry ? (isScaled ? entry.label : labelOf(entry)) : attribute;
    return { entry, said, axis: isScaled ? said : short, title };
  }
  make() {
    this.plot?.destroy();
    this.second = pairs.get(`${this.device}/${this.attribute}`);
    [this.own, this.other] = [this.sayer(this.attribute), this.second && this.sayer(this.second)];
    this.label = `${this.own.title}${this.other ? `, dashed on the right ${this.other.title}` : ""}`;
    const begun = () => (zooms.length ? span() : [Math.max(span()[0], Math.min(this.first, now() - SHORTEST)), now()]);
    this.lines({ time: true, range: begun, limits: this.limits, said: this.own.axis, device: this.device,
      second: this.other?.axis, moved: () => this.moved(), zoomed: zoomTo });
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
    const isOld = zooms.length && store.site.archive && (isArchived(end) || begin < now() - KEPT);
    if (store.past || isOld) return this.archived(attribute, begin, end);
    this.binned.delete(attribute);
    return ask("trend", { device, attribute, hours: zooms.length ? (begin < now() - HOUR ? 12 : 1) : hours });
  }
  // Of each bin the least and the greatest value, so that no peak is lost; a bin without a value breaks the line. While the
  // past is played, only bins that are over are shown, and the value of the shown second comes behind them.
  async archived(attribute, begin, end) {
    if (store.past?.why) throw new Error(store.past.why);
    const [{ device }, grid] = [this, hours * HOUR / BINS];
    const points = BINS + (zooms.length ? 0 : AHEAD);
    const last = zooms.length ? end : (Math.floor(end / grid / AHEAD) + 1) * AHEAD * grid;
    const asked = { device, attribute, begin: iso(zooms.length ? begin : last - points * grid), end: iso(last), points };
    const key = `${postMortem()} ${asked.begin} ${asked.end}`;
    const newest = look(device, attribute); // of this second: while the archive answers, another one may come
    let found = this.binned.get(attribute);
    if (found?.key !== key || performance.now() > found.until) {
      const until = isArchived(last) ? Infinity : performance.now() + AGAIN_MS;
      const answer = ask("history", asked).catch((error) => { this.binned.delete(attribute); throw error; });
      this.binned.set(attribute, found = { key, until, answer }); // it is drawn again and again before the answer comes
    }
    const bins = await over(found, [begin, end]);
    const line = bins.rows.flatMap(({ time, min, max }) => (min === max ? [min] : [min, max])
      .map((one, half) => [Date.parse(time) / 1000 + half * bins.bin / 2, one]));
    if (!zooms.length) line.push([end, newest.quality !== "INVALID" && typeof newest.value === "number" ? newest.value : null]);
    return [line.map(([time]) => time), line.map(([, value]) => value)];
  }
  async csv() {
    const [begin, end] = span();
    const names = [this.attribute, this.second].filter((one) => this.binned.has(one));
    const bins = await Promise.all(names.map(async (one) => [one, await over(this.binned.get(one), [begin, end])]));
    if (bins.length) return save(`${this.attribute}.csv`, new Blob([binsAsCsv(this.device, bins)], { type: "text/csv" }));
    const [times, ...columns] = [this.data[0], this.data[1], ...(this.second ? [this.data.at(-1)] : [])];
    const rows = times.map((time, at) => [time, columns.map((one) => one[at] ?? "")]).filter(([time]) => begin <= time && time <= end)
      .map(([time, some]) => [iso(time), ...some].join(","));
    const heads = [this.attribute, ...(this.second ? [this.second] : [])].map((one) => `${this.device}/${one}`);
    save(`${this.attribute}.csv`, new Blob([`${["time", ...heads].join(",")}\n${rows.join("\n")}\n`], { type: "text/csv" }));
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

// The bins of an answer that are within a span, or over where it is played [s].
async function over({ answer }, [begin, end]) {
  const { bin, series: [{ rows, unit }] } = await answer;
  const places = rows.map((row) => [Date.parse(row.time) / 1000, row]); // the server writes whole milliseconds
  return { bin, unit, rows: places.filter(([at]) => at > begin - bin && at + bin < end + 0.001).map(([, row]) => row) };
}

// A line for each bin of an archived span: when in a bin a value was the least is not known.
function binsAsCsv(device, bins) {
  const [[, { bin, rows }]] = bins;
  const figures = ["min", "max", "mean"];
  const heads = bins.flatMap(([name, { unit }]) => figures.map((one) => `${device}/${name} ${one}${unit && ` [${unit}]`}`));
  const lines = rows.map(({ time }, at) =>
    [time, ...bins.flatMap(([, one]) => figures.map((figure) => one.rows[at]?.[figure] ?? ""))].join(","));
  return `${[`begin of ${bin} s`, ...heads].join(",")}\n${lines.join("\n")}\n`;
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

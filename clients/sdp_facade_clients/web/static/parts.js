// Parts of pages: a value with its quality, a table of attributes, a trend.

import { html, nothing } from "./vendor/lit-html.js";
import { devicesOf, kindOf, look, now, store, utc } from "./store.js";

export function text(value, entry) {
  if (value === null || value === undefined) return "–";
  if (entry?.enum && store.site.enums[entry.enum]) return store.site.enums[entry.enum][value] ?? String(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.length ? value.map((one) => text(one, entry)).join(", ") : "–";
  if (typeof value === "number") return number(value, entry?.format);
  if (typeof value === "object") return Object.entries(value).map(([name, one]) => `${name} ${text(one)}`).join(", ") || "–";
  if (value === "") return "–";
  const content = /^[{[]|^null$/.test(value) ? parsed(value) : undefined;
  return content === undefined ? plain(value) : isEmpty(content) ? "none" : text(content);
}

function parsed(value) {
  try {
    return JSON.parse(value);
  } catch {
    return undefined; // a text that only begins like JSON
  }
}
const isEmpty = (content) => content === null || (typeof content === "object" && !Object.keys(content).length);

// A text with its times in the one form of this page. All times of SDP are in UTC, also those that do not say so.
// A time in another zone stays as it is, and so does a leap second, which a browser does not know.
export const plain = (said) => String(said ?? "").replace(TIMES, (whole, time) => {
  const at = Date.parse(`${time.replace(" ", "T")}Z`) / 1000;
  return at ? utc(at) : whole;
});
const TIMES = /\b(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.\d+)?(?:\+00:00|Z| UTC)?(?!\.?\d|[+-]\d)/g;

function number(value, format) {
  const decimals = /^%\.(\d+)[fe]$/.exec(format ?? "");
  if (decimals && value !== 0) return format.endsWith("e") ? value.toExponential(+decimals[1]) : grouped(value.toFixed(+decimals[1]));
  return Number.isInteger(value) ? grouped(String(value)) : String(+value.toPrecision(6));
}
const grouped = (digits) => digits.replace(/\B(?=(\d{3})+(?!\d))/g, (_, __, at) => (digits.slice(0, at).includes(".") ? "" : " "));

// A number with its unit, as people say it: 4.0 ms, 1.2 GHz, 0.23 %.
const TIMES_OF = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]];
const LARGE = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
export function quantity(value, entry, name = "") {
  const { unit = "", format } = entry ?? {};
  if (!unit && /fraction|fill|flagged/i.test(name)) return `${+(value * 100).toPrecision(2)} %`;
  if (unit === "s") {
    if (Math.abs(value) >= 120) return `${value < 0 ? "-" : ""}${age(Math.abs(value))}`;
    const [scale, letter] = value ? TIMES_OF.find(([least]) => Math.abs(value) >= least) ?? TIMES_OF.at(-1) : TIMES_OF[0];
    return `${near(value / scale)} ${letter}`;
  }
  if (unit === "B" || unit === "Hz") {
    const [scale, letter] = LARGE.find(([least]) => Math.abs(value) >= least) ?? LARGE.at(-1);
    return `${Number.isInteger(value / scale) ? value / scale : near(value / scale)} ${letter}${unit}`;
  }
  const each = unit === "1/s" ? "/s" : value === 1 ? unit.replace(/^([a-z]{3,})s$/, "$1") : unit;
  const rate = unit.endsWith("/s") && !Number.isInteger(value) ? grouped(near(value)) : number(value, format);
  return unit ? `${rate}${each.startsWith("/") ? "" : " "}${each}` : rate;
}
const near = (value) => value.toFixed(Math.abs(value) < 100 ? 1 : 0);

export function age(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

// The state UNKNOWN claims nothing, so it is never an old one.
export function labelled(device, attribute) {
  const seen = look(device, attribute);
  const said = text(seen.value, kindOf(device)?.attributes[attribute]);
  return { ...seen, text: said, quality: said === "UNKNOWN" ? "VALID" : seen.quality };
}

// A value whose quality is seen: by colour, by a mark, and in words for a screen reader.
export function cell(device, attribute, unit = true, marked = true) {
  const entry = kindOf(device)?.attributes[attribute];
  const seen = labelled(device, attribute);
  const shown = unit && typeof seen.value === "number" && !entry?.enum ? quantity(seen.value, entry, attribute) : seen.text;
  const why = attribute === "State" && unneeded(device);
  return html`<span class="value ${seen.quality.toLowerCase()} ${why ? "badge soft" : badge(seen)}"
    title=${`${origin(device, attribute, seen)}${why ? `\n${why}` : ""}`} data-value=${`${device}/${attribute}`}>${shown}${
    why ? html`<span class="mark"> not needed now</span>` : marked ? mark(seen) : nothing}</span>`;
}

// The subarray with the number of a device, whatever the class of that is.
const numberOf = (device) => device.split("/").at(-1);
export const subarrayOf = (device) => devicesOf("SdpSubarray").find((one) => numberOf(one) === numberOf(device));

// Why nobody needs now what a device lacks; empty: somebody does, or that is not known.
export function unneeded(device) {
  const subarray = kindOf(device)?.complains === "scanning" && look(device, "State").value === "ALARM" && subarrayOf(device);
  const { text: state, quality } = labelled(subarray, "obsState");
  return !subarray || quality === "INVALID" || state === "SCANNING" ? "" : `subarray ${numberOf(subarray)}, ${state}, does not scan`;
}

// A state has its colour on every page: it can be told from afar.
const COLOURS = {
  OK: "fine", ON: "fine", DEGRADED: "WARNING", DISABLE: "soft", OFF: "soft", STANDBY: "soft", ALARM: "ALARM", FAILED: "ALARM",
  FAULT: "ALARM", UNKNOWN: "unknown", INIT: "unknown", ABORTED: "WARNING", SCANNING: "fine",
};
const badge = ({ text: shown, quality }) => (quality !== "INVALID" && COLOURS[shown] ? `badge ${COLOURS[shown]}` : "");

// The same for content that is made of a value.
export function sourceOf(device, attribute, content) {
  const seen = look(device, attribute);
  return html`<div class="value ${seen.quality.toLowerCase()}" title=${origin(device, attribute, seen)}
    data-value=${`${device}/${attribute}`}>${content}${mark(seen)}</div>`;
}

const origin = (device, attribute, { value, quality, why, time }) =>
  `${device}/${attribute}${typeof value === "number" ? ` = ${value}` : ""}\n${quality}${why ? `: ${why}` : ""}\nof ${utc(time)}`;
const mark = ({ value, quality }) => (quality === "VALID" || value === null ? nothing
  : html`<span class="mark">${quality === "INVALID" ? " not valid" : ` ${quality.toLowerCase()}`}</span>`);

// A tile that is opened by its title.
export function folded(title, content) {
  return html`<details class="tile full"><summary>${title}</summary>${content}</details>`;
}

// A text of the interface, with its `code`.
export const coded = (said) => said.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));

export function tile(title, content, kind = "") {
  return html`<section class="tile ${kind}"><h2>${title}</h2>${content}</section>`;
}

// What many values have in common is said once: they are together, below their quality.
const MANY = 4;
export function figures(device, names, { limits = false } = {}) {
  const known = kindOf(device)?.attributes ?? {};
  const of = Map.groupBy(names, (name) => look(device, name).quality);
  const alike = [...of].filter(([quality, some]) => quality !== "VALID" && some.length >= MANY);
  const others = names.filter((name) => !alike.some(([, some]) => some.includes(name)));
  const list = (some, marked) => html`<dl class="figures">${some.map((name) => html`<div><dt>${known[name]?.label ?? name}</dt>
    <dd>${cell(device, name, true, marked)} ${limits ? limitsOf(known[name], name) : nothing}</dd></div>`)}</dl>`;
  return html`${alike.map(([quality, some]) => html`<p class="alike">${quality === "INVALID" ? "Not valid" : `Quality ${quality}`}:</p>
    ${list(some, false)}`)}${alike.length && others.length ? html`<p class="alike">Others:</p>` : nothing}${list(others, true)}`;
}

function limitsOf(entry, name) {
  const said = saidLimits(entry, name).map(({ title }) => title);
  return said.length ? html`<small class="limits">${said.join(", ")}</small>` : nothing;
}

// As Tango judges: a value at the limit is beyond it.
const LIMITS = { min_alarm: "alarm up to", min_warning: "warning up to", max_warning: "warning from", max_alarm: "alarm from" };
export const saidLimits = (entry, name) => Object.entries(entry?.limits ?? {}).filter(([, limit]) => typeof limit === "number")
  .map(([kind, limit]) => ({ value: limit, title: `${LIMITS[kind]} ${quantity(limit, entry, name)}` }));

export function attributeTable(device, names) {
  const kind = kindOf(device);
  if (!kind) return html`<p>The Tango database does not know ${device}.</p>`;
  const rows = Object.entries(kind.attributes).filter(([name, one]) => one.followed && (names ? names.includes(name) : !one.expert));
  return html`<table><caption class="hidden">Attributes of ${device}</caption>
    <thead><tr><th>Attribute</th><th>Value</th><th>Age</th><th>Meaning</th></tr></thead>
    <tbody>${rows.map(([name, one]) => {
      const seen = look(device, name);
      return html`<tr><th scope="row">${one.label}<br><small>${name}</small></th><td class="wide">${cell(device, name)}</td>
        <td>${seen.time ? age(now() - seen.time) : "–"}</td><td><small>${one.description}</small></td></tr>`;
    })}</tbody></table>`;
}

export function entryLine(entry, of = true) {
  const what = entry.alert ?? entry.action ?? {};
  return html`<td class="short">${utc(entry.time)}</td><td>${entry.alert ? what.severity : what.action}</td>
    ${of ? html`<td>${what.condition} <small>${what.source}</small></td>` : nothing}
    <td>${entry.alert ? `${what.state}: ${plain(what.text)}` : `${what.operator ?? ""}${what.comment ? `: ${what.comment}` : ""}`}</td>`;
}

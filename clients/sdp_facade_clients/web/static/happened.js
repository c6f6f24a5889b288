// What happened in what changed: bands of the observing states, marks of commands and alarms, and gaps, in each trend.
// A mark leads to its record; a list below the trends has the same for a keyboard and a screen reader.

import { html, nothing } from "./vendor/lit-html.js";
import { commentForm } from "./acts.js";
import { redraw } from "./app.js";
import { plain, subarrayOf } from "./parts.js";
import { AGAIN_MS, ask, isArchived, kindOf, postMortem, store, utc } from "./store.js";

const GRID = 10; // of the times that are asked for [s]: browsers that look at now ask the same, which is answered once
const NEAR = 5; // between the pointer and a mark [px]
const BAND = 11; // height of the band of a subarray [px]
const MOST_BANDS = 4;
const told = new Map(); // by device: what happened in the span that was asked for last

export const iso = (time) => new Date(time * 1000).toISOString();
export const numberOf = (device) => device.split("/").at(-1);
const commandLink = ({ device, id }) => `#/command/${device}/${id}`;
const alarmLink = ({ condition, source }) => `#/alarms/${encodeURIComponent(`${condition}@${source}`)}`;
const given = (one) => Date.parse(one.submitted_time) / 1000;

// Have what happened in a span; `isMoving`: it ends now.
export async function happened(device, [begin, end], isMoving) {
  const known = told.get(device);
  const [first, last] = [Math.floor(begin / GRID) * GRID, Math.ceil(end / GRID) * GRID];
  const key = isMoving ? `${end - begin >= 7200}` : `${postMortem()} ${first} ${last}`;
  const isFinal = !isMoving && known?.found && !known.why && !known.found.unknown.archive && isArchived(end);
  if (known?.key === key && (isFinal || performance.now() - known.at < AGAIN_MS)) return;
  const asking = { key, at: performance.now(), found: known?.found };
  told.set(device, asking);
  try {
    asking.found = await ask("timeline", { device, begin: iso(first), end: iso(last) });
    asking.why = "";
  } catch (error) {
    asking.why = error.message;
  }
  redraw();
}

export const shownOf = (device) => told.get(device)?.found;

// The commands and alarms of a span; the oldest first.
function marks(found, begin, end) {
  const commands = (found?.commands ?? []).map((one) => ({
    time: given(one), title: one.name, said: `${one.name} of ${one.device}: ${one.status}`, link: commandLink(one) }));
  const alarms = (found?.alarms ?? []).map((one) => ({
    time: one.time, title: `${one.condition}${one.state === "ACTIVE" ? "" : " cleared"}`, isAlarm: one.state === "ACTIVE",
    said: `${one.condition} of ${one.source}: ${one.state === "ACTIVE" ? `raised, ${one.severity}` : "cleared"}`, isOf: "alarm",
    link: alarmLink(one) }));
  return [...commands, ...alarms].filter(({ time }) => begin <= time && time <= end).sort((one, other) => one.time - other.time);
}

// All that happened, as lines of a table: time, what, of what, and its record.
export function entries(found) {
  const { obs_states: states = {}, tables = [], blocks = [], gaps = [] } = found ?? {};
  return [
    ...marks(found, -Infinity, Infinity),
    ...Object.entries(states).flatMap(([device, steps]) => steps.map(([time, state]) => ({
      time, title: state, said: `subarray ${numberOf(device)} is ${state}`, link: `#/subarray/${device}` }))),
    ...tables.map((one) => ({ time: one.time, said: `table ${one.table} of ${one.product}: ${one.state}, ${one.size} B` })),
    ...blocks.map((one) => ({ time: one.time, said: `processing block ${one.pb_id}, ${one.kind}: ${one.state} ${one.text}` })),
    ...gaps.map(([begin, end]) => ({ time: begin, said: `not recorded until ${utc(end)}, as while a server is started` })),
  ].sort((one, other) => one.time - other.time);
}

export function entryTable(found) {
  const rows = entries(found).map((one) => html`<tr><td class="short">${utc(one.time)}</td>
    <td class=${one.isAlarm ? "ALARM" : ""}>${one.link ? html`<a href=${one.link}>${one.said}</a>` : one.said}</td></tr>`);
  return html`${rows.length ? html`<div class="scroll" tabindex="0" role="group" aria-label="What happened"><table><tbody>${rows}</tbody>
    </table></div>` : html`<p>Nothing is known to have happened.</p>`}${unknownOf(found)}`;
}

export const unknownOf = (found) =>
  Object.entries(found?.unknown ?? {}).map(([part, why]) => html`<p class="soft">${part.replace("_", " ")}: ${why}</p>`);

// Below the trends of a device.
export function happenedList(device) {
  const { found, why } = told.get(device) ?? {};
  return html`<details><summary>What happened in this time</summary>${why ? html`<p class="said wrong">${why}</p>` : nothing}
    ${found ? entryTable(found) : nothing}</details>`;
}

// In words, for the caption of a trend.
export function marked(device, [begin, end]) {
  const all = marks(shownOf(device), begin, end);
  const alarms = all.filter(({ isOf }) => isOf === "alarm").length;
  return all.length ? [`marked: commands ${all.length - alarms}, alarms ${alarms}`] : [];
}

const COLOURS = { SCANNING: "--fine", FAULT: "--alarm", ABORTED: "--warning", ABORTING: "--warning", EMPTY: "--line" };

// The subarray of a device, or all that did something.
function bandsOf(device, states) {
  const own = kindOf(device)?.attributes.obsState ? device : subarrayOf(device);
  const acted = ([, steps]) => steps.length > 1 || (steps[0]?.[1] ?? "EMPTY") !== "EMPTY";
  return Object.entries(states ?? {}).filter(own ? ([one]) => one === own : acted).slice(0, MOST_BANDS);
}

// Draws into a trend of a device: gaps behind all, bands at the foot, and a line for each mark; its name is where it fits.
export const drawHappened = (device) => (plot) => {
  const { ctx, bbox, scales: { x: { min, max } } } = plot;
  const found = shownOf(device);
  const css = getComputedStyle(document.documentElement);
  const [colour, size] = [(name) => css.getPropertyValue(name).trim(), devicePixelRatio];
  const place = (time) => plot.valToPos(Math.min(Math.max(time, min), max), "x", true);
  ctx.save();
  ctx.globalAlpha = 0.25;
  ctx.fillStyle = colour("--invalid");
  for (const [begin, end] of found?.gaps ?? []) {
    if (end > min && begin < max) ctx.fillRect(place(begin), bbox.top, place(end) - place(begin), bbox.height);
  }
  ctx.globalAlpha = 1;
  ctx.font = `${9 * size}px sans-serif`;
  [ctx.textAlign, ctx.textBaseline] = ["left", "middle"];
  bandsOf(device, found?.obs_states).forEach(([subarray, steps], row) => steps.forEach(([time, state], at) => {
    const [begin, end] = [time, steps[at + 1]?.[0] ?? Math.min(max, found.end)];
    if (end <= min || begin >= max) return;
    const [left, width, top] = [place(begin), place(end) - place(begin), bbox.top + bbox.height - (row + 1) * BAND * size];
    ctx.fillStyle = colour(COLOURS[state] ?? "--level1");
    ctx.fillRect(left, top, width, (BAND - 1) * size);
    const title = [`${numberOf(subarray)} ${state}`, state].find((one) => ctx.measureText(one).width + 4 * size < width);
    ctx.fillStyle = state in COLOURS && state !== "EMPTY" ? colour("--tile") : colour("--ink");
    if (title) ctx.fillText(title, left + 2 * size, top + (BAND / 2) * size);
  }));
  ctx.font = `${10 * size}px sans-serif`;
  ctx.textBaseline = "alphabetic";
  let free = bbox.left;
  for (const { time, title, isAlarm } of marks(found, min, max)) {
    const x = place(time);
    ctx.fillStyle = colour(isAlarm ? "--alarm" : "--focus");
    ctx.fillRect(x, bbox.top, size, bbox.height);
    if (x < free) continue;
    ctx.fillText(title, x + 3 * size, bbox.top + 10 * size);
    free = x + ctx.measureText(title).width + 8 * size;
  }
  ctx.restore();
};

// The mark at a place of a trend [px from its left edge].
export function markAt(device, plot, left) {
  const { min, max } = plot.scales.x;
  const near = marks(shownOf(device), min, max).map((one) => [Math.abs(plot.valToPos(one.time, "x") - left), one]);
  const [distance, one] = near.reduce((best, each) => (each[0] < best[0] ? each : best), [Infinity]);
  return distance <= NEAR ? one : undefined;
}

// One command with its outcome.
const record = { address: "", found: null, said: "" };
const AFTER = [43200, 600, 1]; // times in which its outcome is looked for [s]: an answer has the newest commands only

export async function openCommand(address) {
  const [device, id] = [address.slice(0, address.lastIndexOf("/")), address.slice(address.lastIndexOf("/") + 1)];
  const time = Number.parseFloat(id);
  Object.assign(record, { address, found: null, said: "Reading the records …" });
  try {
    for (const after of AFTER) {
      const { commands } = await ask("timeline", { begin: iso(time - 1), end: iso(time + after) });
      if (record.address !== address) return; // another one was opened meanwhile
      record.found = commands.find((one) => one.device === device && one.id === id) ?? null;
      if (record.found) break;
    }
    record.said = record.found ? "" : "Neither the archive nor the device knows this command.";
  } catch (error) {
    if (record.address === address) record.said = error.message;
  }
  redraw();
}

export function commandPage(address) {
  const { found, said } = record.address === address ? record : { said: "" };
  const lines = Object.entries(found ?? {}).filter(([name, one]) => name !== "acks" && one !== null && one !== "");
  const one = (value) => plain(typeof value === "object" ? JSON.stringify(value) : value);
  return html`<section class="tile full"><h2>Command ${found?.name ?? ""}</h2>
    ${said ? html`<p class="said" role="status">${said}</p>` : nothing}
    ${found ? html`${store.past ? nothing : commentForm(found.id)}
      <p><a href=${`#/subarray/${found.device}`}>Commands of ${found.device}</a></p>
      <table><tbody>${lines.map(([name, value]) => html`<tr><th scope="row">${name.replaceAll("_", " ")}</th>
        <td class="wide">${one(value)}</td></tr>`)}</tbody></table>
      ${found.acks?.length ? html`<h2>Acknowledgements</h2><table><tbody>${found.acks.map((ack) => html`<tr>
        <td class="short">${plain(ack.time)}</td><td>${ack.status}</td><td>${ack.origin}</td>
        <td class="wide">${ack.text}</td></tr>`)}</tbody></table>` : nothing}` : nothing}</section>`;
}

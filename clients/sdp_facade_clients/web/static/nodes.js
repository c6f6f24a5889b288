// The ingest nodes: a map that is coloured by a chosen figure, and the worst nodes by it. SdpMaster has the figures of
// all nodes, so that one question is enough for any number of them.

import { html, nothing, render } from "./vendor/lit-html.js";
import { repeat } from "./vendor/directives/repeat.js";
import { quantity, sourceOf, tile } from "./parts.js";
import { ask, devicesOf, isCut, kindOf, look, only, store } from "./store.js";
import { redraw } from "./app.js";

const REFRESH_MS = 2000;
const NOT_CURRENT = "No node has a current figure: no node sends, or the workers are behind (see Streams).";
const WORST = 5; // nodes in the overview
const MOST = 100; // in the list of all nodes
const [WARNING, ALARM] = [3, 4]; // levels

// Of each figure: the attribute with its name, unit and limits, the bounds between the levels, and which end is bad. The
// level of an alarm is only where SDP's health has a reason as well: at limits of the interface, and with late heaps.
const FIGURES = {
  packetLossFraction: { of: "packetLossFraction", title: "Packet loss" },
  latencyMean: { of: "latencyMean", limits: "latencyP99", title: "Latency" },
  heapsLate: { title: "Late heaps", unit: "/s", isShare: true, bounds: () => [0.0001, 0.001, 0.01, 0.1] }, // of its heaps
  heapRate: { title: "Heap rate", unit: "/s", isLow: true, bounds: (values) => [0.9, 0.5, 0.1].map((one) => one * median(values)) },
  silence: { title: "Silence", unit: "s", bounds: () => [1.5, 2, 3] },
};
const view = { figure: "packetLossFraction", all: {}, error: "", looked: -Infinity };

const median = (values) => values.toSorted((one, other) => one - other)[values.length >> 1] ?? 0;
const numberOf = (device) => Number(device.split("/").at(-1));
const rackOf = (device) => store.site.instances[device] ?? "";
const isKnown = (value) => typeof value === "number";
const nameOf = (device) => `Node ${numberOf(device)}`;
const attributeOf = (name) => kindOf(devicesOf("SdpIngestNode")[0])?.attributes[name];

async function refresh() {
  if (store.past || performance.now() - view.looked < REFRESH_MS) return;
  view.looked = performance.now();
  try {
    [view.all, view.error] = [await ask("nodes"), ""];
  } catch (error) {
    view.error = error.message;
  }
  view.turn = performance.now();
  redraw();
}

// The figures of now; none if they are not current: a worker that is behind is no fault of the nodes.
function figures() {
  if (store.past) return store.past.nodes ?? {};
  const { quality } = look(only("SdpMaster"), "heapRate");
  return view.error || quality === "INVALID" ? {} : view.all;
}

// Bounds between the levels: warning and alarm where the interface has limits, and decades below them.
function boundsOf(name, values) {
  const { of, limits, bounds } = FIGURES[name];
  if (bounds) return bounds(values.filter(isKnown));
  const { max_warning, max_alarm } = attributeOf(limits ?? of)?.limits ?? {};
  return [max_warning / 100, max_warning / 10, max_warning, max_alarm];
}

function levelOf(name, all, at, bounds) {
  const { isLow, isShare } = FIGURES[name];
  const value = isShare && all[name][at] ? all[name][at] / all.heapRate?.[at] : all[name][at];
  return bounds.filter((bound) => (isLow ? value < bound : value >= bound)).length;
}

function written(name, value) {
  const { of, unit } = FIGURES[name];
  return isKnown(value) ? quantity(value, of ? attributeOf(of) : { unit }, of) : "–";
}

function choose(name) {
  view.figure = name;
  redraw();
}

// The worst nodes by the chosen figure; those of which nothing is known are not among them.
function ranked() {
  const values = figures()[view.figure] ?? [];
  const sign = FIGURES[view.figure].isLow ? 1 : -1;
  return devicesOf("SdpIngestNode").filter((device) => isKnown(values[numberOf(device)]))
    .sort((one, other) => sign * (values[numberOf(one)] - values[numberOf(other)]));
}

function worst(most) {
  const all = figures();
  const names = Object.keys(FIGURES).filter((name) => all[name]);
  if (!names.length) return html`<p>${look(only("SdpMaster"), "heapRate").why || view.error || NOT_CURRENT}</p>`;
  const bounds = Object.fromEntries(names.map((name) => [name, boundsOf(name, all[name])]));
  const level = (name, at) => (isKnown(all[name][at]) ? ["", "", "", "WARNING", "ALARM"][levelOf(name, all, at, bounds[name])] : "");
  const head = (name) => html`<th class="number" aria-sort=${view.figure === name ? "descending" : nothing}>
    <button aria-pressed=${view.figure === name ? "true" : "false"} @click=${() => choose(name)}>${FIGURES[name].title}</button></th>`;
  const rows = ranked().slice(0, most).map((device) => html`<tr><th scope="row"><a href=${`#/node/${device}`}>${nameOf(device)}</a>
    <small>${look(device, "State").value ?? ""}</small></th>${names.map((name) =>
      html`<td class="number ${level(name, numberOf(device))}">${written(name, all[name][numberOf(device)])}</td>`)}</tr>`);
  return html`<div class="scroll worst"><table><caption class="hidden">Worst nodes by ${FIGURES[view.figure].title}</caption>
    <thead><tr><th>Worst nodes by</th>${names.map(head)}</tr></thead><tbody>${rows}</tbody></table></div>`;
}

function scale() {
  const values = figures()[view.figure] ?? [];
  const { isLow, isShare } = FIGURES[view.figure];
  const bounds = boundsOf(view.figure, values).map((one) => (isShare ? quantity(one, {}, "fraction") : written(view.figure, one)));
  const [fine, bad] = isLow ? ["from", "below"] : ["below", "from"];
  const said = [`${fine} ${bounds[0]}`, ...bounds.map((bound, at) => `${bad} ${bound}${
    at + 1 === WARNING ? " (warning)" : at + 1 === ALARM ? " (alarm)" : ""}`)];
  return html`<ul class="map scale" aria-label="Scale of ${FIGURES[view.figure].title}">${
    said.map((one, level) => html`<li><i class="level${level}"></i> ${one}</li>`)}
    <li><i class="standby"></i> sends nothing</li><li><i class="invalid"></i> not current</li></ul>`;
}

// Drawn only when something has changed: there may be 1,500 of them.
const map = document.createElement("div");
let drawn = "";
let looked = [];
function nodeMap() {
  const now = [store.turn, isCut(), store.site, view.turn, view.figure];
  if (now.every((one, at) => one === looked[at])) return map;
  looked = now;
  const devices = devicesOf("SdpIngestNode");
  const all = figures();
  const bounds = boundsOf(view.figure, all[view.figure] ?? []);
  const nodes = devices.map((device) => nodeLook(device, all, bounds));
  const key = nodes.map(({ name, kind }) => name + kind).join();
  if (key !== drawn) {
    drawn = key;
    const racks = [...new Set(devices.map(rackOf))].sort();
    render(racks.map((rack) => html`<ul class="map" aria-label=${rack} title=${rack}>${
      repeat(nodes.filter(({ device }) => rackOf(device) === rack), ({ device }) => device, nodeLink)}</ul>`), map);
  }
  return map;
}

const nodeLink = ({ device, kind, name }) =>
  html`<li><a class=${kind} href=${`#/node/${device}`} title=${name} aria-label=${name}></a></li>`;

function nodeLook(device, all, bounds) {
  const [seen, at] = [look(device, "State"), numberOf(device)];
  const isOld = seen.quality === "INVALID";
  const value = all[view.figure]?.[at];
  const level = isKnown(value) && seen.value !== "STANDBY" ? ` level${levelOf(view.figure, all, at, bounds)}` : "";
  const figure = `${FIGURES[view.figure].title.toLowerCase()} ${written(view.figure, value)}`;
  const said = isOld ? seen.why || "not valid" : `${seen.value}, ${figure}`;
  const kind = isOld ? "invalid" : String(seen.value).toLowerCase() + level;
  return { device, kind, name: `${nameOf(device)} (${device}): ${said}` };
}

export function nodesTile(head) {
  refresh();
  return tile("Ingest nodes", html`${head}
    <div class="beside"><div>${sourceOf(only("SdpMaster"), "heapRate", worst(WORST))}
      <p><a href="#/nodes">All nodes</a></p></div>
      <div><h3>Each node, coloured by ${FIGURES[view.figure].title.toLowerCase()}</h3>${nodeMap()}${scale()}</div></div>`, "full");
}

export function nodesPage() {
  refresh();
  const more = ranked().length - MOST;
  return html`${tile("Ingest nodes", html`${nodeMap()}${scale()}`, "full")}
    ${tile(`Nodes by ${FIGURES[view.figure].title.toLowerCase()}`, html`${worst(MOST)}${
      more > 0 ? html`<p>and ${more} more that are better: choose one in the map</p>` : nothing}`, "full")}`;
}

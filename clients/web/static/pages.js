// Overview, ingest node, and any device.

import { html, nothing, render } from "./vendor/lit-html.js";
import { repeat } from "./vendor/directives/repeat.js";
import { alarmLines, alarms, judgement, newestAlerts } from "./alarms.js";
import { plotTiles } from "./flow.js";
import { attributeTable, cell, figures, tile } from "./parts.js";
import { trend } from "./plots.js";
import { adminMode, commandTiles } from "./subarray.js";
import { devicesOf, follow, isCut, kindOf, look, only, store } from "./store.js";

const NEWEST = 3; // alerts, which come by the stream and wait for no list
const MOST_DEVICES = 200; // of a flow, in the list

export function overviewPage() {
  const master = only("SdpMaster");
  const subarrays = devicesOf("SdpSubarray");
  return html`
    ${tile("Is all well?", html`${judgement()}<p><small>State ${cell(master, "State")}</small></p>`)}
    ${tile("Worst alarms", html`${alarmLines(alarms().slice(0, 6))}<p><a href="#/alarms">All alarms</a></p>`)}
    ${tile("Newest alerts", newestAlerts(NEWEST), "full")}
    ${tile("Subarrays", html`<table>
      <thead><tr><th>Subarray</th><th>obsState</th><th>State</th><th>Health</th><th>Scan</th><th>Last command</th></tr></thead>
      <tbody>${subarrays.map((device) => html`<tr><th scope="row"><a href=${`#/subarray/${device}`}>${device.split("/").at(-1)}</a></th>
        <td>${cell(device, "obsState")}</td><td>${cell(device, "State")}</td><td>${cell(device, "healthState")}</td>
        <td>${cell(device, "scanID")}</td><td>${lastCommand(device)}</td></tr>`)}</tbody></table>`, "full")}
    ${tile("Ingest nodes", html`${figures(master, TOTALS)}${nodeMap()}`, "full")}
    ${tile("Streams", streams(), "full")}`;
}

const TOTALS = ["nodesReporting", "nodesExpected", "heapRate", "packetLossFraction", "latencyP99", "heapsLate"];

function lastCommand(device) {
  const seen = look(device, "lastCommand");
  const [, ...words] = String(seen.value ?? "").split(" ");
  return seen.quality === "VALID" && words.length ? words.join(" ") : cell(device, "lastCommand");
}

// Drawn only when a node has changed: there may be 1,500 of them.
const map = document.createElement("div");
let drawn = null;
let [turn, cut, of] = [-1, false, null];
function nodeMap() {
  if (turn === store.turn && cut === isCut() && of === store.site) return map;
  [turn, cut, of] = [store.turn, isCut(), store.site];
  const devices = devicesOf("SdpIngestNode");
  const nodes = devices.map(nodeLook);
  const key = nodes.map(({ name }) => name).join();
  if (key !== drawn) {
    drawn = key;
    const racks = [...new Set(devices.map(rackOf))].sort();
    render(racks.map((rack) => html`<ul class="map" aria-label=${rack} title=${rack}>${
      repeat(nodes.filter(({ device }) => rackOf(device) === rack), ({ device }) => device, nodeLink)}</ul>`), map);
  }
  return map;
}

const rackOf = (device) => store.site.instances[device] ?? "";
const nodeLink = ({ device, kind, name }) =>
  html`<li><a class=${kind} href=${`#/node/${device}`} title=${name} aria-label=${name}></a></li>`;

function nodeLook(device) {
  const seen = look(device, "State");
  if (look(device, "heapRate").why === "no broker answers") Object.assign(seen, { quality: "INVALID", why: "no broker answers" });
  const kind = seen.quality === "INVALID" ? "invalid" : String(seen.value).toLowerCase();
  return { device, kind, name: `${device}: ${seen.quality === "INVALID" ? seen.why || "not valid" : seen.value}` };
}

const FIGURES = ["rate", "consumed", "used", "late", "suppressed", "dead_lettered", "lag", "lag_seconds", "balance"];

export function streams() {
  const bus = only("SdpBus");
  const rows = new Map();
  for (const [name, one] of Object.entries(kindOf(bus)?.attributes ?? {}))
    if (one.stream) rows.set(one.stream, { ...(rows.get(one.stream) ?? {}), [one.figure]: name });
  const all = new Set([...rows.values()].flatMap((row) => Object.keys(row)));
  const columns = FIGURES.filter((one) => all.has(one));
  return html`<table><caption class="hidden">Account of each stream</caption>
    <thead><tr><th>Stream</th>${columns.map((one) => html`<th>${one.replaceAll("_", " ")}</th>`)}</tr></thead>
    <tbody>${[...rows].map(([stream, row]) => html`<tr><th scope="row">${stream}</th>
      ${columns.map((one) => html`<td class="number">${row[one] ? cell(bus, row[one], false) : ""}</td>`)}</tr>`)}</tbody></table>`;
}

export function statusTile(device, more = nothing, title = device) {
  return tile(title, html`<p class="big">${cell(device, "State")}</p><p class="said">${look(device, "Status").value ?? ""}</p>${more}`,
    "full");
}

const TRENDS = ["heapRate", "latencyP99", "packetsLost", "heapsLate", "flaggedFractionMean", "heapsMissing"];

export function nodePage(device) {
  follow(device);
  const trends = TRENDS.filter((name) => name in (kindOf(device)?.attributes ?? {})).map((name) => trend(device, name));
  return html`${statusTile(device)}
    ${tile("Last hour", html`<div class="trends">${trends}</div>`, "full")}
    ${tile("Attributes", attributeTable(device), "full")}`;
}

export function devicesPage() {
  const row = (device) => html`<tr><th scope="row"><a href=${`#/device/${device}`}>${device}</a></th>
    <td>${cell(device, "State")}</td></tr>`;
  return html`${Object.entries(store.site.flows).map(([flow, { summary, classes }]) => {
    const devices = classes.flatMap(devicesOf);
    const more = devices.length - MOST_DEVICES;
    return devices.length ? tile(flow, html`<p class="soft">${summary}</p>
      <table><tbody>${devices.slice(0, MOST_DEVICES).map(row)}</tbody></table>
      ${more > 0 ? html`<p>${more} more: see the map of the overview.</p>` : nothing}`) : nothing;
  })}`;
}

export function devicePage(device) {
  follow(device);
  const kind = kindOf(device);
  if (!kind) return html`<p>The Tango database does not know ${device}.</p>`;
  const flow = Object.values(store.site.flows).find((one) => store.site.devices[device] in (one.page?.attributes ?? {}));
  const names = Object.keys(kind.attributes).filter((name) => !kind.attributes[name].expert);
  const page = { over: {}, waterfalls: [], ...flow?.page, attributes: { [store.site.devices[device]]: names } };
  return html`${statusTile(device, html`<p class="soft">${kind.description}</p>${adminMode(device)}`)}
    ${Object.keys(kind.commands).length ? commandTiles(device) : nothing}
    ${plotTiles(device, page)}
    ${tile("Attributes", attributeTable(device), "full")}`;
}

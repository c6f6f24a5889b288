// Overview, ingest node, and any device.

import { html, nothing } from "./vendor/lit-html.js";
import { alarmLines, alarms, judgement, newestAlerts } from "./alarms.js";
import { plotTiles, trendTile } from "./flow.js";
import { nodesTile } from "./nodes.js";
import { attributeTable, cell, figures, folded, plain, sourceOf, tile } from "./parts.js";
import { adminMode, commandTiles } from "./subarray.js";
import { devicesOf, follow, isDeployed, kindOf, look, only, store } from "./store.js";

const NEWEST = 3; // alerts, which come by the stream and wait for no list
const NAMES = { alerts: "Alarms", commands: "Subarrays", overview: "SDP and its bus", telemetry: "Ingest nodes" };
const MOST_DEVICES = 200; // of a flow, in the list

export function overviewPage() {
  const master = only("SdpMaster");
  const subarrays = devicesOf("SdpSubarray");
  return html`
    ${tile("Is all well?", html`${judgement()}
      <p><small>State ${cell(master, "State")} Health ${cell(master, "healthState")}</small></p>`)}
    ${tile("Most urgent alarms", html`${alarmLines(alarms().slice(0, 6))}<p><a href="#/alarms">All alarms</a></p>`)}
    ${tile("Newest alerts", newestAlerts(NEWEST), "full")}
    ${tile("Subarrays", html`<table class="cards">
      <thead><tr><th>Subarray</th><th>obsState</th><th>State</th><th>Health</th><th>Scan</th><th>Last command</th></tr></thead>
      <tbody>${subarrays.map((device) => html`<tr><th scope="row"><a href=${`#/subarray/${device}`}>${device.split("/").at(-1)}</a></th>
        <td data-title="obsState">${cell(device, "obsState")}</td><td data-title="State">${cell(device, "State")}</td>
        <td data-title="Health">${cell(device, "healthState")}</td><td data-title="Scan">${cell(device, "scanID")}</td>
        <td data-title="Last command">${lastCommand(device)}</td></tr>`)}</tbody></table>`, "full")}
    ${nodesTile(figures(master, TOTALS))}
    ${trendTile("All nodes together", master, TRENDS_OF_ALL)}
    ${tile("Streams", streams(), "full")}`;
}

const TRENDS_OF_ALL = ["heapRate", "packetLossFraction", "latencyP99"];
const TOTALS = ["nodesReporting", "nodesExpected", "heapRate", "packetLossFraction", "latencyP99"];

function lastCommand(device) {
  const [, ...words] = String(look(device, "lastCommand").value ?? "").split(" ");
  return words.length ? sourceOf(device, "lastCommand", words.join(" ")) : cell(device, "lastCommand");
}

const FIGURES = ["rate", "consumed", "used", "late", "suppressed", "dead_lettered", "lag", "lag_seconds", "balance"];

export function streams() {
  const bus = only("SdpBus");
  const rows = new Map();
  for (const [name, one] of Object.entries(kindOf(bus)?.attributes ?? {}))
    if (one.stream) rows.set(one.stream, { ...(rows.get(one.stream) ?? {}), [one.figure]: name });
  const all = new Set([...rows.values()].flatMap((row) => Object.keys(row)));
  const columns = FIGURES.filter((one) => all.has(one));
  // A stream of a part that is not deployed has never had an account.
  const known = [...rows].filter(([, row]) => Object.values(row).some((name) => look(bus, name).value !== null));
  const isOld = known.flatMap(([, row]) => Object.values(row)).every((name) => look(bus, name).quality === "INVALID");
  const others = [...rows.keys()].filter((name) => !known.some(([stream]) => stream === name));
  return html`${isOld ? html`<p class="alike">Not valid:</p>` : nothing}
    <div class="scroll"><table class="cards"><caption class="hidden">Account of each stream</caption>
    <thead><tr><th>Stream</th>${columns.map((one) => html`<th class="number">${one.replaceAll("_", " ")}</th>`)}</tr></thead>
    <tbody>${known.map(([stream, row]) => html`<tr><th scope="row">${stream}</th>
      ${columns.map((one) => html`<td class="number" data-title=${one.replaceAll("_", " ")}>${
        row[one] ? cell(bus, row[one], false, !isOld) : ""}</td>`)}</tr>`)}</tbody>
    </table></div>
    ${others.length ? html`<p class="soft">${store.past ? "The archive has no account of that second" : "Nobody accounts"} for ${
      others.join(", ")}${store.past ? "." : ": their parts are not deployed, or have never run."}</p>` : nothing}`;
}

export function statusTile(device, more = nothing, title = device) {
  return tile(title, html`<p class="big">${cell(device, "State")}</p><p class="said">${plain(look(device, "Status").value)}</p>${more}`,
    "full");
}

const TRENDS = ["heapRate", "latencyP99", "packetsLost", "heapsLate", "flaggedFractionMean", "heapsMissing"];

export function nodePage(device) {
  follow(device);
  const trends = TRENDS.filter((name) => name in (kindOf(device)?.attributes ?? {}));
  return html`${statusTile(device)}
    ${trendTile("Trends", device, trends)}
    ${folded("All attributes", attributeTable(device))}`;
}

export function devicesPage() {
  const row = (device) => html`<tr><th scope="row"><a href=${`#/device/${device}`}>${device}</a></th>
    <td>${cell(device, "State")}</td></tr>`;
  return html`${Object.entries(store.site.flows).map(([flow, { summary, classes, page }]) => {
    const devices = classes.flatMap(devicesOf).filter(isDeployed);
    const more = devices.length - MOST_DEVICES;
    return devices.length ? tile(page?.title ?? NAMES[flow] ?? flow, html`<p class="soft">${summary}</p>
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
    ${folded("All attributes", attributeTable(device))}`;
}

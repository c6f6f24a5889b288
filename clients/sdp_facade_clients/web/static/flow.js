// The page of a flow, as its manifest describes it. The form of each attribute follows from the interface: a number
// is a figure and a trend, an array of numbers a plot, an array of texts a list or a table.

import { html, nothing } from "./vendor/lit-html.js";
import { age, cell, figures, sourceOf, subarrayOf, text, tile, unneeded } from "./parts.js";
import { happenedList } from "./happened.js";
import { image, spectrum, waterfall } from "./plots.js";
import { devicesOf, follow, kindOf, look, now, store } from "./store.js";
import { statusTile } from "./pages.js";
import { spans, trend } from "./trends.js";

const MOST_TRENDS = 8;
const MOST_ROWS = 200;
const LONG = 40; // characters of a text that may break anywhere

export function flowDevices({ page }) {
  return Object.keys(page?.attributes ?? {}).flatMap(devicesOf);
}

export function flowPage(address) {
  const [name, ...rest] = address.split("/");
  const flow = store.site.flows[name];
  const devices = flow ? flowDevices(flow) : [];
  const device = rest.join("/") || devices[0];
  if (!devices.includes(device)) return html`<p>The Tango database knows no device of ${address}.</p>`;
  (flow.page.each.length ? devices : [device]).forEach(follow);
  const link = (one) => html`<a href=${`#/flow/${name}/${one}`} aria-current=${one === device ? "page" : nothing}>${one}</a>`;
  const choice = devices.length > 1 && !flow.page.each.length
    ? html`<nav aria-label=${`Devices of ${flow.page.title}`}>${devices.map(link)}</nav>` : nothing;
  const some = chosen(device, flow.page);
  const label = (one) => kindOf(device).attributes[one].label;
  const { each } = flow.page;
  const why = unneeded(device);
  return html`${each.length ? tile(flow.page.title, eachDevice(devices, each, link), "full") : nothing}
    ${statusTile(device, html`<p class="soft">${flow.summary} <a href=${`#/device/${device}`}>All attributes</a></p>${
      why ? html`<p>Nothing to do now: ${why}.</p>` : nothing}${choice}`,
    `${flow.page.title}: ${device}`)}
    ${tile("Values", figures(device, some((one) => !one.length), { limits: true }), "full")}
    ${some((one) => one.length && !isNumbers(one)).map((one) => tile(label(one), texts(device, one), "full"))}
    ${plotTiles(device, flow.page)}`;
}

// The devices of a flow beside each other, with the subarray of the same number: what it does not use is no trouble now.
function eachDevice(devices, names, link) {
  const label = (name) => kindOf(devices[0]).attributes[name].label;
  return html`<table><thead><tr><th>Device</th><th>State</th>${names.map((name) => html`<th>${label(name)}</th>`)}
    <th>Subarray</th></tr></thead><tbody>${devices.map((device) => {
      const subarray = subarrayOf(device);
      return html`<tr><th scope="row">${link(device)}</th><td>${cell(device, "State")}</td>
        ${names.map((name) => html`<td>${cell(device, name)} ${name.endsWith("Utc") ? distance(look(device, name).value) : nothing}</td>`)}
        <td>${subarray ? html`${subarray.split("/").at(-1)}: ${cell(subarray, "obsState")}` : nothing}</td></tr>`;
    })}</tbody></table>`;
}

function distance(time) {
  const seconds = Date.parse(time) / 1000 - now();
  return Number.isNaN(seconds) ? nothing : html`<b>${seconds < 0 ? `${age(-seconds)} ago` : `in ${age(seconds)}`}</b>`;
}

const isNumbers = (entry) => entry.length && entry.type !== "DevString";

// The attributes of a page that are not the axis of another one.
function chosen(device, { attributes, over }) {
  const axes = new Set(Object.values(over));
  const [kind, known] = [store.site.devices[device], kindOf(device).attributes];
  return (fits) => attributes[kind].filter((name) => known[name] && !axes.has(name) && fits(known[name]));
}

export function trendTile(title, device, names) {
  return tile(title, html`${spans()}<div class="trends">${names.map((name) => trend(device, name))}</div>
    ${happenedList(device)}`, "full");
}

export function plotTiles(device, page) {
  const { over, waterfalls } = page;
  const some = chosen(device, page);
  const trends = some((one) => !one.length && !one.stream && one.type === "DevDouble").slice(0, MOST_TRENDS);
  const plots = some((one) => isNumbers(one) && !one.height);
  const images = some((one) => one.height);
  const falls = some((one) => isNumbers(one)).filter((name) => waterfalls.includes(name));
  const drawn = (title, content) => (content.length ? tile(title, html`<div class="trends">${content}</div>`, "full") : nothing);
  return html`${trends.length ? trendTile("Trends", device, trends) : nothing}
    ${drawn("Spectra", plots.map((name) => spectrum(device, name, over[name])))}
    ${drawn("Images", [...images.map((name) => image(device, name, over[name])),
      ...falls.map((name) => waterfall(device, name, over[name]))])}`;
}

// An array of texts: a table if each is a JSON object, else a list.
function texts(device, name) {
  const values = look(device, name).value ?? [];
  const shown = values.slice(0, MOST_ROWS);
  const rows = shown.map(object);
  const columns = [...new Set(rows.flatMap((one) => Object.keys(one ?? {})))];
  if (!values.length) return sourceOf(device, name, html`<p>None.</p>`);
  return sourceOf(device, name, html`<div class="scroll" tabindex="0" role="group" aria-label=${kindOf(device).attributes[name].label}>${
    rows.every(Boolean) ? html`<table><thead><tr>${columns.map((one) => html`<th>${one.replaceAll("_", " ")}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr>${columns.map((one) => cellOf(one in row ? text(row[one]) : ""))}</tr>`)}</tbody></table>`
    : html`<ul class="steps">${shown.map((one) => html`<li>${text(one)}</li>`)}</ul>`}</div>
    ${values.length > MOST_ROWS ? html`<p>and ${values.length - MOST_ROWS} more</p>` : nothing}`);
}

const cellOf = (written) => html`<td class=${written.length > LONG ? "wide" : ""}>${written}</td>`;

function object(text) {
  try {
    const found = JSON.parse(text);
    return found && typeof found === "object" && !Array.isArray(found) ? found : null;
  } catch {
    return null;
  }
}

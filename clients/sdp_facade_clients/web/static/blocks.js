// Execution blocks: the list of the last days, and the timeline of one, which its address gives to others.

import { html, nothing } from "./vendor/lit-html.js";
import { commentForm } from "./acts.js";
import { entryTable, numberOf, unknownOf } from "./happened.js";
import { age, tile } from "./parts.js";
import { moveSpan, setSpans, spans, trend } from "./trends.js";
import { ask, only, store, utc } from "./store.js";
import { redraw } from "./app.js";

const TRENDS = ["heapRate", "packetLossFraction", "latencyP99"];
const AGAIN_MS = 5000; // between two questions about a block that has not ended
const view = { days: "7", all: [], unknown: {}, id: "", found: null, said: "", at: -Infinity };

async function read(path, given, take) {
  view.said = "Reading the records …";
  redraw();
  try {
    take(await ask(path, given));
    view.said = "";
  } catch (error) {
    view.said = error.message;
  }
  redraw();
}

export function openBlocks() {
  const { days } = view;
  return read("execution-blocks", { days }, ({ blocks, unknown }) => days === view.days && Object.assign(view, { all: blocks, unknown }));
}

export function openBlock(id) {
  Object.assign(view, { id, found: null, at: performance.now() });
  return read("execution-block", { id }, (found) => {
    if (view.id !== id || !isShown(id)) return; // another page was opened meanwhile
    view.found = found;
    setSpans([[found.begin, found.end]]);
  });
}
const isShown = (id) => decodeURIComponent(location.hash) === `#/block/${id}`;

const said = () => (view.said ? html`<p class="said" role="status">${view.said}</p>` : nothing);
const length = ({ begin, end }) => (end ? age(end - begin) : "not ended");

export function blocksPage() {
  const days = (event) => { view.days = event.target.value; openBlocks(); };
  return tile("Execution blocks", html`<div class="tools"><label>of the last <select @change=${days}>${["1", "7", "30"].map((one) =>
      html`<option value=${one} ?selected=${one === view.days}>${one} d</option>`)}</select></label></div>${said()}
    ${view.all.length ? html`<table><thead><tr><th>Execution block</th><th>Subarray</th><th>From</th><th>Length</th></tr></thead>
      <tbody>${view.all.map((one) => html`<tr><th scope="row"><a href=${`#/block/${one.id}`}>${one.id}</a></th>
        <td>${numberOf(one.device)}</td><td class="short">${utc(one.begin)}</td><td>${length(one)}</td></tr>`)}</tbody></table>`
    : view.said ? nothing : html`<p>No execution block is known.</p>`}${unknownOf(view)}`, "full");
}

export function blockPage(id) {
  const { found } = view;
  if (!found) return tile(`Execution block ${id}`, said(), "full");
  if (found.is_open && performance.now() - view.at > AGAIN_MS) again(id);
  const master = only("SdpMaster");
  return html`${tile(`Execution block ${id}`, html`${said()}
      <p>Subarray <a href=${`#/subarray/${found.device}`}>${numberOf(found.device)}</a>,
      from ${utc(found.begin)}${found.is_open ? "; it has not ended" : ` to ${utc(found.end)} (${age(found.end - found.begin)})`}</p>
      <p class="soft">The address of this page shows the same to others.</p>
      ${store.past ? nothing : commentForm(id)}
      ${store.site.archive && store.me.name ? html`<p>
        <a href=${`api/report?id=${encodeURIComponent(id)}`} download=${`${id}.html`}>Report</a>
        <small>of all of SDP in this time, as that of a night</small></p>` : nothing}`, "full")}
    ${tile("Figures of the ingest nodes", html`${spans()}<div class="trends">${TRENDS.map((name) => trend(master, name))}</div>`, "full")}
    ${tile("What happened", entryTable(found), "full")}`;
}

async function again(id) {
  view.at = performance.now();
  const found = await ask("execution-block", { id }).catch(() => null);
  if (found && view.id === id && isShown(id)) {
    moveSpan([view.found.begin, view.found.end], [found.begin, found.end]);
    view.found = found;
  }
  redraw();
}

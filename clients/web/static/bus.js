// The bus: each stream's account, dead letters, and putting them back.

import { html, nothing } from "./vendor/lit-html.js";
import { attributeTable, cell, figures, tile } from "./parts.js";
import { act, ask, look, only, store } from "./store.js";
import { redraw } from "./app.js";
import { streams } from "./pages.js";

const SPANS = ["10m", "1h", "12h", ""];
const view = { since: "10m", found: null, said: "", wrong: false, chosen: new Set(), open: null, busy: false };

export function busPage() {
  const bus = only("SdpBus");
  return html`${tile("Bus", html`<p class="big">${cell(bus, "State")}</p><p class="said">${look(bus, "Status").value ?? ""}</p>
      ${figures(bus, ["connected", "workersAlive", "workersWanted"])}`, "full")}
    ${tile("Streams", streams(), "full")}
    ${tile("Dead letters", letters(), "full")}
    ${tile("All attributes", attributeTable(bus), "full")}`;
}

function letters() {
  const found = view.found;
  const some = [...view.chosen];
  return html`<div class="tools"><label>of the last <select @change=${(event) => { view.since = event.target.value; look_(); }}>${SPANS.map((one) => html`<option value=${one} ?selected=${one === view.since}>${one || "(all)"}</option>`)}</select></label>
      <button ?disabled=${view.busy} @click=${look_}>${found ? "Look again" : "Look"}</button>
      ${found?.letters.length ? html`<button @click=${() => { found.letters.forEach((one) => view.chosen.add(one.letter)); redraw(); }}>Choose all</button>
        <button ?disabled=${!some.length || view.busy} @click=${() => redrive(some, false)}>Try to put back ${some.length} (dry run)</button>
        <button ?disabled=${!some.length || view.busy || store.me.role !== "expert"} @click=${() => redrive(some, true)}>Put back ${some.length}</button>
        ${store.me.role === "expert" ? nothing : html`<small>Putting back needs the role expert.</small>`}` : nothing}</div>
    <p class="said ${view.wrong ? "wrong" : ""}" role="status">${view.busy ? "The bus is read …" : view.said}</p>
    ${found ? html`<p>${found.counts.map((one) => html`${one.letters} of ${one.topic}: ${one.reason}. `)}${found.counts.length ? nothing : "None."}</p>
      <table><thead><tr><th></th><th>Time</th><th>Topic</th><th>Reason</th><th>Detail</th><th>Bytes</th></tr></thead><tbody>${found.letters.map((one) => html`<tr>
        <td><input type="checkbox" aria-label=${`Choose ${one.letter}`} .checked=${view.chosen.has(one.letter)} @change=${(event) => { view.chosen[event.target.checked ? "add" : "delete"](one.letter); redraw(); }}></td>
        <td>${one.time.slice(0, 19).replace("T", " ")} UTC</td><td>${one.topic}<br><small>${one.partition}@${one.offset}</small></td>
        <td>${one.reason} <small>${one.path}</small></td><td class="wide">${one.detail}</td>
        <td><button @click=${() => show(one.letter)}>${one.size} bytes</button>${one["put back"] ? " put back" : ""}</td></tr>`)}</tbody></table>` : nothing}
    ${view.open ? html`<h2>Dead letter ${view.open.letter ?? ""}</h2><pre class="said" tabindex="0">${JSON.stringify(view.open, null, 2)}</pre>` : nothing}`;
}

async function busy(call) {
  [view.busy, view.said, view.wrong] = [true, "", false];
  redraw();
  try {
    await call();
  } catch (error) {
    [view.said, view.wrong] = [error.message, true];
  }
  view.busy = false;
  redraw();
}

const look_ = () => busy(async () => {
  view.found = await ask("dead-letters", { since: view.since });
  view.chosen.clear();
});
const show = (letter) => busy(async () => { view.open = await ask("dead-letter", { letter }); });
const redrive = (some, put_back) => busy(async () => {
  view.said = JSON.stringify(await act("redrive", { letters: some, put_back }), null, 2);
});

// The bus: each stream's account, dead letters, and putting them back.

import { html, nothing } from "./vendor/lit-html.js";
import { attributeTable, figures, folded, tile } from "./parts.js";
import { act, ask, barred, only, store, unknown, utc } from "./store.js";
import { redraw } from "./app.js";
import { statusTile, streams } from "./pages.js";

const SPANS = ["10m", "1h", "12h", ""];
// `tried` has the answer of the newest dry run, and the letters that it was about.
const view = { since: "10m", found: null, said: "", wrong: false, chosen: new Set(), open: null, tried: null, busy: false };

export function busPage() {
  const bus = only("SdpBus");
  return html`${statusTile(bus, figures(bus, ["connected", "workersAlive", "workersWanted"]))}
    ${tile("Dead letters", store.past ? html`<p>${unknown("dead-letters")}</p>` : letters(), "full")}
    ${tile("Streams", streams(), "full")}
    ${folded("All attributes", attributeTable(bus))}`;
}

function letters() {
  const found = view.found;
  const since = (event) => { view.since = event.target.value; lookForLetters(); };
  const all = (found?.letters ?? []).map((one) => one.letter);
  const some = view.chosen.size ? [...view.chosen] : all;
  return html`<div class="tools">
      <label>of the last <select @change=${since}>${SPANS.map((one) => html`<option value=${one} ?selected=${one === view.since}>${
        one || "(all)"}</option>`)}</select></label>
      <button ?disabled=${view.busy} @click=${lookForLetters}>Look again</button>
      ${some.length ? html`<button ?disabled=${view.busy} @click=${() => redrive(some, false)}>${
        view.chosen.size ? `Try ${some.length} chosen` : `Try all ${some.length}`} (dry run)</button>` : nothing}</div>
    <p class="said ${view.wrong ? "wrong" : ""}" role="status">${view.busy ? "Reading the bus …" : view.said}</p>
    ${view.tried ? dryRun(view.tried) : nothing}
    ${found && !all.length ? html`<p>None.</p>` : nothing}
    ${all.length ? html`<p>${found.counts.map((one) => `${one.letters} of ${one.topic}: ${one.reason}. `)}</p>
      <table><thead><tr><th></th><th>Time</th><th>Topic</th><th>Reason</th><th>Detail</th><th>Bytes</th></tr></thead>
        <tbody>${found.letters.map(row)}</tbody></table>` : nothing}
    ${view.open ? html`<h2>Dead letter ${view.open.letter ?? ""}</h2>
      <pre class="said" tabindex="0">${JSON.stringify(view.open, null, 2)}</pre>` : nothing}`;
}

function row(one) {
  const choose = (event) => {
    view.chosen[event.target.checked ? "add" : "delete"](one.letter);
    view.tried = null;
    redraw();
  };
  return html`<tr>
    <td><input type="checkbox" aria-label=${`Choose ${one.letter}`} .checked=${view.chosen.has(one.letter)} @change=${choose}></td>
    <td>${utc(Date.parse(one.time) / 1000)}</td><td>${one.topic}<br><small>${one.partition}@${one.offset}</small></td>
    <td>${one.reason} <small>${one.path}</small></td><td class="wide">${one.detail}</td>
    <td><button @click=${() => show(one.letter)}>${one.size} bytes</button>${one["put back"] ? " put back" : ""}</td></tr>`;
}

// What putting back would do; only what was tried can be put back.
function dryRun({ letters: some, answer }) {
  const why = barred("expert", "Putting back needs the role expert.");
  return html`<table><caption>Dry run: ${answer.chosen} of ${some.length} would be put back</caption>
    <thead><tr><th>Topic</th><th>Reason</th><th>Dead letters</th><th>A redrive</th></tr></thead>
    <tbody>${answer.counts.map((one) => html`<tr><td>${one.topic}</td><td>${one.reason}</td><td>${one.letters}</td>
      <td>${one.fate.replaceAll("_", " ")} ${one.failure ?? ""}</td></tr>`)}</tbody></table>
    <div class="tools">
      <button ?disabled=${why || view.busy || !answer.chosen} @click=${() => redrive(some, true)}>Put back ${answer.chosen}</button>
      ${why ? html`<small>${why}</small>` : nothing}</div>`;
}

async function busy(call) {
  Object.assign(view, { busy: true, said: "", wrong: false });
  redraw();
  try {
    await call();
  } catch (error) {
    Object.assign(view, { said: error.message, wrong: true });
  }
  view.busy = false;
  redraw();
}

async function search() {
  const { since } = view;
  const found = await ask("dead-letters", { since });
  if (view.since !== since) return; // another span was chosen meanwhile
  view.found = found;
  view.chosen.clear();
  view.tried = null;
}
const lookForLetters = () => busy(search);
const show = (letter) => busy(async () => { view.open = await ask("dead-letter", { letter }); });
const redrive = (some, put_back) => busy(async () => {
  const answer = await act("redrive", { letters: some, put_back });
  if (!put_back) view.tried = { letters: some, answer };
  else {
    await search();
    view.said = `${answer["put back"]} records were put back.`;
  }
});

export function openBus() {
  if (!view.busy && !store.past) lookForLetters();
}

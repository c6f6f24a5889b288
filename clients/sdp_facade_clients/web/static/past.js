// The time that the whole page shows: now, or a second of the archive's past, which the address names.

import { html, nothing } from "./vendor/lit-html.js";
import { ask, devicesOf, nowOf, only, postMortem, setAddress, showPast, store } from "./store.js";
import { redraw } from "./app.js";

const STEPS = [[1, "1 s"], [10, "10 s"], [60, "1 min"], [600, "10 min"], [3600, "1 h"]];
const SPEEDS = [1, 10, 60, 600];
const TICK_MS = 1000;
const MOST_STEPS = 60; // of one answer while the past is played, and their time [s]
const LONGEST_STEPS = 600;
const MANY = 64; // devices of a class, of which the server then gives State only
// `ahead` has the steps that are shown next, and `more` is the same list while those behind them are asked for.
const view = { step: 60, speed: 1, timer: 0, asked: 0, ahead: [], more: null, reading: false, device: "",
  changed: () => {}, opened: () => {} };

const iso = (time) => `${new Date(time * 1000).toISOString().slice(0, 19)}Z`;

// Until the archive has answered, the second before stays; without one, nothing is known: values of now would not be true.
async function turnTo(time) {
  const [asked, before] = [(view.asked += 1), store.past];
  Object.assign(view, { ahead: [], reading: true });
  if (!before) showPast({ time: time ?? Date.now() / 1000, why: "the archive is being read" });
  let found;
  try {
    found = await at(time);
  } catch (error) {
    stop();
    found = { time: time ?? Date.now() / 1000, begin: before?.begin, end: before?.end, why: error.message };
  }
  if (asked !== view.asked) return; // another second, or now, was chosen meanwhile
  view.reading = false;
  show(found);
  if (!before) view.opened();
}

const at = (time, more) =>
  ask("at", { ...(time !== null && { time: iso(time) }), ...(view.device && { device: view.device }), ...more });

function show(found) {
  setAddress("at", iso(found.time));
  showPast({ ...found, want });
  view.changed();
}

// Show the next step. Those behind it are asked for while half of the last answer is still to be shown.
function goOn() {
  if (view.reading) return;
  const next = view.ahead.shift();
  if (next) show(next.steps ? next : after(store.past, next));
  const [ahead, count] = [view.ahead, Math.min(MOST_STEPS, Math.ceil(LONGEST_STEPS / view.speed))];
  const time = (ahead.at(-1) ?? store.past).time + view.speed;
  const isThere = !(time > store.past.end) || !ahead.length; // the archive may have grown since it gave its end
  if (ahead.length < count / 2 && view.more !== ahead && isThere) askMore(time, count);
}

async function askMore(time, count) {
  const ahead = (view.more = view.ahead);
  try {
    const found = await at(time, { step: view.speed, count });
    ahead.push(found, ...found.steps);
  } catch {
    if (view.timer && ahead === view.ahead && !ahead.length) turnTo(time); // which says why there is nothing to show
  }
  if (view.more === ahead) view.more = null;
}

// What is shown after a step, by what it changes.
function after({ values, nodes, ...past }, step) {
  for (const [device, some] of Object.entries(step.values)) {
    const all = (values[device] ??= {});
    for (const [name, value] of Object.entries(some)) {
      if (value) all[name] = value;
      else delete all[name];
    }
    if (!Object.keys(all).length) delete values[device];
  }
  for (const [figure, some] of Object.entries(step.nodes)) {
    const row = Object.assign((nodes[figure] ??= []), some);
    if (row.every((one) => one === null)) delete nodes[figure];
  }
  return { ...past, ...step, values, nodes };
}

function toNow() {
  stop();
  Object.assign(view, { asked: view.asked + 1, ahead: [], reading: false });
  ["at", "post_mortem"].forEach((name) => setAddress(name, null));
  showPast(null);
  view.opened();
  view.changed();
}

// Of a class with many devices, only the one that is looked at has all its values.
function want(device) {
  const isWhole = devicesOf(store.site?.devices[device]).length <= MANY || store.values.has(`${device}/Status`);
  if (isWhole || view.device === device || view.reading) return;
  view.device = device;
  turnTo(store.past.time);
}

function play() {
  view.timer = setInterval(goOn, TICK_MS);
  goOn();
  redraw();
}

function stop() {
  clearInterval(view.timer);
  view.timer = 0;
  redraw();
}

export function pastButton() {
  if (!store.site?.archive || store.past) return nothing;
  return html`<button @click=${() => turnTo(null)}>Look back</button>`;
}

export function pastBar() {
  const { past } = store;
  if (!past) return nothing;
  const choose = (event) => {
    const time = Date.parse(`${event.target.value}Z`) / 1000;
    if (time) turnTo(time);
  };
  const step = (sign) => () => { stop(); turnTo(past.time + sign * view.step); };
  const options = (all, chosen) => all.map(([value, title]) =>
    html`<option value=${value} ?selected=${value === chosen}>${title}</option>`);
  const set = (name) => (event) => { Object.assign(view, { [name]: Number(event.target.value), ahead: [] }); redraw(); };
  const isReading = view.reading || (view.more === view.ahead && !view.ahead.length);
  const unseen = nowOf(only("SdpAlerts"), "unacknowledgedCount");
  return html`<section class="past" aria-label="Time of the page">
    <strong>PAST: ${iso(past.time).replace("T", " ").replace("Z", " UTC")}</strong>
    <label>Time (UTC) <input type="datetime-local" step="1" .value=${iso(past.time).slice(0, -1)} @focus=${stop} @change=${choose}
      min=${past.begin ? iso(past.begin).slice(0, -1) : nothing} max=${past.end ? iso(past.end).slice(0, -1) : nothing}></label>
    <button aria-label="Step back" @click=${step(-1)}>◀</button>
    <select aria-label="Step" @change=${set("step")}>${options(STEPS, view.step)}</select>
    <button aria-label="Step forward" @click=${step(1)}>▶</button>
    ${view.timer ? html`<button @click=${stop}>Pause</button>` : html`<button @click=${play}>Play</button>`}
    <select aria-label="Speed" @change=${set("speed")}>${options(SPEEDS.map((one) => [one, `${one}×`]), view.speed)}</select>
    <button @click=${toNow}>Back to now <small>Esc</small></button>
    <span role="status">${isReading ? "Reading the archive …" : past.why ?? "Nobody can act here."}${
      postMortem() ? " This is a post-mortem: only what was kept about the place of an alarm." : ""}</span>
    ${unseen ? html`<span class="ALARM">Now: ${unseen} unacknowledged alarm${unseen === 1 ? "" : "s"}</span>` : nothing}</section>`;
}

// `changed` is called when another second is shown, `opened` when the past begins or ends.
export function startPast(changed, opened) {
  Object.assign(view, { changed, opened });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && store.past && !document.querySelector("dialog[open]")) toNow();
  });
  const at = Date.parse(new URLSearchParams(location.search).get("at")) / 1000;
  if (at) turnTo(at);
}

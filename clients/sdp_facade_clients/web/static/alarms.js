// Alarms (IEC 62682): the list with actions, one alarm with its response and history, and sounds by severity.

import { html, nothing } from "./vendor/lit-html.js";
import { repeat } from "./vendor/directives/repeat.js";
import { age, cell, coded, entryLine, folded, plain, tile } from "./parts.js";
import { act, ask, barred, inTurn, isCut, kindOf, look, now, nowOf, onNews, only, store, unknown, utc } from "./store.js";
import { redraw } from "./app.js";
import { sound } from "./sound.js";

const isNarrow = () => innerWidth <= 900;
const rowHeight = () => (isNarrow() ? 54 : 30); // [px], as in style.css; so is the share of the window that the list takes
const SHARE = 0.6;
const BESIDE = 4; // rows that are drawn above and below those in sight
const SHELVES = [["15 min", 900], ["1 h", 3600], ["4 h", 14400], ["12 h", 43200], ["1 d", 86400], ["7 d", 604800]];
const TITLES = {
  ack: "Acknowledge", shelve: "Shelve", unshelve: "Unshelve", reset: "Reset", comment: "Comment",
  "remove-from-service": "Out of service", "return-to-service": "Return to service",
};
const REFRESH_MS = 5000;
// Of IEC 62682.
const STATES = {
  UNACK: "active, not acknowledged", ACKED: "active, acknowledged", RTNUN: "gone, not acknowledged", NORM: "gone",
  LTUNK: "gone, stays until it is acknowledged and reset", LTACK: "gone and acknowledged, stays until it is reset",
  SHLVD: "shelved: silent for a time", DSUPR: "suppressed by its cause", OOSRV: "out of service",
};

const view = {
  all: [], judged: null, unjudged: "", error: "", looked: -Infinity, pause: 0, chosen: new Set(), open: "", filter: "",
  top: 0, history: [], kept: [], allKept: [], said: "", wrong: false, place: "list", acting: false,
};
const keyOf = (alarm) => `${alarm.condition}@${alarm.source}`;
// An alarm that another one explains, or that is shelved, has another state: it makes a tone when it is told.
const isTold = ({ state }) => state === "UNACK";
const toneOf = (alarm) => `${keyOf(alarm)} ${alarm.occurrence} ${alarm.state} ${alarm.severity}`;
const ofKey = (key) => ({ condition: key.slice(0, key.indexOf("@")), source: key.slice(key.indexOf("@") + 1) });
const linkOf = (key) => `#/alarms/${encodeURIComponent(key)}`;

// An answer that comes after another time was chosen belongs to the time before it.
async function refresh() {
  const [begun, second] = [performance.now(), store.past];
  const answer = async (path, take, fail) => {
    const [found, error] = await ask(path).then((one) => [one, ""], ({ message }) => [null, message]);
    if (second !== store.past) return false;
    if (!error) take(found);
    fail(error);
    return true;
  };
  const list = (all) => {
    const before = view.all;
    view.all = all; // the most urgent first
    if (!second && view.looked >= 0) sound(() => newlyTold(all, before));
  };
  // The judgement comes behind the list, so it knows of each alarm there. It also says what to do if there is no list.
  if (!await answer("alarms", list, (error) => { view.error = error; })) return;
  if (!await answer("judgement", (found) => { view.judged = found; }, (error) => { view.unjudged = error; })) return;
  view.looked = performance.now();
  view.pause = Math.max(SHORTEST_MS, 4 * (view.looked - begun)); // a long list leaves time for all else
  redraw();
}

function newlyTold(all, former) {
  const before = new Set(former.filter(isTold).map(toneOf));
  return all.filter((one) => isTold(one) && !before.has(toneOf(one)));
}

// While the page shows the past, the list is that of the past; SdpAlerts says which alarms wait now.
let waiting = null;
onNews(() => {
  const before = waiting;
  waiting = store.past && nowOf(only("SdpAlerts"), "unacknowledgedAlerts");
  const read = (some) => some.map((one) => JSON.parse(one));
  if (before && waiting && before !== waiting) sound(() => newlyTold(read(waiting), read(before)));
});

// The list is read again as soon as the log of alerts goes on or a state or count of SdpAlerts changes, such as when a
// delay is over; and once more if that happens meanwhile.
const SHORTEST_MS = 200;
let shown = "";
let wanted = false;
let reading = false;
async function refreshSoon() {
  wanted = true;
  if (reading) return;
  reading = true;
  while (wanted) {
    const rest = view.looked + view.pause - performance.now();
    if (rest > 0) await new Promise((done) => setTimeout(done, rest));
    wanted = false;
    await refresh();
  }
  reading = false;
}
const isCounted = ([name, one]) => one.enum === "AlarmState" || name === "alertSequence" || name.endsWith("Count");
let of = null; // the second of the past whose alarms were read last
onNews((alerts) => {
  if (of !== store.past) {
    [of, shown, view.looked] = [store.past, "", -Infinity]; // what is new there makes no tone
    if (reading) refresh(); // a question about the time before holds nothing up
  }
  const [device, master] = [only("SdpAlerts"), only("SdpMaster")];
  const names = Object.entries(kindOf(device)?.attributes ?? {}).filter(isCounted).map(([name]) => name);
  const newest = [...names.map((name) => store.values.get(`${device}/${name}`)?.[0]), Object.keys(store.silent),
    ...["healthState", "healthInfo"].map((name) => store.values.get(`${master}/${name}`)?.[0])].join();
  if (alerts.length || newest !== shown || (!reading && performance.now() - view.looked > REFRESH_MS)) {
    shown = newest;
    refreshSoon();
  }
});

export const alarms = () => view.all;

// Whether all is well, and what is to be done: the server of this page judges, as `sdp-facade status` does.
export function judgement() {
  const { state, idle, findings } = view.judged ?? { state: "UNKNOWN", findings: [] };
  const target = (one) => (one.alarm ? linkOf(one.alarm) : one.device ? `#/device/${one.device}` : "#/alarms");
  const about = (one) => {
    const [name] = one.alarm.split("@");
    return !name ? one.about : one.about.replace(`${name} of `, `${store.site.conditions[name]?.label ?? name}: `);
  };
  const step = (one) => html`<li><a class=${one.level === "NOTE" ? "soft" : one.severity} href=${target(one)}>${about(one)}</a>
    ${coded(plain(one.text))}${one.do ? html`<br>${coded(one.do)}` : nothing}</li>`;
  const old = view.unjudged || (isCut() && "no connection");
  return html`${notCurrent(old)}<p class="big ${old ? "UNKNOWN" : state}">${old ? "UNKNOWN" : state}</p>
    ${idle && !old ? html`<p>Nothing to do.</p>` : nothing}<ul class="steps">${findings.map(step)}</ul>`;
}

const notCurrent = (why) => (why ? html`<p class="said wrong">${store.past ? "" : "Not current: "}${why}</p>` : nothing);
// The alarms themselves may be older than the judgement: SdpAlerts is silent, or has no broker.
const whyOld = () => (!store.past && look(only("SdpAlerts"), "activeCount").why) || view.error;
const since = (alarm) => (alarm.raised_at ? age(now() - alarm.raised_at) : "");

export function alarmLines(some) {
  const lines = some.map((alarm) => html`<tr><td class=${alarm.severity}>${alarm.severity}</td>
    <td title=${STATES[alarm.state] ?? ""}>${alarm.state}</td>
    <td><a href=${linkOf(keyOf(alarm))}>${label(alarm)}</a> <small>${alarm.source}</small></td>
    <td>${since(alarm)}</td></tr>`);
  return html`${notCurrent(whyOld())}${lines.length ? html`<table><tbody>${lines}</tbody></table>`
    : whyOld() ? nothing : html`<p>No alarms.</p>`}`;
}

const label = (alarm) => store.site.conditions[alarm.condition]?.label ?? alarm.condition;

// Of ten thousand alarms only what has changed is looked at again: the page is drawn at each step of the wheel.
let [searched, word, matches, states] = [null, "", [], []];
function found() {
  if (searched !== view.all || word !== view.filter) {
    [searched, word] = [view.all, view.filter];
    const lower = word.toLowerCase();
    matches = !word ? searched
      : searched.filter((one) => `${one.severity} ${one.state} ${keyOf(one)} ${one.text}`.toLowerCase().includes(lower));
    states = Object.keys(STATES).filter((state) => matches.some((one) => one.state === state));
  }
  return [matches, states];
}

export function alarmsPage() {
  const device = only("SdpAlerts");
  const [[some, named], height] = [found(), rowHeight()];
  const first = Math.max(0, Math.floor(view.top / height) - BESIDE);
  const visible = some.slice(first, first + Math.ceil((SHARE * innerHeight) / height) + 2 * BESIDE);
  const chosen = view.chosen.size ? view.all.filter((one) => view.chosen.has(keyOf(one))) : [];
  return html`${tile("Alarms", html`
    <div class="tools"><span>not acknowledged ${cell(device, "unacknowledgedCount")}</span>
      <span>active ${cell(device, "activeCount")}</span><span>alerts ${cell(device, "alertRate")}</span>
      <span>suppressed ${cell(device, "suppressedCount")}</span><span>new in 10 min ${cell(device, "newAlarms")}</span>
      <span>flood ${cell(device, "flood")}</span><span>chattering ${cell(device, "chatteringAlerts")}</span></div>
    <div class="tools"><label>Filter <input type="search" .value=${view.filter} @input=${filter}></label>
      <button @click=${() => { some.forEach((one) => view.chosen.add(keyOf(one))); redraw(); }}>Choose all ${some.length}</button>
      <button @click=${() => { view.chosen.clear(); redraw(); }} ?disabled=${!chosen.length}>Choose none</button></div>
    ${notCurrent(whyOld())}
    <div class="rows" .style=${`height:min(${100 * SHARE}vh, ${Math.max(some.length, 3) * height + 2}px)`} tabindex="0"
      role="group" aria-label="Alarms" @scroll=${scrolled}>
      <div class="space" .style=${`height:${some.length * height}px`}></div>
      ${repeat(visible, keyOf, (alarm, at) => row(alarm, first + at))}</div>
    <p class="soft"><small>${named.map((one) => `${one}: ${STATES[one]}`).join("; ")}</small></p>
    ${tools(chosen, "list")}`, "two")}
    ${tile("One alarm", html`<div id="one-alarm">${detail()}</div>`, "third")}
    ${tile("Newest alerts and actions", newestAlerts(15), "full")}
    ${view.allKept.length ? folded("Post-mortems of CRITICAL alarms", keptList(view.allKept)) : nothing}`;
}

// From the stream itself, before the list is read again.
export function newestAlerts(most) {
  const all = store.past ? store.past.alerts : store.alerts;
  if (!all) return notCurrent(unknown("alerts"));
  const lines = all.slice(-most).reverse().map((one) => html`<tr>${entryLine(one)}</tr>`);
  return html`${notCurrent(whyOld())}${lines.length ? html`<table class="log"><tbody>${lines}</tbody></table>`
    : whyOld() ? nothing : html`<p>${store.past ? "None in the hour before." : "None: the log of alerts is empty."}</p>`}`;
}

function filter(event) {
  view.filter = event.target.value;
  redraw();
}

function scrolled(event) {
  view.top = event.target.scrollTop;
  redraw();
}

function row(alarm, at) {
  const key = keyOf(alarm);
  const choose = (event) => { view.chosen[event.target.checked ? "add" : "delete"](key); redraw(); };
  const show = (event) => {
    event.stopPropagation();
    openAlarm(key);
    // It is below the list; when it has been drawn.
    if (isNarrow()) requestAnimationFrame(() => document.getElementById("one-alarm")?.scrollIntoView());
  };
  return html`<div class="row ${view.open === key ? "chosen" : ""}" .style=${`top:${at * rowHeight()}px`} @click=${show}>
    <input type="checkbox" aria-label=${`Choose ${key}`} .checked=${view.chosen.has(key)} @change=${choose}
      @click=${(event) => event.stopPropagation()}>
    <span title=${STATES[alarm.state] ?? ""}>${alarm.state}</span><span class=${alarm.severity}>${alarm.severity}</span>
    <button @click=${show} title=${key}>${label(alarm)}</button>
    <span title=${alarm.text}>${alarm.source}: ${plain(alarm.text)}</span><span>${since(alarm)}</span></div>`;
}

// Show one alarm, condition@source; also called when the page is opened with one in its address.
export async function openAlarm(key) {
  if (!key) keptOf({}).then((kept) => { view.allKept = kept; redraw(); });
  if (!(key ||= view.open)) return;
  if (view.open !== key) Object.assign(view, { open: key, history: [], kept: [] });
  redraw();
  const raised_at = utcText(view.all.find((one) => keyOf(one) === key)?.raised_at);
  keptOf({ ...ofKey(key), ...(raised_at && { raised_at }) }).then((kept) => { if (view.open === key) view.kept = kept; redraw(); });
  if (store.past) return;
  try {
    const history = await ask("alarm-history", ofKey(key));
    if (view.open === key) view.history = history;
  } catch (error) {
    Object.assign(view, { said: error.message, wrong: true, place: "one" });
  }
  redraw();
}

const utcText = (time) => (time ? `${new Date(time * 1000).toISOString().slice(0, 19)}Z` : "");
const keptOf = async (alarm) => (store.site?.archive ? ask("post-mortems", alarm).catch(() => []) : []);
const keptList = (some) => html`<ul>${some.map(({ name, time, title }) => html`<li><a href=${
  `?at=${utcText(time)}&post_mortem=${name}${location.hash}`}>${utc(time)}</a> <small>${title}</small></li>`)}</ul>`;

// An alarm that is at rest has no line in the list; marks of trends lead to it.
function detail() {
  const alarm = view.all.find((one) => keyOf(one) === view.open);
  if (!view.open || (!alarm && view.looked < 0)) return html`<p class="soft">Choose an alarm to see its response and history.</p>`;
  const { condition: name, source } = ofKey(view.open);
  const condition = store.site.conditions[name] ?? {};
  const of = ({ alert, action }) => keyOf(alert ?? action) === view.open;
  const history = store.past ? (store.past.alerts ?? []).filter(of).reverse() : view.history.slice(0, 15);
  return html`<p class="big ${alarm?.severity ?? ""}">${condition.label ?? name}</p>
    <p>${alarm ? html`${alarm.severity} ${alarm.state}, ${source}, since ${utc(alarm.raised_at)}`
      : `${source}: ${whyOld() ? "not known" : store.past ? "at rest at this second" : "at rest"}`}
    ${alarm?.suppressed_by ? html`<br>suppressed by <a href=${linkOf(alarm.suppressed_by)}>${alarm.suppressed_by}</a>` : nothing}
    ${alarm?.shelved_until ? html`<br>shelved until ${utc(alarm.shelved_until)}` : nothing}</p>
    ${alarm ? html`<p class="said">${plain(alarm.text)}</p>${tools([alarm], "one")}` : nothing}
    <h2>Response</h2><p>${coded(condition.response ?? "This condition is not in the interface.")}</p>
    ${condition.check ? html`<h2>How to find the cause</h2><p>${coded(condition.check)}</p>
      <ul class="steps">${condition.causes.map((one) => html`<li>${coded(one)}</li>`)}</ul>` : nothing}
    ${condition.ends ? html`<p class="soft">${coded(condition.ends)}</p>` : nothing}
    ${view.kept.length ? html`<h2>Post-mortems</h2>${keptList(view.kept)}` : nothing}
    <h2>History</h2>${store.past ? html`<p class="soft">Of the newest alerts of the hour before.</p>` : nothing}
    <table class="log"><tbody>${history.map((one) => html`<tr>${entryLine(one, false)}</tr>`)}</tbody></table>`;
}

// What came of an action is said beside the button that was pressed: `place` is `list` or `one`.
function tools(some, place) {
  const why = barred("operator", "Sign in as operator to act.");
  if (store.past) return html`<p><small>${why}</small></p>`;
  const off = why || view.acting;
  const buttons = Object.entries(TITLES).map(([name, title]) => {
    const fitting = some.filter((one) => store.site.actions[name].includes(one.state));
    return html`<button ?disabled=${off || !fitting.length} @click=${(event) => perform(name, fitting, place, event)}>${title}</button>`;
  });
  const shelves = SHELVES.map(([name, seconds]) => html`<option value=${seconds} ?selected=${seconds === 3600}>${name}</option>`);
  return html`<div class="tools" role="group" aria-label="Actions about ${some.length} alarm${some.length === 1 ? "" : "s"}">
    <label>Comment <input class="comment" type="text" maxlength="500"></label>
    <label>for <select class="shelf" aria-label="Shelve for">${shelves}</select></label>
    ${buttons}${why ? html`<small>${why}</small>` : nothing}</div>
    <p class="said ${view.wrong ? "wrong" : ""}" role="status">${view.place === place ? view.said : ""}</p>`;
}

async function perform(action, some, place, event) {
  const group = event.target.closest(".tools");
  const comment = group.querySelector(".comment").value;
  const duration = action === "shelve" ? Number(group.querySelector(".shelf").value) : 0;
  let done = 0;
  Object.assign(view, { said: "", wrong: false, place, acting: true }); // until all are done, no button can be pressed
  for (const { condition, source, occurrence } of some) {
    try {
      await inTurn(() => act("alarm", { action, condition, source, occurrence, comment, duration }));
      view.said = ++done < some.length ? `${TITLES[action]}: ${done} of ${some.length} alarms …` : "";
      redraw();
    } catch (error) {
      [view.said, view.wrong] = [`${condition} of ${source}: ${error.message}`, true];
      break;
    }
  }
  view.acting = false;
  if (done) view.said = `${TITLES[action]}: done for ${done} alarm${done === 1 ? "" : "s"}. ${view.said}`;
  await Promise.all([refresh(), openAlarm(view.open)]);
}

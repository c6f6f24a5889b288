// What the server has sent so far, and whether it can still be believed.
//
// Every value is looked up by `look`, which never returns an old value as a good one: it is INVALID where its device is
// silent, its subscription fails, or the stream itself has been silent.

import { listen } from "./stream.js";

const BASE = new URL(".", import.meta.url); // where this page is served, also behind a proxy
const ANSWERS_MS = 40000; // dead letters take up to 30 s
const SILENT_MS = 2200; // the server sends a frame at least each second

export const store = {
  site: null, // see clients/sdp_facade_clients/web/site.py, description
  me: { name: "", role: "viewer", can_sign_in: false, unconfirmed: false, ended: false }, // the page says whether a session ended or waits
  values: new Map(), // "device/attribute" -> [value, quality, time, error], of now or of the shown second
  past: null, // what the archive has of the second that the page shows; null: it shows now
  away: "", // why the Tango database does not answer
  replays: new Map(), // device -> its Status, which says that it shows a replay
  silent: {}, // device -> time of its last answer [Unix s]
  turn: 0, // counts frames with values or silent devices
  alerts: [], // newest entries of the log of alerts, oldest first
  lastFrame: null, // performance.now() of the last frame
  lastTime: null, // time of the server at the last frame [Unix s]
  refused: "", // error of the last request
};

const live = store.values; // of now, whatever is shown
const listeners = new Set();
export const onNews = (call) => {
  listeners.add(call);
  return () => listeners.delete(call);
};
const tell = (alerts) => listeners.forEach((call) => call(alerts));

export function isCut() {
  return !store.past && (store.lastFrame === null || performance.now() - store.lastFrame > SILENT_MS);
}

const ofServer = () =>
  (store.lastTime === null ? Date.now() / 1000 : store.lastTime + (performance.now() - store.lastFrame) / 1000);
export const now = () => (store.past ? store.past.time : ofServer());

// Whether the archive has all records up to a time for sure; until then, an answer of it is asked for again.
export const AGAIN_MS = 10000;
const ARCHIVED = 900; // age at which it has a record [s]
export const isArchived = (time) => time < ofServer() - ARCHIVED;

// What a device says without the bus.
const LOCAL = new Set(["connected", "Status", "versionId", "healthState", "healthInfo"]);
const isLocal = (device, attribute) => LOCAL.has(attribute) || (attribute === "State" && device === only("SdpBus"));

function isOffTheBus(device) {
  const own = store.values.get(`${device}/connected`) ?? store.values.get(`${only("SdpBus")}/connected`);
  return own?.[0] === false;
}

export function look(device, attribute) {
  const found = store.values.get(`${device}/${attribute}`);
  const [value, quality, time, error] = found ?? [null, "INVALID", 0, ""];
  if (store.past) return { value, quality, time, why: found ? "" : store.past.why ?? "the archive has no value of that second" };
  if (isCut()) return { value, quality: "INVALID", time, why: "no connection to the server of this page" };
  if (device in store.silent) return { value, quality: "INVALID", time, why: `no answer since ${utc(store.silent[device])}` };
  if (!isLocal(device, attribute) && isOffTheBus(device)) return { value, quality: "INVALID", time, why: "no broker answers" };
  return { value, quality, time, why: error || (found ? "" : "not received yet") };
}

// What every page says of its data: nothing, or that they are simulated or a replay.
export function marks() {
  const [said] = store.replays.values();
  return [store.site?.banner, said && `REPLAY: ${said.replace(/^\s*REPLAY\b\W*/, "")}`].filter(Boolean);
}

// The one form of a time on this page; of the day of today, the time alone.
export function utc(time) {
  if (!time) return "–";
  const [of, today] = [time, now()].map((one) => new Date(one * 1000).toISOString());
  return `${of.slice(0, 10) === today.slice(0, 10) ? "" : `${of.slice(0, 10)} `}${of.slice(11, 19)} UTC`;
}

// Asked for each value that is drawn: the devices of a class are sorted once for each description of the site.
let [sorted, sortedOf] = [new Map(), null];
export function devicesOf(kind) {
  if (sortedOf !== store.site) [sorted, sortedOf] = [new Map(), store.site];
  if (!sorted.has(kind)) {
    const found = Object.entries(store.site?.devices ?? {}).filter(([, one]) => one === kind);
    sorted.set(kind, found.map(([device]) => device).sort());
  }
  return sorted.get(kind);
}
// Whether a device is of this deployment: all are registered, also those of parts that are left out. While SdpMaster does
// not say which servers it expects, all are.
export function isDeployed(device) {
  const expected = store.values.get(`${only("SdpMaster")}/deviceServers`)?.[0];
  return !expected?.length || expected.includes(store.site.instances[device]);
}
export const only = (kind) => devicesOf(kind)[0] ?? "";
export const kindOf = (device) => store.site?.classes[store.site.devices[device]];

// The values of a second of the past, by device and attribute, take the place of those of now; null: now again.
export function showPast(past) {
  store.past = past;
  const all = Object.entries(past?.values ?? {}).flatMap(([device, some]) =>
    Object.entries(some).map(([name, value]) => [`${device}/${name}`, value]));
  store.values = past ? new Map(all) : live;
  store.turn += 1;
  document.documentElement.toggleAttribute("data-past", Boolean(past));
  tell([]);
}
export const nowOf = (device, attribute) => live.get(`${device}/${attribute}`)?.[0];

// What is the same at any time. All else is answered by the second of the past that is shown, or is unknown.
const TIMELESS = new Set(["site", "me", "schemas", "at", "differences", "history", "timeline", "execution-blocks", "execution-block",
  "post-mortems"]);
// What a post-mortem answers in place of the archive; the address names it.
const KEPT = new Set(["at", "history", "timeline"]);
export const postMortem = () => new URLSearchParams(location.search).get("post_mortem");
export const unknown = (part) => store.past.why ?? `Not known of a past second: ${store.past.unknown[part] ?? "it is not archived"}`;
function fromPast(path, { device }) {
  const found = store.past[path];
  if (!found) throw new Error(unknown(path));
  return path === "commands" ? found[device] ?? [] : found;
}

// What the address says of time: another person who opens it sees the same.
export function setAddress(name, value) {
  const address = new URL(location.href);
  if (value === null) address.searchParams.delete(name);
  else address.searchParams.set(name, value);
  history.replaceState(history.state, "", address.href.replaceAll("%3A", ":"));
}

// Why a person may not act now; empty: they may.
const ROLES = ["viewer", "operator", "expert"];
export function barred(role, why) {
  if (store.past) return "The page shows the past, where nobody can act.";
  return ROLES.indexOf(store.me.role) < ROLES.indexOf(role) ? why : "";
}

export async function ask(path, parameters = {}) {
  if (store.past && !TIMELESS.has(path)) return fromPast(path, parameters);
  const query = new URLSearchParams({ ...parameters, ...(KEPT.has(path) && postMortem() && { post_mortem: postMortem() }) }).toString();
  const signal = AbortSignal.timeout(ANSWERS_MS); // a server that stands still would be waited for minutes
  return answer(fetch(new URL(`api/${path}${query ? `?${query}` : ""}`, BASE), { signal }));
}

// Each action says if the page shows the past: the server refuses it then.
export async function act(path, body) {
  const at = store.past && path !== "provider" && !path.startsWith("sign-") ? `?at=${new Date(store.past.time * 1000).toISOString()}` : "";
  return answer(fetch(new URL(`api/${path}${at}`, BASE), {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  }));
}

// The server takes a few acts a second from a person, so those about many alarms wait for their turn.
export async function inTurn(call) {
  for (;;) {
    try {
      return await call();
    } catch (error) {
      if (error.status !== 429) throw error;
      await new Promise((resolve) => { setTimeout(resolve, 250); });
    }
  }
}

// Have the server follow all attributes of a device; asked again each minute, while somebody looks at it.
const followed = new Map(); // devices whose values were asked for, and when: the server forgets those that nobody asks for
export function follow(device) {
  if (store.past) return store.past.want?.(device);
  if (performance.now() - (followed.get(device) ?? -Infinity) > 60000) {
    followed.set(device, performance.now());
    ask("follow", { device }).catch(() => followed.delete(device));
  }
}

async function answer(asked) {
  const response = await asked.catch(() => { throw new Error("the server of this page does not answer"); });
  const [content, isWhole] = await response.json().then((one) => [one, true], () => [null, false]);
  const { status, statusText } = response;
  if (!response.ok) throw Object.assign(new Error(content?.error ?? `${status} ${statusText}`), { status });
  if (!isWhole) throw new Error("the answer of the server of this page broke off");
  return content;
}

function take(frame) {
  store.lastFrame = performance.now();
  store.lastTime = frame.time;
  if (frame.silent || Object.keys(frame.values).length) store.turn += 1;
  store.silent = frame.silent ?? store.silent; // they are sent when they change
  store.away = frame.away ?? store.away;
  for (const [device, attributes] of Object.entries(frame.values))
    for (const [name, value] of Object.entries(attributes)) {
      live.set(`${device}/${name}`, value);
      if (name === "Status") store.replays[/\bREPLAY\b/.test(value[0]) ? "set" : "delete"](device, value[0]);
    }
  tell(frame.alerts);
}

export async function start() {
  listen((kind, frame) => {
    if (kind === "news") {
      store.alerts = [...store.alerts, ...frame.alerts].slice(-500);
      return take(frame);
    }
    live.clear();
    store.replays.clear();
    store.alerts = frame.alerts;
    take({ ...frame, alerts: [] });
    describe(); // another server may know other devices
  });
  for (const kind of ["pointerdown", "keydown"]) addEventListener(kind, () => { used = true; }, { passive: true });
  setInterval(() => tell([]), 500); // silence is news too
  setInterval(describe, 30000);
  await describe();
}

// Whether somebody has touched this page since the server was told: without that for long, a session ends.
let used = false;

export async function describe() {
  const me = ask("me", used ? { used } : {});
  used = false;
  try {
    [store.site, store.me] = await Promise.all([ask("site"), me]);
    if (store.site.problem) describeSoon();
  } catch {
    describeSoon(); // the page says that there is no connection
  }
  tell([]);
}

// One at a time: the interval above begins further ones while the server is away.
let soon = 0;
function describeSoon() {
  clearTimeout(soon);
  soon = setTimeout(describe, 2000);
}

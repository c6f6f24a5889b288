// SDP in Open MCT: each attribute as telemetry, live and of the past, with its staleness; commands and alarms as rows; alarms
// as faults. People build displays from them without a line of code.

import { act, ask, devicesOf, follow, isCut, look, marks, onNews, start, store } from "../store.js";
import { sharedDisplays } from "./displays.js";
import { EVENTS, events, eventsObject } from "./events.js";

const SPACE = "sdp";
const id = (key) => ({ namespace: SPACE, key });
const NUMBERS = new Set(["DevDouble", "DevLong", "DevLong64", "DevULong64"]);
const LIMITS = { WARNING: "is-limit--yellow", ALARM: "is-limit--red", INVALID: "is-limit--cyan" };
const SEVERITIES = { CRITICAL: "CRITICAL", ALARM: "CRITICAL", WARNING: "WARNING", INFO: "WATCH" };

// Keys: "root", a class, "mid-sdp~bus~0", "mid-sdp~bus~0~connected". Open MCT takes / for its own paths.
const parts = (key) => key.split("~");
const isAttribute = (key) => parts(key).length === 4;
const deviceOf = (key) => parts(key).slice(0, 3).join("/");
const attributeOf = (key) => parts(key)[3];
const entryOf = (key) => store.site.classes[store.site.devices[deviceOf(key)]].attributes[attributeOf(key)];
const shownOf = (kind) => Object.entries(store.site.classes[kind].attributes).filter(([, one]) => one.followed && !one.length);

function made(key) {
  const folder = (name, location) => ({ identifier: id(key), name, type: "folder", location });
  if (key === "root") return folder("SDP", "ROOT");
  if (EVENTS.includes(key)) return eventsObject(id(key), `${SPACE}:root`);
  if (key in store.site.classes) return folder(key, `${SPACE}:root`);
  if (!isAttribute(key)) return folder(deviceOf(key), `${SPACE}:${store.site.devices[deviceOf(key)]}`);
  const entry = entryOf(key);
  const labels = store.site.enums[entry.enum];
  const time = { key: "utc", source: "utc", name: "Time", format: "utc", hints: { domain: 1 } };
  const value = { key: "value", name: entry.label, unit: entry.unit || undefined, hints: { range: 1 } };
  if (labels) Object.assign(value, { format: "enum", enumerations: labels.map((string, at) => ({ string, value: at })) });
  else if (!NUMBERS.has(entry.type)) value.format = "string";
  return {
    identifier: id(key), name: `${entry.label} of ${deviceOf(key)}`, type: "sdp.attribute",
    location: `${SPACE}:${parts(key).slice(0, 3).join("~")}`,
    notes: entry.description,
    telemetry: { values: [time, value, { key: "quality", name: "Quality", format: "string" }] },
  };
}

function membersOf(key) {
  if (key === "root") return [...EVENTS, ...Object.keys(store.site.classes).filter((kind) => devicesOf(kind).length)].map(id);
  if (key in store.site.classes) return devicesOf(key).map((device) => id(device.replaceAll("/", "~")));
  return shownOf(store.site.devices[deviceOf(key)]).map(([name]) => id(`${key}~${name}`));
}

function datum(key) {
  const seen = look(deviceOf(key), attributeOf(key));
  return { utc: seen.time * 1000, value: seen.value, quality: seen.quality };
}

const HOUR = 3600000;
const LONGEST = 8 * 24 * HOUR; // span of one question to the archive
const MOST = 2000; // bins of one answer
const iso = (time) => new Date(time).toISOString();

// What the server remembers of a number, at most of 12 hours; with an archive, also from before its start.
async function remembered(key, from) {
  const hours = Date.now() - from > HOUR ? 12 : 1;
  const [times, values] = await ask("trend", { device: deviceOf(key), attribute: attributeOf(key), hours });
  return times.map((time, at) => ({ utc: time * 1000, value: values[at], quality: "VALID" })).filter(({ value }) => value !== null);
}

// What the archive has, in bins: the least and the greatest number of each, and of words the last one.
async function archived(key, from, end, { size, strategy }) {
  const [device, attribute, { enum: of }] = [deviceOf(key), attributeOf(key), entryOf(key)];
  const points = Math.min(Math.max(Math.round(size ?? MOST), 1), MOST);
  const { series: [{ rows }], bin } = await ask("history", { device, attribute, begin: iso(from), end: iso(end), points });
  const labels = store.site.enums[of];
  return rows.filter(({ last }) => last !== null).flatMap(({ time, min, max, mean, last, quality }) => {
    const at = (value, part = 0) => ({ utc: Date.parse(time) + part * bin * 1000, value, quality });
    if (labels) return at(labels.indexOf(last));
    if (min === null) return at(last);
    return strategy === "minmax" && min !== max ? [at(min), at(max, 0.5)] : at(mean);
  });
}

const lacking = ({ message }) => {
  window.openmct.notifications.info(message);
  return [];
};

const stale = (key) => look(deviceOf(key), attributeOf(key)).quality === "INVALID";

const telemetry = {
  supportsRequest: (one) => one.type === "sdp.attribute",
  supportsSubscribe: (one) => one.type === "sdp.attribute",
  supportsLimits: (one) => one.type === "sdp.attribute",
  supportsStaleness: (one) => one.type === "sdp.attribute",
  async request({ identifier: { key } }, options) {
    const { start: from, end, strategy } = options;
    await ask("follow", { device: deviceOf(key) });
    if (strategy === "latest") return [datum(key)];
    const newer = await remembered(key, from);
    const edge = Math.min(newer[0]?.utc ?? Infinity, end);
    const isOlder = store.site.archive && from < edge;
    const older = isOlder ? await archived(key, Math.max(from, edge - LONGEST), edge, options).catch(lacking) : [];
    return [...older, ...newer].filter(({ utc }) => utc >= from && utc <= end);
  },
  subscribe({ identifier: { key } }, give) {
    let last = null;
    return onNews(() => {
      follow(deviceOf(key));
      const now = datum(key);
      if (now.utc && (now.utc !== last?.utc || now.quality !== last?.quality)) give((last = now));
    });
  },
  getLimitEvaluator: () => ({
    evaluate: ({ quality }, value) =>
      (value?.key === "value" && LIMITS[quality] ? { cssClass: LIMITS[quality], name: quality } : undefined),
  }),
  isStale: async ({ identifier: { key } }) => ({ isStale: stale(key), timestamp: Date.now() }),
  subscribeToStaleness({ identifier: { key } }, give) {
    let last = null;
    return onNews(() => {
      if (stale(key) !== last) give({ isStale: (last = stale(key)), timestamp: Date.now() });
    });
  },
};

function fault(alarm) {
  const condition = store.site.conditions[alarm.condition];
  return {
    type: "global-alarm-status",
    fault: {
      id: `${alarm.condition}@${alarm.source}`, name: condition?.label ?? alarm.condition, namespace: alarm.source,
      seqNum: alarm.occurrence, severity: SEVERITIES[alarm.severity],
      shelved: alarm.state === "SHLVD", acknowledged: ["ACKED", "LTACK"].includes(alarm.state),
      shortDescription: `${alarm.state}: ${alarm.text}`, triggerTime: new Date((alarm.raised_at ?? 0) * 1000).toISOString(),
      currentValueInfo: { value: alarm.state, rangeCondition: alarm.severity, monitoringResult: alarm.severity },
      triggerValueInfo: { value: alarm.text, rangeCondition: alarm.severity, monitoringResult: alarm.severity },
      occurrence: alarm.occurrence,
    },
  };
}

const perform = async (action, { id: key, occurrence }, more) => {
  const [condition, source] = [key.slice(0, key.indexOf("@")), key.slice(key.indexOf("@") + 1)];
  try {
    await act("alarm", { action, condition, source, occurrence, ...more });
    return { success: true };
  } catch (error) {
    window.openmct.notifications.error(error.message);
    return { success: false };
  }
};

const faults = {
  supportsRequest: () => true,
  supportsSubscribe: () => true,
  supportsActions: () => true,
  request: async () => (await ask("alarms")).map(fault),
  subscribe(_, give) {
    const timer = setInterval(async () => {
      if (isCut()) return;
      for (const alarm of await ask("alarms").catch(() => [])) give(fault(alarm));
    }, 2000);
    return () => clearInterval(timer);
  },
  acknowledgeFault: (one, { comment = "" }) => perform("ack", one, { comment }),
  shelveFault: (one, { shelved = true, comment = "", shelveDuration }) =>
    perform(shelved ? "shelve" : "unshelve", one, { comment, duration: (shelveDuration ?? 3600000) / 1000 }),
  getShelveDurations: () => [["15 min", 900], ["1 h", 3600], ["12 h", 43200]].map(([name, seconds]) => ({ name, value: seconds * 1000 })),
};

function sdp(openmct) {
  openmct.types.addType("sdp.attribute", { name: "Attribute", description: "A Tango attribute of SDP.", cssClass: "icon-telemetry" });
  openmct.objects.addRoot(id("root"));
  openmct.objects.addProvider(SPACE, { get: async ({ key }) => made(key) });
  openmct.composition.addProvider({
    appliesTo: ({ identifier, type }) => identifier.namespace === SPACE && type === "folder",
    load: async ({ identifier }) => membersOf(identifier.key),
  });
  openmct.telemetry.addProvider(telemetry);
  openmct.faults.addProvider(faults);
}

await start();
const { openmct } = window;
openmct.setAssetPath("../vendor/openmct/");
const PLUGINS = ["LocalStorage", "UTCTimeSystem", "Espresso", "FaultManagement"];
for (const plugin of PLUGINS) openmct.install(openmct.plugins[plugin]());
openmct.install(openmct.plugins.MyItems("Displays in this browser"));
openmct.install(openmct.plugins.Conductor({
  menuOptions: [
    { name: "Realtime", timeSystem: "utc", clock: "local", clockOffsets: { start: -HOUR, end: 30000 } },
    { name: "Fixed", timeSystem: "utc", bounds: { start: Date.now() - HOUR, end: Date.now() } },
  ],
}));
for (const ours of [sdp, events, sharedDisplays]) openmct.install(ours);
openmct.time.setClock("local");
openmct.time.setClockOffsets({ start: -HOUR, end: 30000 });
openmct.on("start", () => {
  const mark = openmct.indicators.simpleIndicator();
  mark.statusClass("s-status-warning-hi");
  const say = () => {
    mark.element.style.display = marks().length ? "" : "none";
    mark.text(marks().join(" "));
  };
  openmct.indicators.add(mark);
  onNews(say);
  say();
});
openmct.start();

// Commands and alarms as telemetry of Open MCT: a row for each, live and of up to 8 days, for people's own tables.

import { ask, devicesOf, look, onNews } from "../store.js";

const LONGEST = 8 * 86400; // span of one question [s]
const GRID = 10; // of the times that are asked for [s]: browsers share the answers
const TYPE = "sdp.events";

// At the time of its status; while somebody looks, each status is a row of its own.
const commandOf = (one) => ({
  utc: Date.parse(one.finished_time ?? one.started_time ?? one.submitted_time), id: one.id, command: one.name, device: one.device,
  status: one.status, person: one.operator, client: one.client, text: one.text,
});
const alarmOf = (one) => ({ ...one, utc: one.time * 1000 });

const commanded = () => [...devicesOf("SdpSubarray"), ...devicesOf("SdpMaster")];
const KINDS = {
  commands: {
    name: "Commands",
    columns: { command: "Command", device: "Device", status: "Status", person: "Person", client: "Client", text: "Text", id: "Id" },
    of: commandOf,
    // A device says its last command, and its status: only then it is asked for the others.
    listen(give) {
      const said = new Map(commanded().map((device) => [device, look(device, "lastCommand").value]));
      return onNews(() => commanded().forEach(async (device) => {
        const { value } = look(device, "lastCommand");
        if (!value || said.get(device) === value) return;
        said.set(device, value);
        for (const one of await ask("commands", { device }).catch(() => [])) give({ ...one, device });
      }));
    },
  },
  alarms: {
    name: "Alarms",
    columns: { condition: "Condition", source: "Source", severity: "Severity", state: "State", text: "Text" },
    of: alarmOf,
    listen: (give) => onNews((entries) => entries.forEach(({ time, alert }) => alert && give({ ...alert, time }))),
  },
};
export const EVENTS = Object.keys(KINDS);

export function eventsObject(identifier, location) {
  const { name, columns } = KINDS[identifier.key];
  const texts = Object.entries(columns).map(([key, title]) => ({ key, name: title, format: "string" }));
  return {
    identifier, name, type: TYPE, location,
    telemetry: { values: [{ key: "utc", source: "utc", name: "Time", format: "utc", hints: { domain: 1 } }, ...texts] },
  };
}

const supports = ({ type }) => type === TYPE;
const iso = (time) => new Date(time * 1000).toISOString();
const telemetry = {
  supportsRequest: supports,
  supportsSubscribe: supports,
  async request({ identifier: { key } }, { start, end, strategy }) {
    const last = Math.ceil(end / 1000 / GRID) * GRID;
    const first = Math.max(Math.floor(start / 1000 / GRID) * GRID, last - LONGEST);
    const found = (await ask("timeline", { begin: iso(first), end: iso(last) }))[key].map(KINDS[key].of);
    return strategy === "latest" ? found.slice(-1) : found;
  },
  subscribe: ({ identifier: { key } }, give) => KINDS[key].listen((one) => give(KINDS[key].of(one))),
};

export function events(openmct) {
  openmct.types.addType(TYPE, { name: "Events", description: "What happened in SDP.", cssClass: "icon-tabular-scrolling" });
  openmct.telemetry.addProvider(telemetry);
}

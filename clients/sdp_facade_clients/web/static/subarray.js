// One subarray: its observing state, its commands, and forms to give commands.

import { html, nothing, svg } from "./vendor/lit-html.js";
import { age, attributeTable, cell, figures, folded, labelled, plain, tile } from "./parts.js";
import { act, ask, barred, kindOf, look, now, store, utc } from "./store.js";
import { redraw } from "./app.js";
import { form, sampleOf } from "./form.js";

// Places of the states of the SKA control model, and the ways between them.
const PLACES = {
  EMPTY: [60, 40], RESOURCING: [180, 40], IDLE: [300, 40], CONFIGURING: [420, 40], READY: [540, 40], SCANNING: [540, 120],
  ABORTING: [420, 120], ABORTED: [300, 120], RESETTING: [300, 200], RESTARTING: [180, 120], FAULT: [180, 200],
};
const WAYS = [
  ["EMPTY", "RESOURCING", "IDLE", "CONFIGURING", "READY", "SCANNING", "ABORTING", "ABORTED", "RESTARTING", "EMPTY"],
  ["FAULT", "RESTARTING"], ["ABORTED", "RESETTING", "IDLE"],
];
const REFRESH_MS = 2000;
const ABORTS = "Abort acts at once, without a confirmation, and cancels the commands in the queue.";
const BAD = new Set(["FAILED", "TIMED_OUT", "UNDELIVERED", "REJECTED"]);

const fresh = () => ({ commands: [], error: "", looked: -Infinity, chosen: "", text: "", wrong: [], said: "", refused: false });
const view = { device: "", schemas: {}, timer: 0, ...fresh() };

function turnTo(device) {
  if (view.device !== device) Object.assign(view, { device, ...fresh() });
  if (view.of !== store.past || performance.now() - view.looked > REFRESH_MS) refresh();
}

// Tiles of any device that takes commands. What grows is below what one clicks.
export function commandTiles(device) {
  turnTo(device);
  return html`${giveTile(kindOf(device))}
    ${tile("Commands", timeline(), "full")}`;
}

const giveTile = (kind) => (store.past ? nothing : tile("Give a command", giving(kind, !barred("operator", TO_COMMAND)), "full"));
const TO_COMMAND = "Sign in as operator to command.";

const said = () => html`<p class="said ${view.refused ? "wrong" : ""}" role="status">${view.said}</p>`;

// Setting the administrative mode of a device.
export function adminMode(device) {
  const entry = kindOf(device)?.attributes.adminMode;
  if (!entry) return nothing;
  const why = barred("expert", "Setting it needs the role expert.");
  if (store.past) return html`<p>Admin mode ${cell(device, "adminMode")}</p>`;
  const set = async (event) => {
    const mode = event.target.closest(".tools").querySelector("select").value;
    try {
      await act("admin-mode", { device, mode });
      [view.said, view.refused] = [`adminMode of ${device} is ${mode}.`, false];
    } catch (error) {
      [view.said, view.refused] = [`adminMode of ${device}: ${error.message}`, true];
    }
    redraw();
  };
  const modes = store.site.enums[entry.enum].map((one) => html`<option>${one}</option>`);
  return html`<div class="tools"><span>Admin mode ${cell(device, "adminMode")}</span>
    <label>new mode <select ?disabled=${why}>${modes}</select></label>
    <button ?disabled=${why} @click=${set}>Set</button>${why ? html`<small>${why}</small>` : nothing}</div>`;
}

export function subarrayPage(device) {
  turnTo(device);
  const kind = kindOf(device);
  if (!kind) return html`<p>The Tango database does not know ${device}.</p>`;
  const why = barred("operator", TO_COMMAND);
  const reasons = look(device, "healthInfo").value ?? [];
  return html`
    ${tile(`Subarray ${device.split("/").at(-1)}`, html`<p class="big">${cell(device, "obsState")}
      <small>State ${cell(device, "State")} health ${cell(device, "healthState")}</small></p>
      ${diagram(device)}
      <div class="tools">${store.past ? nothing
        : html`<button class="abort" ?disabled=${why} @click=${() => send("Abort", "")}>Abort</button>`}
        <small>${why || ABORTS}</small></div>
      ${view.chosen ? nothing : said()}`)}
    ${tile("Observation", html`${figures(device, ["ebID", "scanType", "scanID"])}
      <h2>Resources</h2><p class="said">${cell(device, "resources")}</p>
      <details><summary>Receive addresses</summary><p class="said">${cell(device, "receiveAddresses")}</p></details>
      ${adminMode(device)}${reasons.length ? html`<h2>Reasons of the health</h2><p>${cell(device, "healthInfo")}</p>` : nothing}`)}
    ${giveTile(kind)}
    ${tile("Commands", timeline(), "full")}
    ${folded("All attributes", attributeTable(device))}`;
}

async function refresh() {
  const [{ device }, { past }] = [view, store];
  [view.looked, view.of] = [performance.now(), past];
  const [commands, error] = await ask("commands", { device }).then((one) => [one, ""], ({ message }) => [null, message]);
  if (view.device !== device || view.of !== past) return; // another device or time was chosen meanwhile
  Object.assign(view, { commands: commands ?? view.commands, error });
  redraw();
}

function diagram(device) {
  const seen = labelled(device, "obsState");
  const old = seen.quality === "INVALID";
  return html`<svg class="diagram" viewBox="0 0 600 230" role="img" aria-label=${`Observing states; now ${old ? "not known" : seen.text}`}>
    <defs><marker id="arrow" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" orient="auto">
      <path d="M0,0 L6,3 L0,6 z"/></marker></defs>
    ${WAYS.flatMap((way) => way.slice(1).map((name, at) => arrow(PLACES[way[at]], PLACES[name])))}
    ${Object.entries(PLACES).map(([name, [x, y]]) => svg`<g class=${name === seen.text ? (old ? "old" : "now") : ""}>
      <rect x=${x - 50} y=${y - 14} width="100" height="28" rx="6"/><text x=${x} y=${y + 4}>${name}</text></g>`)}</svg>`;
}

// From the border of one box to that of the next.
function arrow([x, y], [toX, toY]) {
  const [width, height] = [Math.sign(toX - x) * 50, Math.sign(toY - y) * 14];
  const [sideX, sideY] = Math.abs(toX - x) > 100 ? [width, 0] : [0, height];
  return svg`<line x1=${x + sideX} y1=${y + sideY} x2=${toX - sideX} y2=${toY - sideY} marker-end="url(#arrow)"/>`;
}

function timeline() {
  return html`${view.error ? html`<p class="said wrong">Not current: ${view.error}</p>` : nothing}
    <div class="scroll" tabindex="0" role="group" aria-label="Past commands"><table>
    <thead><tr><th>Given</th><th>Command</th><th>Outcome</th><th>Progress</th><th>Took</th><th>By</th><th>Text</th></tr></thead><tbody>
    ${view.commands.map((one) => {
      const [begin, end] = [one.submitted_time, one.finished_time].map((time) => (time ? Date.parse(time) / 1000 : now()));
      const progress = one.finished_time ? 100 : one.progress ?? 0;
      const by = [one.operator, one.client].filter(Boolean).join(", from ");
      const approver = [one.approver, one.approver_client].filter(Boolean).join(", from ");
      return html`<tr><td class="short">${utc(begin)}<br><small>${age(now() - begin)} ago</small></td>
        <td>${one.name}<br><small>${one.id}</small></td>
        <td class=${BAD.has(one.status) ? "ALARM" : ""}>${one.status}</td>
        <td><div class="bar" role="progressbar" aria-label=${`Progress of ${one.name}`} aria-valuenow=${progress}>
          <i class=${BAD.has(one.status) ? "bad" : ""} .style=${`width:${progress}%`}></i></div></td>
        <td class="short">${(end - begin).toFixed(1)} s</td><td><small>${by}${approver && `; approved by ${approver}`}</small></td>
        <td class="wide">${plain(one.text)}</td></tr>`;
    })}</tbody></table></div>
    ${view.commands.length || view.error ? nothing : html`<p>${
      store.past ? "None in the 12 h before." : "No commands are remembered."}</p>`}`;
}

// Why a command is not allowed now; empty: it is, or that is not known.
function forbidden({ state, obs_state }) {
  for (const [attribute, allowed] of [["State", state], ["obsState", obs_state]]) {
    const { text, quality } = labelled(view.device, attribute);
    if (allowed?.length && quality !== "INVALID" && !allowed.includes(text)) return `not in ${text}`;
  }
  return "";
}

function giving(kind, may) {
  const entry = kind.commands[view.chosen];
  const versions = Object.keys(view.schemas[entry?.argument] ?? {});
  const buttons = Object.entries(kind.commands).filter(([name]) => name !== "Abort").map(([name, one]) => {
    const why = forbidden(one);
    return html`<button title=${one.description} @click=${() => choose(name)}
      aria-pressed=${view.chosen === name ? "true" : "false"}>${name}${why ? html` <small>${why}</small>` : nothing}</button>`;
  });
  const why = entry && forbidden(entry);
  return html`<div class="tools" role="group" aria-label="Commands">${buttons}</div>
    ${entry ? html`<p>${entry.description}</p>
      ${entry.argument && versions.length ? argument(view.schemas[entry.argument], versions) : nothing}
      ${view.wrong.map((one) => html`<p class="said wrong" role="status">${one}</p>`)}
      ${entry.argument && !versions.length ? nothing : html`<div class="tools send"><button ?disabled=${!may || why || view.wrong.length}
        @click=${() => send(view.chosen, view.text)}>Send ${view.chosen}</button>
        ${why ? html`<small>${view.chosen} is ${why}.</small>` : nothing}</div>`}${said()}` : nothing}`;
}

function argument(schemas, versions) {
  const change = (text) => { view.text = text; check(); };
  const options = versions.map((one) => html`<option ?selected=${one === view.version}>${one}</option>`);
  return html`<label>Version <select @change=${(event) => { view.version = event.target.value; fill(); }}>${options}</select></label>
    ${form(schemas[view.version], parsed(), (document) => change(JSON.stringify(document, null, 2)), schemas)}
    <label>Argument, as JSON; it can be pasted
      <textarea spellcheck="false" .value=${view.text} @input=${(event) => change(event.target.value)}></textarea></label>`;
}

function parsed() {
  try {
    return JSON.parse(view.text);
  } catch {
    return null;
  }
}

async function choose(name) {
  Object.assign(view, { chosen: name, text: "", wrong: [], said: "" });
  redraw(); // what is typed from now on is for this one
  const family = kindOf(view.device).commands[name].argument;
  if (family) {
    try {
      view.schemas[family] ??= await ask("schemas", { family });
      if (view.chosen !== name) return; // another one was chosen meanwhile
      view.version = Object.keys(view.schemas[family])[0];
      if (!view.text) fill(); // somebody may have typed already
    } catch (error) {
      view.wrong = [error.message];
    }
  }
  redraw();
}

function fill() {
  const family = kindOf(view.device).commands[view.chosen].argument;
  view.text = JSON.stringify(sampleOf(view.schemas[family][view.version], view.schemas[family]), null, 2);
  check();
}

function check() {
  redraw();
  clearTimeout(view.timer);
  view.timer = setTimeout(async () => {
    const { device, chosen, text } = view;
    const wrong = await act("check", { device, command: chosen, argument: text }).catch(({ message }) => [message]);
    if (device === view.device && chosen === view.chosen && text === view.text) view.wrong = wrong;
    redraw();
  }, 300);
}

async function send(command, argument) {
  const { device } = view;
  [view.said, view.refused] = [`${command} is sent …`, false];
  redraw();
  const [said, refused] = await act("command", { device, command, argument })
    .then((id) => [`has the id ${id}.`, false], ({ message }) => [`is refused: ${message}`, true]);
  const what = view.device === device ? command : `${command} of ${device}`; // another device may be shown now
  [view.said, view.refused] = [`${what} ${said}`, refused];
  refresh();
}

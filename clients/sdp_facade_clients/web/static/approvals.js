// Commands that wait for a second person: below the head of every page, as they wait for a minute only.

import { html, nothing } from "./vendor/lit-html.js";
import { repeat } from "./vendor/directives/repeat.js";
import { cell } from "./parts.js";
import { act, ask, kindOf, now, onNews, store, utc } from "./store.js";
import { redraw } from "./app.js";

const seen = new Map(); // device -> ids of its commands that may wait
const waiting = new Map(); // device -> its commands that wait
let said = { text: "", wrong: false, place: "" };

// A command that waits is STAGING; so is, for a moment, one that is being sent.
function staging(device) {
  const status = store.values.get(`${device}/longRunningCommandStatus`)?.[0] ?? [];
  return status.filter((_, at) => status[at + 1] === "STAGING").join();
}

onNews(() => {
  if (store.past) return;
  for (const device of Object.keys(store.site?.devices ?? {})) {
    const ids = Object.keys(kindOf(device)?.commands ?? {}).length ? staging(device) : "";
    if (ids === (seen.get(device) ?? "")) continue;
    seen.set(device, ids);
    refresh(device);
  }
});

async function refresh(device) {
  const ids = seen.get(device);
  try {
    const commands = ids ? await ask("waiting", { device }) : [];
    if (seen.get(device) === ids) waiting.set(device, commands); // otherwise it was asked again
  } catch (error) {
    seen.delete(device); // asked again with the next frame
    say(error.message, true);
  }
  redraw();
}

// A device that is silent does not say that the time of a command is over.
const waits = (one) => seen.get(one.device)?.split(",").includes(one.id) && !(untilOf(one) < now());
const untilOf = (one) => Date.parse(one.not_after) / 1000;
const say = (text, wrong) => { said = { text, wrong, place: location.hash }; };
// As the devices tell persons apart: by subject, if a name has one; null for a name with one and a name without, who may be
// one person or two.
function isOther(one, other) {
  const [before, after] = [one, other].map((name) => /<([^<>\s]+#[^<>\s]+)>\s*$/.exec(name)?.[1] ?? null);
  if (before === null && after === null) return one.trim().toLowerCase() !== other.trim().toLowerCase();
  return before === null || after === null ? null : before !== after;
}

export function approvals() {
  if (store.past) return nothing;
  const commands = [...waiting.values()].flat().filter(waits);
  const old = said.place !== location.hash;
  return html`<section class="waiting" aria-label="Commands that wait for a second person" aria-live="polite">
    ${repeat(commands, (one) => one.id, row)}
    ${said.text && !old ? html`<p class="said ${said.wrong ? "wrong" : ""}">${said.text}</p>` : nothing}</section>`;
}

function row(one) {
  const by = [one.operator, one.client].filter(Boolean).join(", from ") || "a client that Tango does not identify";
  const until = utc(untilOf(one));
  const other = one.operator ? isOther(one.operator, store.me.name) : true;
  const [name, decision] = other ? ["Approve", "approve"] : ["Withdraw", "withdraw"];
  return html`<div class="tools"><span>${one.name} of ${one.device}, given by ${by}, waits for a second person until ${until}.
    Now it is ${cell(one.device, kindOf(one.device)?.attributes.obsState ? "obsState" : "State")}.</span>
    ${one.argument ? html`<details><summary>Argument</summary><pre>${JSON.stringify(one.argument, null, 2)}</pre></details>` : nothing}
    ${store.me.role === "viewer" ? html`<small>Sign in as operator to decide.</small>`
      : other === null ? html`<small>You may be the same person: only one of the two names has a subject of OpenID Connect.</small>`
      : html`<button aria-label="${name} ${one.name} of ${one.device}" @click=${() => decide(one, decision)}>${name}</button>`}</div>`;
}

async function decide({ device, id, name }, decision) {
  try {
    await act("decide", { device, decision, id });
    say(decision === "approve" ? `${name} is approved.` : `${name} is withdrawn.`, false);
  } catch (error) {
    say(`${name}: ${error.message}`, true);
  }
  refresh(device);
}

// What people did, said and were refused: the list of `sdp-facade audit`, filtered by time, person, target, text and kind.

import { html, nothing } from "./vendor/lit-html.js";
import { text, tile } from "./parts.js";
import { act, ask, barred, now, store, unknown, utc } from "./store.js";
import { redraw } from "./app.js";

const SPANS = { "10m": "10 min", "1h": "1 h", "12h": "12 h", "7d": "7 d" };
const LONG = 120; // characters of an argument that are shown at once
const MOST = 500; // rows
const COMMENTS = "comment"; // also those about alarms, which come with the action
const view = { since: "1h", who: "", what: "", text: "", kind: "", answer: "", all: null, said: "", busy: false };

async function read() {
  const { since } = view;
  Object.assign(view, { busy: true, said: "" });
  redraw();
  const [all, said] = await ask("acts", { since }).then((one) => [one, ""], ({ message }) => [null, message]);
  if (view.since !== since) return; // another span was chosen meanwhile
  Object.assign(view, { all: all ?? view.all, said, busy: false });
  redraw();
}

export function openActs(who) {
  if (store.past) return;
  if (who) view.who = who;
  if (!view.busy) read();
}

const has = (text, part) => text.toLowerCase().includes(part.trim().toLowerCase());
const fits = (one) => has(`${one.operator} ${one.client}`, view.who) && has(`${one.act} ${one.target}`, view.what)
  && has(one.said ? text(one.said) : "", view.text)
  && (!view.kind || one.kind === view.kind || (view.kind === COMMENTS && one.kind === "alarm" && one.said));

export function actsPage() {
  if (store.past) return tile("What people did and were refused", html`<p>${unknown("acts")}</p>`, "full");
  const all = view.all ?? [];
  const some = all.filter(fits);
  const kinds = [...new Set([COMMENTS, ...all.map((one) => one.kind)])].sort();
  const input = (name) => (event) => { view[name] = event.target.value; redraw(); };
  const since = (event) => { view.since = event.target.value; read(); };
  return html`${tile("Comment", commentForm(), "full")}${tile("What people did and were refused", html`<div class="tools" role="search">
      <label>of the last <select @change=${since}>${Object.entries(SPANS).map(([one, title]) =>
        html`<option value=${one} ?selected=${one === view.since}>${title}</option>`)}</select></label>
      <label>Person <input type="search" .value=${view.who} @input=${input("who")}></label>
      <label>Command or device <input type="search" .value=${view.what} @input=${input("what")}></label>
      <label>Text <input type="search" .value=${view.text} @input=${input("text")}></label>
      <label>Kind <select @change=${input("kind")}><option value="">all</option>${kinds.map((one) =>
        html`<option ?selected=${one === view.kind}>${one}</option>`)}</select></label>
      <button ?disabled=${view.busy} @click=${read}>Look again</button></div>
    <p class="said ${view.said ? "wrong" : ""}" role="status">${view.busy ? "Reading what people did …" : view.said
      || `${some.length} of ${all.length} in the last ${SPANS[view.since]}`}</p>
    <div class="scroll" tabindex="0" role="group" aria-label="What people did"><table>
      <thead><tr><th>Time</th><th>Person</th><th>What</th><th>On</th><th>Said</th></tr></thead>
      <tbody>${some.slice(0, MOST).map(row)}</tbody></table></div>
    ${some.length > MOST ? html`<p>and ${some.length - MOST} older ones: narrow the filter</p>` : nothing}`, "full")}`;
}

// About one command or block, or, without a name, about what a person writes, at first the time of now.
export function commentForm(about) {
  const why = barred("operator", "Sign in as operator to comment.");
  const send = async (event) => {
    event.preventDefault();
    const form = event.target;
    const [of, said] = [about ?? form.querySelector(".about").value, form.querySelector(".comment").value];
    try {
      await act("comment", { about: of, text: said });
      [view.answer, form.querySelector(".comment").value] = [`Kept: a comment about ${of}.`, ""];
      if (!about) read();
    } catch (error) {
      view.answer = error.message;
    }
    redraw();
  };
  return html`<form class="tools" @submit=${send}>${about ? nothing : html`<label>About <input class="about" maxlength="200" required
      value=${new Date(now() * 1000).toISOString().slice(0, 19)}></label>`}
    <label>Comment <input class="comment" maxlength="300" required></label>
    <button ?disabled=${why}>Keep</button>${why ? html`<small>${why}</small>` : nothing}</form>
    <p class="said" role="status">${view.answer}</p>`;
}

function row(one) {
  const said = one.said && text(one.said);
  const wrong = one.kind === "refusal" || one.act.endsWith("refused") ? "ALARM" : "";
  return html`<tr title=${`rests on ${one.rests_on}`}><td class="short">${utc(one.time)}</td>
    <td>${one.operator || html`<span class="soft">no name</span>`}<br><small>${one.client}</small></td>
    <td class=${wrong}>${one.act}<br><small>${one.kind}</small></td><td>${one.target}</td>
    <td class="wide">${said.length <= LONG ? said
      : html`<details><summary>${said.slice(0, LONG)} …</summary>${said}</details>`}</td></tr>`;
}

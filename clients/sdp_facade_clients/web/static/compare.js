// What differs between the second that the page shows, or the newest one of the archive, and another one.

import { html, nothing } from "./vendor/lit-html.js";
import { quantity, text, tile } from "./parts.js";
import { ask, kindOf, store, utc } from "./store.js";
import { redraw } from "./app.js";

const AGAINST = { yesterday: "yesterday at this time", "last-scan": "the last scan that ended well" };
const view = { key: "", found: null, said: "", word: "" };

const iso = (time) => `${new Date(time * 1000).toISOString().slice(0, 19)}Z`;

async function read(against) {
  const key = `${against} ${store.past?.time ?? ""}`;
  if (view.key === key) return;
  Object.assign(view, { key, found: null, said: "Reading the archive …" });
  let [found, said] = [null, ""];
  try {
    found = await ask("differences", { against, ...(store.past && { time: iso(store.past.time) }) });
  } catch (error) {
    said = error.message;
  }
  if (view.key === key) Object.assign(view, { found, said }); // otherwise another time was chosen meanwhile
  redraw();
}

// When the page is opened, the newest second may be another one.
export const openCompare = () => { view.key = ""; };

export function comparePage(what) {
  const against = what || "yesterday";
  if (!store.past || !store.past.why) read(against);
  const isTime = !(against in AGAINST);
  const go = (to) => { location.hash = `#/compare/${to}`; };
  const choose = ({ target: { value } }) => go(value in AGAINST ? value : iso((view.found?.against ?? Date.now() / 1000)));
  const time = ({ target: { value } }) => Date.parse(`${value}Z`) && go(iso(Date.parse(`${value}Z`) / 1000));
  return html`${tile("What differs", html`<div class="tools">
      <label>Compare with <select aria-label="Compare with" @change=${choose}>${Object.entries(AGAINST).map(([name, title]) =>
        html`<option value=${name} ?selected=${name === against}>${title}</option>`)}
        <option value="time" ?selected=${isTime}>another time</option></select></label>
      ${isTime ? html`<label>Earlier or later (UTC) <input type="datetime-local" step="1" .value=${against.replace("Z", "")}
        @change=${time}></label>` : nothing}
      <label>Filter <input type="search" .value=${view.word} @input=${(event) => { view.word = event.target.value; redraw(); }}></label>
    </div>${view.said ? html`<p class="said" role="status">${view.said}</p>` : nothing}
    ${view.found ? table(view.found) : nothing}`, "full")}`;
}

function shown(one, entry, name) {
  if (!one) return html`<span class="soft">not recorded</span>`;
  const said = typeof one.value === "number" ? quantity(one.value, entry, name) : text(one.value, entry);
  return html`<span class="value ${one.quality.toLowerCase()}">${said}${
    one.quality === "VALID" ? nothing
      : html`<span class="mark"> ${one.quality === "INVALID" ? "not valid" : one.quality.toLowerCase()}</span>`}</span>`;
}

function table(found) {
  const word = view.word.toLowerCase();
  const rows = found.rows.filter((one) => `${one.device}/${one.attribute}`.toLowerCase().includes(word));
  const more = found.different - found.rows.length;
  return html`<p role="status">${found.different} of ${found.compared} attributes differ between ${utc(found.against)} (${
      found.what}) and ${utc(found.time)}.${more > 0 ? ` The ${found.rows.length} that moved farthest are listed.` : ""}</p>
    <p class="soft"><small>Moved: share of the room that was left to the next limit, or, without one, of the value. Another text,
      state or quality counts as 100 %.</small></p>
    <div class="scroll"><table><thead><tr><th>Attribute</th><th>${utc(found.against)}</th><th>${utc(found.time)}</th>
      <th class="number">Moved</th></tr></thead><tbody>${rows.map((one) => {
        const entry = kindOf(one.device)?.attributes[one.attribute];
        return html`<tr><th scope="row"><a href=${`#/device/${one.device}`}>${entry?.label ?? one.attribute}</a><br>
          <small>${one.device}/${one.attribute}</small></th><td class="wide">${shown(one.before, entry, one.attribute)}</td>
          <td class="wide">${shown(one.after, entry, one.attribute)}</td>
          <td class="number">${(100 * one.moved).toFixed(0)} %</td></tr>`;
      })}</tbody></table></div>`;
}

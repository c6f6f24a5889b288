// Chooses the page by the address, and draws it again when there is news.

import { html, nothing, render } from "./vendor/lit-html.js";
import { cell, plain } from "./parts.js";
import { dropPlots, updatePlots } from "./plots.js";
import { act, describe, devicesOf, isCut, isDeployed, look, marks, now, onNews, only, start, store, utc } from "./store.js";
import { isShared } from "./stream.js";
import { actsPage, openActs } from "./acts.js";
import { alarmsPage, openAlarm } from "./alarms.js";
import { approvals } from "./approvals.js";
import { blockPage, blocksPage, openBlock, openBlocks } from "./blocks.js";
import { busPage, openBus } from "./bus.js";
import { commandPage, openCommand } from "./happened.js";
import { comparePage, openCompare } from "./compare.js";
import { flowDevices, flowPage } from "./flow.js";
import { nodesPage } from "./nodes.js";
import { pastBar, pastButton, startPast } from "./past.js";
import { devicePage, nodePage, overviewPage, devicesPage } from "./pages.js";
import { soundButton } from "./sound.js";
import { subarrayPage } from "./subarray.js";
import { setSpans } from "./trends.js";

const PAGES = {
  "": overviewPage, alarms: alarmsPage, subarray: subarrayPage, node: nodePage, bus: busPage, devices: devicesPage,
  nodes: nodesPage, acts: actsPage, device: devicePage, flow: flowPage, command: commandPage, blocks: blocksPage, block: blockPage,
  compare: comparePage,
};
// Called once when the page is opened.
const OPENED = { alarms: openAlarm, bus: openBus, acts: openActs, command: openCommand, blocks: openBlocks, block: openBlock,
  compare: openCompare };
const PLACE = "place"; // where a sign-in by the provider began
let shown = null;
let scheduled = false;

function address() {
  let hash = location.hash.replace(/^#\/?/, "");
  try {
    hash = decodeURIComponent(hash);
  } catch {
    // A person has typed it, such as "alarms/100%".
  }
  const [page, ...rest] = hash.split("/");
  return page in PAGES ? [page, rest.join("/")] : ["", ""];
}

function draw() {
  scheduled = false;
  const [page, what] = address();
  if (store.site && shown !== location.hash) { // what a page asks for when it is opened depends on the site
    dropPlots();
    if (shown?.startsWith("#/block/")) setSpans([]); // it was that of the block
    shown = location.hash;
    OPENED[page]?.(what);
  }
  render(whole(page, what), document.getElementById("page"));
}

export function redraw() {
  if (!scheduled) {
    scheduled = true;
    requestAnimationFrame(draw);
  }
}

function link(page, title, what = "") {
  const [here, at] = address();
  const current = here === page && (!what || `${at}/`.startsWith(`${what}/`));
  return html`<a href=${`#/${page}${what ? `/${what}` : ""}`} aria-current=${current ? "page" : nothing}>${title}</a>`;
}

function whole(page, what) {
  const { site, me } = store;
  const since = store.lastTime ? ` since ${utc(store.lastTime)}` : "";
  const flows = Object.entries(site?.flows ?? {}).filter(([, flow]) => flowDevices(flow).some(isDeployed));
  const waiting = look(only("SdpAlerts"), "unacknowledgedCount");
  const count = waiting.value === 0 && waiting.quality === "VALID" ? nothing
    : html` ${cell(only("SdpAlerts"), "unacknowledgedCount", false)} <small>unack.</small>`;
  return html`
    <header>
      <h1>SDP <small>${site?.tango_host ?? ""}</small></h1>
      <span class="clock">${store.past ? "the past" : utc(now())}</span>
      ${pastButton()}
      ${soundButton()}
      <button @click=${theme} aria-label="Dark or light">◐</button>
      ${me.name ? html`<span title=${me.name}>${me.name.split(" <")[0]} <small>${me.role}</small></span>
          <button @click=${signOut}>Sign out</button>`
        : me.can_sign_in ? html`<button @click=${signIn}>Sign in</button>` : html`<small>read-only</small>`}
      <nav aria-label="Pages">${link("", "Overview")}${
        link("alarms", html`Alarms${count}`)}
        ${devicesOf("SdpSubarray").map((device) => link("subarray", `Subarray ${device.split("/").at(-1)}`, device))}
        ${flows.map(([name, flow]) => link("flow", flow.page.title, name))}
        ${link("blocks", "Execution blocks")}${site?.archive ? link("compare", "Compare") : nothing}
        ${link("acts", "Who did what")}${link("bus", "Bus")}${link("devices", "Devices")}
        <a href="explore/#/browse/sdp:root" target="_blank">Explore</a></nav>
    </header>
    ${pastBar()}
    ${isShared ? nothing : html`<p><small>This browser opens a connection for each tab: six tabs at once get no answers.</small></p>`}
    ${me.unconfirmed ? html`<div class="cut" role="alert">You may not act now: ${plain(site?.provider ?? "")}, by which you have signed in,
      cannot be reached. Your session goes on when it is back. <button @click=${signIn}>Sign in with a token</button></div>` : nothing}
    ${me.ended ? html`<div class="cut" role="alert">You are no longer signed in: your session has ended, or the server of this page
      has been started again. <button @click=${signIn}>Sign in again</button>
      <button @click=${signOut}>Stay signed out</button></div>` : nothing}
    ${marks().map((one) => html`<div class="banner" role="note">${plain(one)}</div>`)}
    ${isCut() ? html`<div class="cut" role="alert">No connection to the server of this page${since}. Nothing below is current.</div>`
      : store.away ? html`<div class="cut" role="alert">${store.away} Values still come; new connections do not.</div>`
      : site?.problem ? html`<div class="cut" role="alert">${site.problem}</div>` : nothing}
    ${site ? approvals() : nothing}
    <main id="main" tabindex="-1">${site ? PAGES[page](what) : html`<p>Connecting …</p>`}</main>`;
}

function theme() {
  const dark = document.documentElement.dataset.theme !== "dark";
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
  dropPlots();
  redraw();
}

function signIn() {
  const dialog = document.createElement("dialog");
  const close = () => dialog.remove();
  const said = (error) => { dialog.querySelector(".said").textContent = error.message; };
  const send = async (event) => {
    event.preventDefault();
    try {
      await act("sign-in", { token: dialog.querySelector("input").value });
      close();
      await describe();
    } catch (error) {
      said(error);
    }
  };
  const go = async () => { // the provider sends the browser back
    try {
      const { to } = await act("provider", {});
      sessionStorage.setItem(PLACE, location.hash);
      location.assign(to);
    } catch (error) {
      said(error);
    }
  };
  render(html`<form @submit=${send}><h2>Sign in</h2>
    <label>Token <input type="password" autocomplete="current-password" required></label>
    <p class="said wrong" role="alert"></p>
    <div class="tools"><button>Sign in</button>${store.site.provider
      ? html`<button type="button" @click=${go}>Sign in by ${store.site.provider}</button>` : nothing}
      <button type="button" @click=${close}>Cancel</button></div></form>`, dialog);
  document.body.append(dialog);
  dialog.addEventListener("close", close);
  dialog.showModal();
}

async function signOut() {
  const gone = await act("sign-out", {}).catch(() => null);
  if (gone?.to) location.assign(gone.to);
  else await describe();
}

const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
document.documentElement.dataset.theme = localStorage.getItem("theme") ?? preferred;
addEventListener("hashchange", () => {
  redraw();
  document.getElementById("main")?.focus({ preventScroll: true });
  scrollTo(0, 0);
});
if (!location.hash && sessionStorage.getItem(PLACE)) location.hash = sessionStorage.getItem(PLACE);
sessionStorage.removeItem(PLACE);
onNews(redraw);
startPast(updatePlots, () => OPENED[address()[0]]?.(address()[1]));
start();

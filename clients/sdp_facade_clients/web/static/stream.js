// The stream of frames: opened again whatever ended it, and one for all tabs of a browser.
//
// A browser has six connections to a server (HTTP/1.1), and gives up a stream for good at an error such as the 502 of a
// proxy. So a SharedWorker, which runs this module, has the stream, and tells each tab; where there is none, a tab has its
// own. A stream that has said nothing for a while, for whatever reason, is replaced, each time after a longer while.

const FIRST_MS = 3000; // the server sends a frame at least each second
const LONGEST_MS = 12000;
const ALERTS = 500; // kept in a snapshot, as by the server

function open(give) {
  let [source, timer, wait] = [null, null, FIRST_MS];
  const due = () => {
    clearTimeout(timer);
    timer = setTimeout(again, wait * (0.75 + Math.random() / 2)); // not all browsers of a site at once
  };
  const again = () => {
    source?.close();
    source = new EventSource(new URL("events", import.meta.url));
    for (const kind of ["snapshot", "news"])
      source.addEventListener(kind, (event) => {
        wait = FIRST_MS;
        due();
        give(kind, JSON.parse(event.data));
      });
    due();
    wait = Math.min(2 * wait, LONGEST_MS);
  };
  again();
}

// Call `give` with the kind and the content of each frame, first with a snapshot.
export function listen(give) {
  if (!isShared) return open(give);
  const worker = new SharedWorker(import.meta.url, { type: "module" });
  const { port } = worker;
  worker.addEventListener("error", () => open(give), { once: true }); // it could not be loaded
  port.onmessage = ({ data: [kind, frame] }) => give(kind, frame);
  addEventListener("pagehide", () => port.postMessage("gone"));
  addEventListener("pageshow", (event) => event.persisted && location.reload());
}

export const isShared = "SharedWorker" in globalThis;

function serve(scope) {
  const tabs = new Set();
  let all = null; // what a new tab has to know
  scope.onconnect = ({ ports: [port] }) => {
    tabs.add(port);
    port.onmessage = () => tabs.delete(port);
    if (all) port.postMessage(["snapshot", all]);
  };
  open((kind, frame) => {
    if (kind === "snapshot") all = frame;
    else {
      for (const [device, attributes] of Object.entries(frame.values)) Object.assign((all.values[device] ??= {}), attributes);
      all = { ...all, ...frame, values: all.values, alerts: [...all.alerts, ...frame.alerts].slice(-ALERTS) };
    }
    for (const tab of tabs) tab.postMessage([kind, frame]);
  });
}

if ("onconnect" in globalThis) serve(globalThis);

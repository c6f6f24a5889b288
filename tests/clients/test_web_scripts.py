"""Modules of the operator's page, each alone in Node: what no browser with a whole system can be made to do at will."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sdp_facade_clients.web import STATIC
from tests.support.waiting import HANG

NODE = shutil.which("node", path=str(Path(sys.executable).parent)) or shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node is not here: scripts/bootstrap asyncapi")
LIBRARIES = {
    "lit-html.js": "export const [html, svg, nothing, render] = [String.raw, String.raw, '', () => {}];",
    "directives/repeat.js": "export const repeat = (all, key, draw) => all.map(draw);",
    "uPlot.esm.js": "export default class {}",
}
"""What takes the place of the libraries."""
BROWSER = """
const nothing = () => {};
const element = { dataset: {}, append: nothing, setAttribute: nothing, toggleAttribute: nothing };
Object.assign(globalThis, {
  document: { documentElement: element, createElement: () => ({ ...element }), getElementById: () => element },
  location: { hash: "", href: "http://sdp/", search: "" }, matchMedia: () => ({ matches: false }),
  localStorage: { getItem: () => "dark" }, sessionStorage: { getItem: nothing, removeItem: nothing },
  history: { replaceState: nothing }, addEventListener: nothing, requestAnimationFrame: nothing,
  EventSource: class { addEventListener() {} close() {} }, setInterval: () => 0,
});
// Node 20 does not have it.
Map.groupBy ??= (all, key) => new Map(all.map((one) => [key(one), all.filter((other) => key(other) === key(one))]));
// Answers of the server, which come when the test gives them.
const asked = [];
globalThis.fetch = (address) => new Promise((done) => asked.push({ address: String(address),
  answer: (content) => done({ ok: true, json: async () => content }) }));
const answer = async (part, content) => {
  const at = asked.findIndex(({ address }) => address.includes(part));
  asked.splice(at, 1)[0].answer(content);
  for (let turn = 0; turn < 20; turn += 1) await null;
};
const { store } = await import("./store.js");
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    page = shutil.copytree(STATIC, tmp_path / "page", ignore=shutil.ignore_patterns("vendor", "explore"))
    for name, text in LIBRARIES.items():
        (page / "vendor" / name).parent.mkdir(parents=True, exist_ok=True)
        (page / "vendor" / name).write_text(text)
    (page / "package.json").write_text('{"type": "module"}')

    def run(script: str) -> Any:
        """Return what a script assigns to `found`."""
        whole = f"{BROWSER}\nlet found;\n{script}\nconsole.log(JSON.stringify(found));\nprocess.exit(0);\n"
        (page / "test.js").write_text(whole)
        ended = subprocess.run(
            [str(NODE), "test.js"], cwd=page, capture_output=True, text=True, timeout=HANG, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    return run


def test_times_and_durations_are_said_as_they_are(run: Any) -> None:
    """A time in another zone was said to be in UTC, a leap second was a dash, and minus 5 min were 0 s."""
    texts = [
        "2026-11-28T14:11:32.123+00:00",
        "2026-11-28 14:11:32 UTC.",
        "2026-11-28T14:11:32.123+02:00",
        "2026-11-28T14:11:32-05:00",
        "2016-12-31T23:59:60Z",
    ]
    script = f"""
      const {{ plain, quantity }} = await import("./parts.js");
      found = [...{json.dumps(texts)}.map(plain), quantity(-300, {{ unit: "s" }}), quantity(300, {{ unit: "s" }})];
    """
    told = "2026-11-28 14:11:32 UTC"
    assert run(script) == [told, f"{told}.", *texts[2:], "-5 min", "5 min"]


TIME = """
// Time that passes when nothing else is to be done.
let now = 0;
const due = [];
globalThis.setTimeout = (call, ms) => due.push({ at: now + (ms ?? 0), call });
globalThis.clearTimeout = (id) => { if (due[id - 1]) due[id - 1].at = Infinity; };
globalThis.setInterval = (call, ms) => { const turn = () => { call(); setTimeout(turn, ms); }; setTimeout(turn, ms); };
globalThis.performance.now = () => now;
AbortSignal.timeout = () => undefined;
const until = async (end) => {
  for (;;) {
    for (let turn = 0; turn < 20; turn += 1) await null;
    const next = due.reduce((one, other) => (other.at < one.at ? other : one), { at: Infinity });
    if (next.at > end) break;
    now = next.at;
    next.at = Infinity;
    next.call();
  }
  now = end;
};
"""


@pytest.mark.parametrize("server", ["gone", "without a database"])
def test_a_page_asks_a_server_that_is_away_no_more_often_with_time(run: Any, server: str) -> None:
    """Each turn of the interval began one more chain of questions, so the server was flooded when it was back."""
    script = f"""
      {TIME}
      let count = 0;
      globalThis.fetch = (address) => {{
        count += 1;
        if ({json.dumps(server)} === "gone") return Promise.reject(new Error("refused"));
        return Promise.resolve({{ ok: true, json: async () => ({{ problem: "the Tango database does not answer" }}) }});
      }};
      (await import("./store.js")).start();
      found = [];
      for (const minute of [1, 60]) {{
        await until(minute * 60000 - 20000);
        count = 0;
        await until(minute * 60000);
        found.push(count);
      }}
    """
    first, later = run(script)
    assert 0 < later <= first + 2


def test_an_act_that_the_server_takes_later_waits_for_its_turn(run: Any) -> None:
    """Acknowledging 300 alarms ended at the 23rd, as a person may not do more at once."""
    script = f"""
      {TIME}
      const codes = [200, 429, 429, 200, 409];
      globalThis.fetch = () => {{
        const status = codes.shift();
        return Promise.resolve({{ ok: status === 200, status, json: async () => ({{ error: `${{status}}` }}) }});
      }};
      const {{ act, inTurn }} = await import("./store.js");
      found = [];
      const say = (text) => found.push([text, now]);
      const acknowledge = () => inTurn(() => act("alarm", {{}})).then(() => say("done"), (error) => say(error.message));
      for (let one = 0; one < 3; one += 1) acknowledge();
      await until(10000);
    """
    assert run(script) == [["done", 0], ["done", 250], ["409", 250]]


SOUND = """
globalThis.tones = [];
globalThis.AudioContext = class {
  createGain() { return { gain: {}, connect: () => null }; }
  createOscillator() {
    const frequency = {};
    return { frequency, connect: (other) => other, start: () => tones.push(frequency.value), stop() {} };
  }
};
const timers = [];
globalThis.setTimeout = (call) => call.name === "play" && timers.push(call);
const { appendFileSync } = await import("node:fs");
appendFileSync("sound.js", "export const turnOn = () => { audio = new AudioContext(); };");
const { sound, turnOn } = await import("./sound.js");
turnOn();
"""


def test_an_alarm_just_after_a_tone_has_its_own(run: Any) -> None:
    """A CRITICAL alarm less than a second after the tone of a WARNING was silent."""
    script = f"""{SOUND}
      for (const severity of ["WARNING", "INFO"]) sound(() => [{{ severity }}]);
      timers.shift()();
      for (const severity of ["ALARM", "CRITICAL", "WARNING"]) sound(() => [{{ severity }}]);
      while (timers.length) timers.shift()();
      found = tones;
    """
    assert run(script) == [440, 880]


def test_an_alarm_sounds_while_the_page_shows_the_past(run: Any) -> None:
    """The list of alarms is that of the past then, and made no tone."""
    script = f"""{SOUND}
      const give = [];
      globalThis.EventSource = class {{ addEventListener(kind, call) {{ give.push([kind, call]); }} close() {{}} }};
      const {{ showPast, start }} = await import("./store.js");
      await import("./alarms.js");
      store.site = {{ devices: {{ a: "SdpAlerts" }}, classes: {{ SdpAlerts: {{ attributes: {{}} }} }} }};
      start();
      const [, snapshot] = give.find(([kind]) => kind === "snapshot");
      const [, news] = give.find(([kind]) => kind === "news");
      const alarm = (severity, occurrence) => ({{ condition: "c", source: "s", state: "UNACK", severity, occurrence }});
      const waiting = (some) => [some.map(alarm).map((one) => JSON.stringify(one)), "VALID", 1, ""];
      const values = (some) => ({{ a: {{ unacknowledgedAlerts: waiting(some) }} }});
      const frame = (...some) => ({{ data: JSON.stringify({{ time: 1, alerts: [], values: values(some) }}) }});
      snapshot(frame("WARNING"));
      showPast({{ time: 1, values: {{}}, alarms: [] }});
      news(frame("WARNING", "CRITICAL"));
      news(frame("WARNING"));
      while (timers.length && !tones.length) timers.shift()();
      found = tones;
    """
    assert run(script) == [880]


def test_an_answer_about_another_subarray_is_not_shown_at_this_one(run: Any) -> None:
    """While one server hung, its error, commands and outcomes were shown at the subarray that was opened next."""
    script = """
      const { subarrayPage } = await import("./subarray.js");
      const command = (name) => [{ name, id: name, submitted_time: "2026-11-28T14:11:32+00:00", status: "COMPLETED" }];
      store.site = { devices: { one: "SdpSubarray", two: "SdpSubarray" }, enums: {}, instances: {},
        classes: { SdpSubarray: { attributes: {}, commands: {} } } };
      subarrayPage("one");
      subarrayPage("two");
      await answer("device=two", command("OfTwo"));
      await answer("device=one", command("OfOne"));
      const said = subarrayPage("two");
      found = [said.includes("OfTwo"), said.includes("OfOne")];
    """
    assert run(script) == [True, False]


def test_an_answer_that_breaks_off_is_an_error_and_no_list_of_commands(run: Any) -> None:
    """It was taken as the list, so the page of a subarray stopped drawing until the next answer."""
    script = """
      const { subarrayPage } = await import("./subarray.js");
      const classes = { SdpSubarray: { attributes: {}, commands: {} } };
      store.site = { devices: { one: "SdpSubarray" }, enums: {}, instances: {}, classes };
      globalThis.fetch = async () => ({ ok: true, status: 200, json: async () => JSON.parse("[{") });
      subarrayPage("one");
      for (let turn = 0; turn < 20; turn += 1) await null;
      found = subarrayPage("one").includes("Not current: the answer of the server of this page broke off");
    """
    assert run(script) is True


def test_an_answer_of_another_span_is_not_shown_as_this_one(run: Any) -> None:
    """The list of 7 days, which takes longer, replaced that of 10 minutes, and was called that of 10 minutes."""
    script = """
      (await import("node:fs")).appendFileSync("acts.js", "export { read, view };");
      const { read, view } = await import("./acts.js");
      for (view.since of ["7d", "10m"]) read();
      await answer("since=10m", ["newer"]);
      await answer("since=7d", ["older", "newer"]);
      found = [view.all, view.busy];
    """
    assert run(script) == [["newer"], False]


def test_an_answer_about_another_command_is_not_shown_as_this_one(run: Any) -> None:
    script = """
      const { commandPage, openCommand } = await import("./happened.js");
      store.site = { devices: {}, classes: {}, enums: {} };
      const ids = ["1700000000.5_1_Scan", "1700000100.5_1_Scan"];
      const commands = ids.map((id) => ({ id, device: "a/b/1", name: `Scan ${id}` }));
      for (const { id } of commands) openCommand(`a/b/1/${id}`);
      const later = new Date(1700000099500).toISOString().replaceAll(":", "%3A");
      await answer(`begin=${later}`, { commands });
      await answer("begin=", { commands });
      found = commandPage(`a/b/1/${commands[1].id}`).includes(`Command ${commands[1].name}`);
    """
    assert run(script) is True


def test_the_trend_of_a_device_that_is_not_known_for_a_while_has_a_title(run: Any) -> None:
    """While the Tango database did not answer, a page with the trend of a fraction stopped drawing."""
    script = """
      (await import("node:fs")).appendFileSync("trends.js", "export { Trend };");
      const { Trend } = await import("./trends.js");
      store.site = { devices: {}, classes: {}, enums: {} };
      found = Trend.prototype.sayer.call({ device: "a/b/1" }, "flaggedFraction").title;
    """
    assert run(script) == "flaggedFraction"


def test_an_address_that_a_person_typed_wrongly_stops_no_drawing(run: Any) -> None:
    script = """
      const { redraw } = await import("./app.js");
      const draws = [];
      globalThis.requestAnimationFrame = (draw) => draws.push(draw);
      location.hash = "#/alarms/100%";
      redraw();
      draws.shift()();
      redraw();
      found = draws.length;
    """
    assert run(script) == 1

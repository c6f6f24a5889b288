"""Whatever text comes from the bus, what leaves can only be read: on a terminal, as a Tango string, in a log."""

import io
import json
import logging
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from rich.table import Table
from rich.text import Text

from devices.kernel.base import FacadeDevice
from devices.kernel.mapping import tango_text
from devices.kernel.queries import refusal
from facade.flows.alerts.follower import FollowedAlert
from facade.flows.alerts.operator_api import OperatorApi
from facade.kernel.bus.port import Record as BusRecord
from facade.kernel.console import Console, say
from facade.kernel.logs import PlainFormatter, SkaFormatter
from facade.kernel.printable import excerpt, printable
from sdp_facade_clients.alert_commands import alarm_lines, entry_line
from sdp_facade_clients.events import DeviceEvent, EventRecord
from sdp_facade_clients.terminal import Scene, render, summary
from sdp_facade_lab.fault_runs import fuzz_records as good
from tests.support.heaps import BASE_US
from tests.support.whole import ICD, Site, in_tango

pytestmark = pytest.mark.needs("sdp_facade_lab")

CONTROLS = [*map(chr, (*range(0x20), *range(0x7F, 0xA0)))]
MARKS = [*map(chr, (0x61C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF))]
HALVES = ["\ud800", "\udfff"]
HOSTILE = "[red]" + "".join(CONTROLS + MARKS)
WITHDRAWN = ("withdrawer", "withdrawer_client")
STYLE = re.compile(r"\x1b\[[0-9;]*m")
TOPICS = {
    **{message: topic for topic, entry in ICD.topics.items() for message in (entry.message, *entry.also) if message},
    "command": "commands",
    "command-ack": "command-acks",
    "table-segment": "calibration",
    "metric": "quality",
    "batch": "ingest.heaps",
    "batch-frame": "ingest.heaps",
    "heartbeat": "heartbeats",
}


@pytest.mark.parametrize("one", CONTROLS + MARKS + HALVES)
def test_what_cannot_be_seen_is_written_as_its_number(one):
    shown = printable(f"a{one}b")
    assert shown == f"a\\u{ord(one):04x}b"
    assert json.loads(f'"{shown}"') == f"a{one}b"
    assert tango_text(f"a{one}b") == shown
    assert printable(f"a{one}b", keep=one) == f"a{one}b"


def test_what_can_be_read_stays():
    for text in ("", "plain", "5 µs → 😀", "\\u001b", "[red]"):
        assert printable(text) == text
    assert printable("\U000e0001") == "\\udb40\\udc01"


def test_an_excerpt_is_short_whatever_is_in_it():
    assert len(excerpt("\x1b" * 10_000_000)) == 500


def test_a_console_shows_hostile_text_as_text():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=400, color_system="truecolor")
    table = Table("title")
    table.add_row(Text(HOSTILE, "red"))
    for shown in (HOSTILE, table, Text.assemble(("bold", "bold"), *HALVES, HOSTILE)):
        console.print(shown, markup=False)
    console.print(HOSTILE, soft_wrap=True, markup=False)
    text = STYLE.sub("", out.getvalue())
    assert all(one.isprintable() for one in text.split("\n"))
    assert text.count("\\u001b") >= 3  # a cell may be cut


@pytest.mark.parametrize("formatter", [PlainFormatter(), SkaFormatter("a:b")])
def test_a_line_of_the_log_is_one_record(formatter):
    try:
        raise ValueError(f"x\n2027-01-15 08:00:00 INFO all is well{HOSTILE}")
    except ValueError as error:
        made = logging.LogRecord("n", logging.INFO, "p", 1, "%s", (HOSTILE,), (type(error), error, error.__traceback__))
    first, *others = formatter.format(made).split("\n")
    assert all(one.isprintable() for one in (first, *others))
    assert all(one.startswith("    ") for one in others)


def test_a_refusal_over_tango_and_a_status_carry_no_controls():
    failed = refusal(HOSTILE, "where")
    assert failed.args[0].desc == tango_text(HOSTILE)
    said: list[str] = []
    FacadeDevice.show(
        SimpleNamespace(set_status=said.append, _is_followed=lambda name: True),
        "Status",
        SimpleNamespace(value=f"one\n{HOSTILE}"),
    )
    assert said[0].startswith("one\n[red]\\u0000")
    assert all(one.isprintable() and one.isascii() for one in said[0].split("\n"))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return where texts stand in a document; a name that is free is a text, too."""
    if isinstance(value, dict):
        for name, entry in value.items():
            if path and path[-1] in ("values", "reasons", "states", "readings", "ledger", "summary", "argument"):
                yield (*path, (name,))
            yield from leaves(entry, (*path, name))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from leaves(entry, (*path, index))
    elif isinstance(value, str) and path != ("schema",):
        yield path


def spoilt(document: Any, path: tuple[Any, ...]) -> Any:
    """Return a document with the hostile text at a place."""
    if not path:
        return HOSTILE
    if isinstance(path[0], tuple):
        return {HOSTILE if name == path[0][0] else name: entry for name, entry in document.items()}
    made = document.copy()
    made[path[0]] = spoilt(document[path[0]], path[1:])
    return made


def documents(now_us: int, number: int) -> dict[str, good.FuzzDocument]:
    """Return one document of each message, whole."""
    known = good.documents(now_us, number)
    return {
        name: good.completed(known.get(name, {"schema": f"{name}/1"}), schema) for name, schema in ICD.messages.items()
    }


DOCUMENTS = documents(BASE_US, 1)
CASES = [(message, path) for message, document in sorted(DOCUMENTS.items()) for path in leaves(document)]


def test_the_good_records_have_every_key_of_every_schema():
    assert set(DOCUMENTS) == set(ICD.messages) == set(TOPICS)
    for name, schema in ICD.messages.items():
        Draft202012Validator(schema).validate(DOCUMENTS[name])
        assert set(DOCUMENTS[name]) == set(schema["properties"]), name


def test_no_text_field_of_any_message_carries_a_control_out():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainFormatter())
    root, level = logging.getLogger(), logging.root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        site = Site()
        site.cycle()
        for number, (message, path) in enumerate(CASES):
            document = documents(site.clock.now_us(), number)[message]
            if message == "command-ack":  # a withdrawal of a command that is on the bus changes nothing
                document = {key: value for key, value in document.items() if key in path or key not in WITHDRAWN}
            made = good.record(TOPICS[message], message, spoilt(document, path))
            site.broker.append(BusRecord(topic=made.topic, key=made.key, value=made.value, headers=made.headers))
            if message == "alert":
                packet = good.packet({**spoilt(document, path), "attachments": []})
                site.broker.append(BusRecord(topic=packet.topic, key=packet.key, value=packet.value))
            site.cycle()
        for _ in range(20):  # what fell silent meanwhile is named
            site.clock.sleep(1.0)
            site.cycle()
    finally:
        root.removeHandler(handler)
        root.setLevel(level)

    carried: dict[str, list[str]] = {}
    for device, name, reading in site.left:
        value = in_tango(site, device, name, reading)
        carried.setdefault(name, []).extend(one for one in (value if isinstance(value, list) else [value]))
    for name, values in carried.items():
        texts = [one for one in values if isinstance(one, str)]
        kept = "\n" if name == "Status" else ""
        assert all(one.isascii() and one.replace(kept, "").isprintable() for one in texts), name
    for name in ("healthInfo", "lastError", "lastAlert", "activeAlerts", "longRunningCommandResult"):
        assert any("\\u001b" in str(one) for one in carried[name]), name
    operators = site.server.find(OperatorApi)
    for answer in (
        operators.since(operators.flow.log.complete_from),
        operators.alarms(),
        operators.history('{"condition":"fuzzed"}'),
    ):
        assert tango_text(answer).isprintable()
        json.loads(tango_text(answer))
    assert stream.getvalue()
    assert all(one.isprintable() for one in stream.getvalue().split("\n"))
    letters = site.broker.read("dead-letters")
    headers = [text.decode() for one in letters for name, text in one.headers if name.startswith("dl.")]
    assert headers
    assert all(map(str.isprintable, headers))
    assert_terminal_shows_only_text(site)


def assert_terminal_shows_only_text(site: Site) -> None:
    records: dict[str, dict[str, EventRecord]] = {}
    for device, name, reading in sorted(site.left, key=lambda one: one[2].time):
        event = DeviceEvent(
            value=in_tango(site, device, name, reading), quality=reading.quality, time=0.0, received=0.0
        )
        records.setdefault(device, {})[name] = EventRecord(newest=event)
    scene = Scene(
        tango_host="here:10000",
        devices=site.server.devices,
        records=records,
        now=site.clock.now(),
        health_labels=ICD.enums["HealthState"],
        obs_states=ICD.enums["ObsState"],
    )
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=300, color_system="truecolor")
    console.print(render(scene))
    console.print(summary(scene), markup=False)
    for sequence, previous, text in ((1, 0, "alert"), (2, 1, "action")):
        content = good.documents(BASE_US, 1)["alert" if text == "alert" else "alert-action"]
        spoilt_content = {key: HOSTILE if isinstance(one, str) else one for key, one in content.items()}
        entry = {"sequence": sequence, "previous": previous, "time": 0.0, text: spoilt_content}
        console.print(entry_line(FollowedAlert(**{"alert": None, "action": None, **entry})))
    for alarm in json.loads(site.server.find(OperatorApi).alarms()):
        for said in alarm_lines(alarm, {}):
            console.print(said)
    text = STYLE.sub("", out.getvalue())
    assert all(one.isprintable() for one in text.split("\n"))
    assert "\\u001b" in text


@pytest.mark.parametrize(
    ("terminal", "lines"), [(True, ["what is", "wrong with", "it"]), (False, ["what is wrong with it"])]
)
def test_a_terminal_folds_lines_between_words_and_a_file_has_them_whole(
    terminal: bool, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    made = Console(file=out, force_terminal=terminal, width=10, soft_wrap=True, color_system=None)
    monkeypatch.setattr("facade.kernel.console.OUT", made)
    say("what is wrong with it")
    assert [line.rstrip() for line in out.getvalue().splitlines()] == lines

"""From heap notifications to Tango events, through real processes, as a client sees it."""

import json
import math
from collections import defaultdict
from itertools import groupby, pairwise

import pytest

from tests.conftest import Deploy
from tests.support.deployment import BUS, ICD, MASTER, Deployment, expected_totals, node_device
from tests.support.events import Event, Subscriber
from tests.support.waiting import until, until_equal
from tests.support.windows import ROUGH, Heap, all_nodes_values, heaps_by_window, in_time, node_values

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

Told = dict[tuple[str, str], list[object]]
"""What a client was told, in order, by device and attribute."""


def attributes(device_class: str) -> set[str]:
    """Return the attributes that send events; `nodeFigures` is worked out when a client reads it."""
    return {attribute.name for attribute in ICD.classes[device_class].attributes} - {"nodeFigures"}


def class_of(device: str) -> str:
    return {MASTER: "SdpMaster", BUS: "SdpBus"}.get(device, "SdpIngestNode")


def check_windows(deployment: Deployment, events: dict[tuple[str, str], list[Event]]) -> set[tuple[str, str]]:
    """Compare each event of a closed window with the raw records of that window; return whose there were."""
    raw = heaps_by_window(deployment.messages("ingest.heaps"))
    together: dict[int, list] = defaultdict(list)
    for windows in raw.values():
        for window, heaps in windows.items():
            together[window] += heaps
    checked = set()
    for (device, name), found in events.items():
        for event in found:
            if device == BUS or event.quality not in ("VALID", "WARNING", "ALARM"):
                continue
            window = int(event.time or 0)
            if device == MASTER:
                heaps, values = together.get(window, []), all_nodes_values
            else:
                heaps, values = raw[int(device[-4:])].get(window, []), node_values
            if not heaps or name not in values(heaps):
                continue
            first = len(in_time(heaps, window))
            where = f"{device}/{name} of window {window}: {event.value} with {first} to {len(heaps)} heaps"
            if name == "heapRate":
                assert first <= event.value <= len(heaps), where
            # In the order of the log, which is one of two for all nodes together.
            parts = [heaps[:count] for count in range(max(first, 1), len(heaps) + 1)]
            fits = any(_is_made_of(event, part, values(part)[name], name) for part in parts)
            assert fits or (device == MASTER and len(parts) > 1), where
            checked.add((device, name))
    return checked


def _is_made_of(event: Event, heaps: list[Heap], wanted: float, name: str) -> bool:
    """Return whether an event is of some heaps; its time is that of the newest of them, and not of the event."""
    is_close = math.isclose(event.value, wanted, rel_tol=ROUGH.get(name, 1e-9), abs_tol=1e-12)
    return is_close and round(event.time * 1e6) == max(heap["time"] for heap in heaps)


def test_a_client_gets_every_attribute_right(deploy: Deploy) -> None:
    """A plain Tango client, subscribed through the database, gets the right values, times and qualities of all
    attributes as change and as archive events; INVALID follows the sender's end, not before `stale_after`,
    recovery when it sends again; totals are what was sent."""
    deployment = deploy(nodes=4, rack_size=2)
    deployment.worker()
    deployment.serve()
    devices = [MASTER, BUS, *map(node_device, range(4))]
    subscriber = Subscriber(deployment, devices)
    simulation = deployment.simulate("--rate", 1000, "--gaps", 0.002, "--duplicates", 0.002, "--scan-id", 7)

    def windows_are_told() -> bool:
        # On a busy machine Tango makes the event connections seconds after the subscriptions have returned.
        found = [subscriber.by_attribute(kind) for kind in ("change", "archive")]
        valid = [
            sum(event.quality in ("VALID", "WARNING", "ALARM") for event in events.get((device, "heapRate"), ()))
            for events in found
            for device in devices
            if device != BUS
        ]
        return min(valid) >= 5

    until(windows_are_told, "five windows of each device as events")
    report = simulation.stop()
    until_equal(deployment.totals, expected_totals(report), "totals are what was sent")

    stale = ICD.classes["SdpIngestNode"].stale_after
    messages = deployment.messages("ingest.heaps")
    newest_data = max(json.loads(message.value())["time"] for message in messages) / 1e6
    until(lambda: deployment.quality(node_device(0), "heapRate") == "INVALID", "INVALID in silence")
    until(lambda: deployment.quality(MASTER, "heapRate") == "INVALID", "INVALID in silence")

    def silenced() -> bool:
        newest = [subscriber.newest(d, "heapRate", kind) for d in devices if d != BUS for kind in ("change", "archive")]
        return all(event is not None and event.quality == "INVALID" for event in newest)

    until(silenced, "INVALID as an event")
    for kind in ("change", "archive"):
        events = subscriber.by_attribute(kind)
        assert {key for key in events if key[1] not in ("State", "Status")} == {
            (device, name) for device in devices for name in attributes(class_of(device))
        }
        checked = check_windows(deployment, events)
        assert {(device, "heapRate") for device in devices if device != BUS} <= checked
        assert len(checked) >= 4 * 17
        for device in devices:
            if device == BUS:
                continue
            invalid = next(e for e in reversed(events[device, "heapRate"]) if e.quality == "INVALID")
            assert invalid.arrived - newest_data >= stale
            assert deployment.quality(device, "heapsTotal") == "VALID", "totals stay true in silence"
    # Tango's client gives up a server whose heartbeat is a second late, as that of one that stood still, and subscribes
    # to it again.
    assert {event.error for event in subscriber.events()} <= {None, "API_EventTimeout"}
    assert_alarm_events(subscriber)

    simulation = deployment.simulate("--rate", 2000, "--scan-id", 8, name="again")
    until(lambda: deployment.quality(MASTER, "heapRate") in ("VALID", "WARNING"), "recovery")
    until(lambda: deployment.read_one(node_device(3), "scanID") == 8, "the new scan")
    second = simulation.stop()
    # A new scan begins a new sequence.
    counted = sum(node.counted for one in (report, second) for node in one.nodes.values())
    wanted = {"heapsTotal": counted, "heapsMissing": 0}
    until_equal(lambda: deployment.read(MASTER, *wanted), wanted, "the total goes on")


def assert_alarm_events(subscriber: Subscriber) -> None:
    """A client of alarm events alone knows each quality and State, and is told nothing but their changes."""

    def what_was_told(kind: str) -> Told:
        return {
            key: [event.value if key[1] == "State" else event.quality for event in events]
            for key, events in subscriber.by_attribute(kind).items()
            if key[1] != "Status"
        }

    def differences() -> dict[tuple[str, str], object]:
        """Return what the two kinds of events end with, where that is not the same."""
        change, alarm = what_was_told("change"), what_was_told("alarm")
        ends = {key: (change.get(key, [None])[-1], alarm.get(key, [None])[-1]) for key in {*change, *alarm}}
        return {key: end for key, end in ends.items() if end[0] != end[1] and key not in missed_first(change, alarm)}

    def missed_first(change: Told, alarm: Told) -> set[tuple[str, str]]:
        """Return the attributes whose only change may have come before Tango had made the event connection.

        Tango makes it after a subscription has returned: on a busy machine seconds later. A quality that changes once
        and never again, as that of a total, is then known from change events only.
        """
        once = {key for key, told in change.items() if len(list(groupby(told))) == 2}
        return {key for key, told in alarm.items() if key in once and told == change[key][:1]}

    until_equal(differences, {}, "both kinds of events tell the same")
    change, alarm = what_was_told("change"), what_was_told("alarm")
    assert len(missed_first(change, alarm)) <= len(alarm) / 4, missed_first(change, alarm)
    for (_, name), events in subscriptions(subscriber, "alarm"):
        # The first one is what Tango read when the client subscribed, and perhaps a change already.
        told = [event.value if name == "State" else event.quality for event in events[1:]]
        assert all(one != other for one, other in pairwise(told)), events
    alarms = subscriber.by_attribute("alarm")
    assert alarms[node_device(0), "heapRate"][-1].quality == "INVALID"
    assert sum(map(len, alarms.values())) < sum(map(len, subscriber.by_attribute("change").values()))


def subscriptions(subscriber: Subscriber, kind: str) -> list[tuple[tuple[str, str], list[Event]]]:
    """Return device and attribute of each subscription and its events; Tango makes a new one after an error."""
    newest: dict[tuple[str, str], list[Event]] = {}
    found = []
    for event in subscriber.events():
        key = event.device, event.attribute
        if event.kind != kind:
            continue
        if event.error is not None:
            newest.pop(key, None)
            continue
        if key not in newest:
            newest[key] = []
            found.append((key, newest[key]))
        newest[key].append(event)
    return found

"""Health, modes, accounts and settings: small pure rules, by tables."""

import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

import facade
from facade.flows.overview.views import MasterView
from facade.flows.telemetry.composition import TelemetryHealth
from facade.flows.telemetry.watermarks import Mark
from facade.kernel.bus.port import OffsetRange
from facade.kernel.clock import ManualClock, Time, as_time
from facade.kernel.config import Settings, load_settings
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.kernel.outcome import TOMBSTONE, RecordRejected
from facade.kernel.runtime.accounts import RunningAccount
from facade.kernel.runtime.health_issues import ORIGIN, HealthIssue, HealthSource
from facade.kernel.runtime.progress import Progress
from facade.sdp.admin_mode import allowed
from facade.sdp.demand import RateMeter
from facade.sdp.device_state import DeviceStates, StateMessage
from facade.sdp.racks import Racks
from facade.sdp.scans import Scans
from facade.sdp.stream_accounts import StreamTotals
from tests.support.overview import MASTER, NOW, heartbeat, overview, signs_of_life

MODES = load().enums["AdminMode"]


@pytest.mark.parametrize(
    ("change", "state", "reason"),
    [
        ({}, "OK", None),
        ({"connected": False, "bus_error": "gone"}, "UNKNOWN", "no Kafka broker reachable; last error: gone"),
        ({"reporting": (0, 2, 3)}, "DEGRADED", "ingest/0001 (node 1) sends no records while 3 others do"),
        ({"reporting": ()}, "OK", None),  # they rest
        ({"controllers": heartbeat(at=NOW - 60)}, "FAILED", "controller a has been silent since"),
        ({"controllers": {}}, "DEGRADED", "no controller of mid-sdp/control/0 was heard of"),
        ({"unbalanced": ("ingest.heaps",)}, "FAILED", "account of ingest.heaps does not balance"),
        ({"lagging": (("ingest.heaps", 10**9),)}, "DEGRADED", "ingest.heaps lags by 1000000000 records"),
        ({"connected": False, "reporting": ()}, "UNKNOWN", "no Kafka broker"),
    ],
)
def test_health_and_its_first_reason(change, state, reason):
    shown = overview(**change)
    found, reasons = shown.judge(shown.issues(as_time(NOW)))
    assert found == state
    assert (reasons == ()) if reason is None else reasons[0].startswith(reason)


def test_controllers_that_are_silent_together_are_one_reason_that_names_them_and_an_alarm_each():
    """20 controllers fell silent, and the reason named sdp-facade 20 times; two of them shared one alarm."""
    silent = {name: one for number in range(20) for name, one in heartbeat(name=f"c{number}", at=NOW - 60).items()}
    shown = overview(controllers=silent)
    health, (reason,) = shown.judge(shown.issues(as_time(NOW)))
    assert health == "FAILED", "no command is executed"
    assert reason.startswith("controller c0 has been silent since")
    assert "; and 19 more: sdp-facade/c1, sdp-facade/c10, " in reason
    assert len(shown.find(as_time(NOW))) == 20


FIRST, SECOND = "mid-sdp/subarray/01", "mid-sdp/subarray/02"
SCANS = [(FIRST, "scanID", "1", NOW - 60), (FIRST, "obsState", "SCANNING", NOW - 60)]


@pytest.mark.parametrize(
    ("change", "silent"),
    [
        ({}, [0, 1]),
        ({"reporting": ()}, [0, 1, 2, 3]),
        ({"states": [*SCANS, (FIRST, "obsState", "READY", NOW)]}, []),  # between scans nodes rest
        ({"states": [*SCANS, (FIRST, "obsState", "READY", NOW)], "reporting": ()}, []),
        ({"states": [*SCANS[:1], (FIRST, "obsState", "SCANNING", NOW - 4)]}, []),  # it has only begun
        ({"scan": 2}, [0, 1]),  # nobody knows whose scan that was, and others speak
        ({"scan": 2, "reporting": ()}, [0, 1, 2, 3]),  # or somebody scans
        ({"scan": 2, "states": [], "reporting": ()}, []),
        ({"states": [*SCANS, (SECOND, "scanID", "1", NOW - 9)]}, []),  # the newest one to run it rests
        ({"heartbeats": signs_of_life(stopped=("aggregate-0", "aggregate-1"))}, []),  # nobody takes what they say
    ],
)
def test_nodes_are_silent_while_their_subarray_scans_and_else_they_rest(change, silent):
    shown = overview(**{"reporting": (2, 3), "states": SCANS, **change})
    shown.judge(shown.issues(as_time(NOW)))
    found = {source for condition, source in shown.find(as_time(NOW)) if condition == "streamSilent"}
    assert found == {f"ingest/{node:04d}" for node in silent}


@pytest.mark.parametrize(("seconds", "named"), [(30, True), (4, False)])
def test_a_partition_that_is_not_read_is_named_with_its_worker_and_its_nodes_are_not_called_silent(seconds, named):
    """Of node 1 nothing is known: nobody takes what it says. It was called silent until its worker was named."""
    still = ((1, Mark(round((NOW - seconds) * 1e6), "1")),)
    read_to = "Partition 1 of ingest.heaps is read up to 1970-01-01 00:16:10 UTC, last by aggregate-1"
    expected = ("DEGRADED", (f"{read_to}: the worker that has it is behind or has stopped",)) if named else ("OK", ())
    shown = overview(reporting=(0, 2, 3), still=still)
    assert shown.judge(shown.issues(as_time(NOW))) == expected


_ITS_CLOCK, _CATCHES_UP = "always 30 s behind its time; look at its clock", "it sends what it held back, and catches up"


@pytest.mark.parametrize(
    ("delays", "nodes", "advice"),
    [
        ([30] * 40, (1,), _ITS_CLOCK),
        ([30, 31, 30, 29, 30] * 8, (1,), _ITS_CLOCK),
        # Each second brings two of the outage, and after that all are in time.
        (range(60, 20, -1), (1,), _CATCHES_UP),
        (range(60, 20, -1), (0, 1, 2, 3), _CATCHES_UP),
        ([60], (1,), ""),
        (range(12, 52), (1,), "19 s behind its time, and more every second; look at the network to the brokers"),
        ([30] * 40, (0, 1, 2, 3), "30 s behind its time, as 3 others; look at the brokers and the network"),
    ],
)
def test_a_late_node_is_told_whether_to_look_at_its_clock(delays, nodes, advice):
    """After an outage of the broker, alarms of four healthy nodes sent the operator to their clocks."""
    shown = overview(reporting={0, 1, 2, 3}.difference(nodes), controllers=heartbeat(at=NOW + 60))
    telemetry = next(one for one in shown._flows if isinstance(one, TelemetryHealth))
    ((ledger, _),) = telemetry._telemetry.over_all()
    alarms = {("streamLate", f"ingest/{node:04d}") for node in nodes if " behind " in advice}
    shown.judge(shown.issues(as_time(NOW)))
    for second in range(1, 40):
        telemetry._clock.sleep(1.0)
        totals, is_late = ledger.totals, np.isin(range(4), nodes) & (second <= min(len(delays), 20))
        totals.late += np.where(is_late, 90, 2)
        delay = np.where(is_late, delays[min(second, len(delays)) - 1], 7200)
        totals.late_us[:] = np.round((NOW + second - delay) * 1e6)
        totals.count += np.where(is_late, 0, 98)
        health, reasons = shown.judge(shown.issues(as_time(NOW + second)))
        if second == 8:
            found = [one for one in reasons if one.startswith(f"ingest/{nodes[0]:04d} (node {nodes[0]}): ")]
            assert (health, len(found)) == (("DEGRADED", 1) if advice else ("OK", 0))
            assert all(one.partition("too late for their window: ")[2].startswith(advice) for one in found)
            found = {key for key in shown.find(as_time(NOW + second)) if key[1] != ORIGIN}
            assert found == alarms, "late nodes are not silent"
            assert shown.finds(("streamLate", "ingest/0001"))
    assert not {key for key in shown.find(as_time(NOW + 39)) if key[0] == "streamLate"}
    assert not shown.finds(("streamSilent", "receive/1")), "what others raise is theirs to clear"


def test_figures_of_all_nodes_are_of_the_last_seconds():
    """Of a node that is well, one that loses packets late, and one that has fallen silent; the last is unknown."""
    shown = overview(nodes=4)
    telemetry = next(one for one in shown._flows if isinstance(one, TelemetryHealth))
    ((ledger, _),) = telemetry._telemetry.over_all()
    totals, sends = ledger.totals, np.array([1, 1, 0, 0])
    totals.heard[3] = 0
    fields = ("received", "lost", "late", "latency")
    totals.sums = {name: np.zeros(4, dtype=np.float64) for name in fields}
    shown.judge(shown.issues(as_time(NOW)))
    assert shown.values("SdpMaster")["nodeFigures"] == (), "not yet known"
    for second in range(1, 15):
        telemetry._clock.sleep(1.0)
        totals.heard[:2] = as_time(NOW + second - 0.3)  # after the first look, the server had to catch up for a moment
        totals.count += 100 * sends
        totals.late += np.array([0, 20, 0, 0])
        for name, each in zip(fields, (90.0, 10.0, 0.0, 0.5), strict=True):
            totals.sums[name] += each * sends * np.array([1, 0 if name == "received" else 1, 0, 0])
        shown.judge(shown.issues(as_time(NOW + second)))
    rate, loss, latency, late, silence = np.array(shown.values("SdpMaster")["nodeFigures"])
    np.testing.assert_allclose(rate, [100, 120, 0, np.nan])
    np.testing.assert_allclose(loss, [0.1, 1.0, np.nan, np.nan])
    np.testing.assert_allclose(latency, [0.005, 0.5 / 120, np.nan, np.nan])
    np.testing.assert_allclose(late, [0, 20, 0, np.nan])
    np.testing.assert_allclose(silence, [0.3, 0.3, 14, np.nan])


@pytest.mark.parametrize(
    ("issue", "severity"),
    [
        (HealthIssue("DEGRADED", "late", ("streamLate", "x")), "ALARM"),
        (HealthIssue("DEGRADED", "late", ("streamLate", "x"), "INFO"), "INFO"),
        (HealthIssue("FAILED", "no worker"), "CRITICAL"),
        (HealthIssue("DEGRADED", "no worker"), "WARNING"),
    ],
)
def test_a_reason_has_the_severity_of_its_condition_unless_its_source_gives_another(issue, severity):
    shown = overview()

    class Source(HealthSource):
        conditions: ClassVar = {"streamLate": "x"}

        def issues(self, now):
            yield issue

    shown._flows = [Source()]
    (told,) = shown.issues_as_dicts(shown.issues(as_time(NOW)))
    assert told["severity"] == severity
    assert [one.severity for one in shown.find(as_time(NOW)).values()] == ([severity] if issue.alarm else [])


@pytest.mark.parametrize("count", [64, 65, 100])
def test_reasons_for_which_there_is_no_room_are_counted(count):
    shown = overview()

    class Grumbler(HealthSource):
        def issues(self, now):
            yield from (HealthIssue("DEGRADED", f"device {number} is unwell") for number in range(count))

    shown._flows = [Grumbler()]
    reasons = shown.judge(shown.issues(as_time(NOW)))[1]
    (length,) = (one.length for one in load().classes["SdpMaster"].attributes if one.name == "healthInfo")
    assert len(reasons) == length == 64
    left_out = f"and {count - 63} more reasons, see the devices themselves"
    assert reasons[62:] == ("device 62 is unwell", "device 63 is unwell" if count == 64 else left_out)


def test_a_look_at_sdp_asks_each_flow_once():
    """Each look asked four times, which took most of what `control` does."""
    shown, asked = overview(), []

    class Source(HealthSource):
        def issues(self, now):
            asked.append(now)
            yield HealthIssue("DEGRADED", "late")

    shown._flows = [Source()]
    view = MasterView(MASTER, shown, DeviceStates(load(), {MASTER: "SdpMaster"}), lambda: True, {})
    found = {name: reading.value for _, name, reading in view.readings(as_time(NOW))}
    assert asked == [as_time(NOW)]
    assert (found["healthState"], found["healthInfo"]) == ("DEGRADED", ("late",))
    assert "late" in found["Status"]
    assert json.loads(found["healthIssues"][0])["text"] == "late"


def test_a_flow_whose_health_fails_takes_no_other_with_it_and_clears_no_alarm():
    """A plug-in raises in each cycle."""
    shown = overview(lagging=(("ingest.heaps", 10**9),))
    key, fails = ("streamLate", "x"), []

    class PlugIn(HealthSource):
        conditions: ClassVar = {"streamLate": "x"}

        def issues(self, now):
            if fails:
                raise ZeroDivisionError("ours")
            yield HealthIssue("FAILED", "much is late", key)

        def values(self, device_class):
            raise KeyError("theirs")

    shown._flows = [PlugIn(), *shown._flows]
    before = shown.values("SdpMaster")
    assert shown.judge(shown.issues(as_time(NOW)))[1][0] == "much is late"
    fails.append(1)
    health, reasons = shown.judge(shown.issues(as_time(NOW)))
    assert health == "FAILED"
    assert any("test_control is not known: ZeroDivisionError: ours" in one for one in reasons)
    assert any("ingest.heaps lags" in one for one in reasons)
    assert key in shown.find(as_time(NOW))
    assert before == shown.values("SdpMaster")
    shown._flows[0] = PlugIn()
    assert key not in shown.find(as_time(NOW))
    assert not shown.judges(key), "it fails from the start: an alarm of before stays"
    fails.clear()
    assert key in shown.find(as_time(NOW))
    assert shown.judges(key)


def test_records_that_a_transaction_without_an_end_holds_back_are_named():
    """A reader of committed records is given nothing of one partition, while others go on."""
    clock = ManualClock(NOW)
    progress = Progress(SimpleNamespace(topic="ingest.summary"), keep=4.0, clock=clock)
    stream = StreamTotals()
    told = []
    for moves, connected in ((True, True), (False, False), (False, True)):
        for _ in range(60):
            clock.sleep(1.0)
            progress.next = {0: progress.next.get(0, 0) + moves, 1: progress.next.get(1, 0) + 1, 2: 7}
            progress.note_behind(progress.next, {0: 3, 1: 3, 2: 0}, is_connected=connected)
        told.append(progress.account.hanging)
    assert told == ["", "", "ingest.summary, partition 0: 3 records from offset 60 on are not given for 60 s"]
    assert progress.account.behind == 6
    stream.account.add(progress.account)
    shown = overview(streams={"ingest.summary": stream})
    health, (reason,) = shown.judge(shown.issues(as_time(NOW)))
    assert (health, reason) == ("DEGRADED", f"a transaction does not end: {told[-1]}")
    assert set(shown.find(as_time(NOW))) == {("transactionHanging", "sdp-facade/ingest.summary")}
    progress.note_behind({}, {0: 0}, is_connected=True)
    assert progress.account.hanging == ""


def test_admin_mode_moves_are_those_of_the_control_model():
    """Free within {NOT_FITTED, RESERVED, OFFLINE} and {OFFLINE, ENGINEERING, ONLINE}; OFFLINE is the bridge."""
    forbidden = {(a, b) for a, b in itertools.product(MODES, MODES) if not allowed(a, b)}
    out, use = {"NOT_FITTED", "RESERVED"}, {"ENGINEERING", "ONLINE"}
    assert forbidden == {*itertools.product(out, use), *itertools.product(use, out)}
    assert all(allowed("", mode) for mode in MODES), "from a mode that is lost"


def test_a_rate_is_that_of_full_seconds():
    meter = RateMeter()
    for tenth in range(30):
        meter.add(100_000_000 + tenth * 100_000, 50)
    assert meter.rate(103_000_000) == 500.0
    assert meter.rate(104_000_000) == 250.0, "it falls when nothing comes"
    assert meter.rate(110_000_000) == 0.0


def test_an_account_balances_and_says_by_how_much_it_does_not():
    account = RunningAccount()
    account.consumed = 5
    account.cover(OffsetRange("a", 10, 15, high_watermark=20))
    account.used, account.late = 2, 1
    account.settle(TOMBSTONE)
    assert account.balance == 1
    account.settle(RecordRejected("schema", "$.x", "no"))
    assert account.balance == 0
    entry = account.entry("0", "ingest.heaps", 3, 1)
    assert (entry.offset_from, entry.offset_to, entry.high_watermark) == (10, 15, 20)
    total = RunningAccount()
    total.add(entry)
    total.add(account)
    assert (total.consumed, total.balance, total.reasons["schema"]) == (10, 0, 2)


def test_racks_keep_neighbours_together():
    racks = Racks(50, 4)
    assert [racks.rack(n) for n in (0, 49, 50, 1499)] == [0, 0, 1, 29]
    assert racks.partitions_of(range(50)) == [0]
    assert racks.partitions_of(range(1500)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"SDP_INGEST_NODES": "abc"}, "SDP_INGEST_NODES.*nodes"),
        ({"SDP_INGEST_NODES": "0"}, "nodes: expected 1 to 10000, got 0"),
        ({"SDP_RACK_SIZE": "-1"}, "rack_size: expected at least 1"),
        ({"SDP_FACADE_CONFIG": "/does/not/exist"}, "cannot be read"),
    ],
)
def test_a_wrong_setting_is_named_with_its_origin(environment, complaint):
    with pytest.raises(ConfigError, match=complaint):
        load_settings(environment)


def test_a_file_is_overridden_by_the_environment(tmp_path):
    path = tmp_path / "sdp.toml"
    path.write_text('bootstrap = "a:1"\nnodes = 7\n[kafka]\n"sasl.password" = "hunter2"\n')
    settings = load_settings({"SDP_FACADE_CONFIG": str(path), "KAFKA_BOOTSTRAP": "b:2"})
    assert (settings.bootstrap, settings.nodes) == ("b:2", 7)
    assert settings.kafka == {"sasl.password": "hunter2"}


@pytest.mark.parametrize("content", ["nodes =", "node = 3\n", "nodes = 'x'"])
def test_a_wrong_file_is_named(tmp_path, content):
    path = tmp_path / "sdp.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"sdp\.toml"):
        load_settings({"SDP_FACADE_CONFIG": str(path)})


def test_secrets_are_in_no_text():
    """Design rule 14."""
    settings = Settings(kafka={"sasl.password": "hunter2"})
    assert "hunter2" not in f"{settings!r} {settings}"


def test_the_description_of_the_reasons_says_which_are_those_of_suppressed_records():
    """Those by which the flows of device servers and the workers suppress, as they stand in the code."""
    files = Path(facade.__file__).parent.rglob("*.py")
    sources = [file.read_text() for file in files if file.parent.name != "controller"]
    used = {reason for text in sources for reason in re.findall(r'Suppressed\("([a-z-]+)"\)', text)}
    (attribute,) = (one for one in load().classes["SdpBus"].attributes if one.name == "deadLetterReasons")
    (listed,) = re.findall(r"Suppressed records have the reasons ([a-z, -]+);", attribute.description)
    assert set(re.split(", | and ", listed)) == used


def test_the_number_of_a_scan_that_is_too_long_is_refused_as_any_value() -> None:
    """Not as a mistake of the program: Python reads no number of more than 4,300 digits."""
    states = DeviceStates(load(), {FIRST: "SdpSubarray"})
    states.listeners.append(Scans().take)
    message = StateMessage(device=FIRST, attribute="scanID", value="9" * 5000, time=Time(1), origin="c")
    refusal = states.take(message, Time(1))
    assert isinstance(refusal, RecordRejected)
    assert refusal.reason == "value"

"""Which process is missed: by tables of who gave signs of life, and who should."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from facade.flows.commands.composition import CommandsHealth
from facade.flows.commands.flow import Components
from facade.flows.overview.replicas import Replicas
from facade.kernel.clock import SECOND, ManualClock, as_time
from facade.kernel.config import Settings
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.kernel.manifest import manifests
from facade.kernel.reading import Quality, Reading
from facade.kernel.runtime.heartbeats import MOST_COMPONENTS, HeartbeatMessage, Heartbeats, SignOfLife, heartbeat_record
from facade.kernel.runtime.worker_process import FREE
from facade.sdp.complaints import complaints_of
from facade.sdp.messages import DeviceComplaint
from tests.support.command_line import walk
from tests.support.overview import (
    ICD,
    INSTANCES,
    NOW,
    WORKERS,
    health_of,
    heartbeat,
    issues_of,
    judgement_of,
    overview,
    signs_of_life,
)  # fmt: skip

BOTH = ("aggregate-0", "aggregate-1")


@pytest.mark.parametrize(
    ("lives", "health", "condition", "source", "text"),
    [
        *(
            ({"silent": (f"SdpFacade-{one}",)}, "DEGRADED", "serverGone", f"sdp-facade/{one}", f"device server {one} s")
            for one in INSTANCES
            if one != "control"  # which tells it
        ),
        (
            {"silent": BOTH[:1]},
            "DEGRADED",
            "workerSilent",
            "sdp-facade/aggregate-0",
            "worker aggregate-0 (sdp-facade a",
        ),
        (
            {"silent": BOTH},
            "FAILED",
            "workerGone",
            "sdp-facade",
            "no aggregate worker alive (sdp-facade aggregate): agg",
        ),
        ({"silent": BOTH[:1], "stopped": BOTH[1:]}, "FAILED", "workerGone", "sdp-facade", "no aggregate worker alive"),
        (
            {"silent": WORKERS[2:3]},
            "FAILED",
            "intakeGone",
            "sdp-facade",
            "no alerts-intake worker alive (sdp-facade al",
        ),
        ({"silent": WORKERS[3:4]}, "FAILED", "assemblerGone", "sdp-facade", "no tables-assemble worker alive"),
        ({"stopped": WORKERS[3:4]}, "FAILED", "assemblerGone", "sdp-facade", "no tables-assemble worker alive"),
        ({"silent": WORKERS[4:]}, "FAILED", "logsGone", "sdp-facade", "no logs-aggregate worker alive"),
        ({"stopped": ("SdpFacade-alerts",)}, "DEGRADED", "serverGone", "sdp-facade/alerts", "device server alerts was"),
    ],
)
def test_whoever_is_missing_is_named_and_raises_one_alarm(lives, health, condition, source, text):
    shown = overview(heartbeats=signs_of_life(**lives))
    found, (reason,) = health_of(shown)
    assert found == health
    assert reason.startswith(text)
    assert set(shown.find(as_time(NOW))) == {(condition, source)}
    assert shown.finds((condition, source))
    assert condition in load().conditions


def test_while_a_standby_takes_the_place_of_a_server_no_alarm_is_raised_unless_it_is_late():
    instances = (*INSTANCES, "alerts-standby")

    def found(*stopped, until):
        shown = overview(heartbeats=signs_of_life(stopped=stopped, instances=instances, until=until))
        health, (reason,) = health_of(shown)
        assert (health, reason.partition(" at ")[0]) == ("DEGRADED", "device server alerts was stopped")
        return set(shown.find(as_time(NOW)))

    gone = {("serverGone", "sdp-facade/alerts")}
    assert found("SdpFacade-alerts", until=NOW - 20) == set()
    assert found("SdpFacade-alerts", "SdpFacade-alerts-standby", until=NOW - 20) == gone
    assert found("SdpFacade-alerts", until=NOW) == gone, "30 s later"


def test_who_judges_is_not_missed_by_itself():
    """After a restart it reads the others' signs of life before its own, the last of which may be old."""
    assert health_of(overview(heartbeats=signs_of_life(silent=("SdpFacade-control",)))) == ("OK", ())
    assert health_of(overview(heartbeats=signs_of_life(unheard=("SdpFacade-control",)))) == ("OK", ())


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("alerts-notify-0", "alerts notify RULES.toml"),
        ("olog-0", "olog ADDRESS"),
        pytest.param("archive-run-1", "archive run FOLDER --slot 1", marks=pytest.mark.needs("facade.archive")),
    ],
)
def test_a_process_that_a_site_need_not_run_is_missed_once_it_was_heard_of(name, command):
    """Nobody learnt that no mail left any more: the notifier was killed, and nothing said so."""
    workers = (*WORKERS, name)
    shown = overview(heartbeats=signs_of_life(silent=(name,), workers=workers))
    health, (reason,) = health_of(shown)
    assert (health, reason.partition(" since ")[0]) == ("DEGRADED", f"process {name} silent")
    assert set(shown.find(as_time(NOW))) == {("workerSilent", f"sdp-facade/{name}")}
    assert issues_of(shown)[0]["response"].endswith(f"with its options: sdp-facade {command}.")
    role, _, _ = name.rpartition("-")
    for lives, without in (({"stopped": (name,)}, ""), ({"silent": (name,)}, role)):
        found = overview(heartbeats=signs_of_life(**lives, workers=workers), without=without)
        assert health_of(found) == ("OK", ())


def test_who_was_never_heard_of_is_named_at_once_and_an_alarm_later():
    shown = overview(heartbeats=signs_of_life(unheard=("SdpFacade-quality", "alerts-intake-0")))
    health, reasons = health_of(shown)
    assert health == "FAILED"
    assert [reason.endswith("was not heard of yet") for reason in reasons] == [True, True]
    assert shown.find(as_time(NOW)) == {}


def test_a_server_that_lives_and_gives_no_account_is_named():
    """The figures of what it reads are not of now: that of a server whose snapshots are refused, for example."""
    heartbeats = signs_of_life()
    accounts = {f"SdpFacade-{one}": round((NOW - 3) * 1e6) for one in INSTANCES}
    shown = overview(heartbeats=heartbeats, accounts_us=accounts, controllers=heartbeat(at=NOW + 60))
    assert health_of(shown) == ("OK", ())
    later = signs_of_life(until=NOW + 20)
    heartbeats.newest |= later.newest
    heartbeats._newest = later._newest
    accounts |= {name: round((NOW + 18) * 1e6) for name in accounts if not name.endswith("alerts")}
    health, reasons = health_of(shown, as_time(NOW + 20))
    assert health == "DEGRADED"
    assert [one.partition(" but ")[0] for one in reasons if "alive" in one] == ["device server alerts is alive"]


def test_what_a_deployment_does_without_is_not_missed():
    lives = signs_of_life(unheard=("SdpFacade-quality", "SdpFacade-ingest-00", "alerts-intake-0"))
    assert health_of(overview(heartbeats=lives, without="quality, ingest,alerts-intake")) == ("OK", ())
    with pytest.raises(ConfigError, match=r"without: expected roles of the ICD .*, got qualitty"):
        overview(without="qualitty")


def test_what_devices_say_of_themselves_reaches_the_overview():
    said = {"SdpFacade-calibration": [("mid-sdp/calibration/01", "state is ALARM: The solution t1 is no longer valid")]}
    health, reasons = health_of(overview(heartbeats=signs_of_life(complaints=said)))
    assert (health, reasons) == (
        "DEGRADED",
        tuple(f"{device}: {text}" for device, text in said["SdpFacade-calibration"]),
    )


@pytest.mark.parametrize(("obs_state", "health"), [("SCANNING", "DEGRADED"), ("READY", "OK")])
def test_what_is_wrong_only_while_a_subarray_scans_is_told_only_then(obs_state, health):
    subarray = "mid-sdp/subarray/01"
    said = {"SdpFacade-quality": [("mid-sdp/quality/01", "metrics have stopped: noiseBaseline", subarray)]}
    states = [(subarray, "obsState", obs_state, NOW - 60)]
    assert health_of(overview(heartbeats=signs_of_life(complaints=said), states=states))[0] == health


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ({"State": "ON", "Status": "The device is in ON state."}, None),
        ({"State": "ALARM", "Status": "The device is in ALARM state.\nBeyond."}, "state is ALARM: Beyond."),
        ({"State": "ON", "healthState": "OK", "healthInfo": ()}, None),
        ({"State": "ON", "healthState": "FAILED", "healthInfo": ("a", "b")}, "health is FAILED: a; b"),
        ({"State": "ALARM", "healthState": "UNKNOWN", "healthInfo": ("a",)}, None),
        ({"State": "ON", "flaggedFraction": 0.8}, "alarm limits are reached: flaggedFraction"),
        ({"State": "ALARM", "Status": "ALARM\nBeyond.", "flaggedFraction": 0.8}, "state is ALARM: Beyond."),
    ],
)
def test_a_device_complains_by_its_health_or_its_state_or_else_by_its_limits(shown, said):
    quality = {0.8: Quality.ALARM}
    readings = {name: Reading(value, NOW, quality.get(value, Quality.VALID)) for name, value in shown.items()}
    expected = [] if said is None else [DeviceComplaint("a/b/c", said, reasons=list(shown.get("healthInfo", ())))]
    assert complaints_of({"a/b/c": readings}) == expected
    assert [one.subarray for one in complaints_of({"a/b/c": readings}, lambda device: "s")] == ["s"] * len(expected)


def test_a_cause_that_several_devices_tell_of_is_one_reason():
    """Both subarrays told of the controller that SdpMaster had named."""
    silent = "controller a has been silent since 1970-01-01 00:15:40 UTC"
    device = "mid-sdp/subarray/01"
    said = {"SdpFacade-subarray": [(device, f"health is FAILED: {silent}", "", [silent])]}
    shown = overview(heartbeats=signs_of_life(complaints=said), controllers=heartbeat(at=NOW - 60))
    assert health_of(shown) == ("FAILED", (silent,))
    said["SdpFacade-subarray"] = [
        (device, f"health is FAILED: {silent}; obsState is FAULT", "", [silent, "obsState is FAULT"])
    ]
    shown = overview(heartbeats=signs_of_life(complaints=said), controllers=heartbeat(at=NOW - 60))
    assert len(health_of(shown)[1]) == 2


def test_the_device_of_the_alarms_is_no_reason_beside_them():
    """Status of SdpMaster told each alarm, and once more that SdpAlerts has alarms."""
    said = {"SdpFacade-alerts": [("mid-sdp/alerts/0", "state is ALARM: 1 alarm active", "", [])]}
    shown = overview(heartbeats=signs_of_life(complaints=said))
    assert health_of(shown)[0] == "DEGRADED"
    assert judgement_of(shown).findings == ()


def test_complaints_that_are_too_many_for_a_sign_of_life_are_counted_in_it():
    sent = []
    complaints = [DeviceComplaint(f"mid-sdp/ingest/{number:04d}", "health is FAILED") for number in range(30)]
    SignOfLife("ingest-00", "server", sent.append, ManualClock(), complaints=lambda: complaints).perform()
    said = msgspec.json.decode(sent[0].value)["complaints"]
    assert len(said) == 21
    assert said[-1]["text"].startswith("and 10 more complaints of devices of this server: mid-sdp/ingest/0020, ")
    assert said[-1]["text"].endswith("mid-sdp/ingest/0027 and 2 more")


def test_nobody_is_silent_while_the_bus_was_away_nor_right_after_it():
    heartbeats = Heartbeats()

    def beat(component, at):
        message = HeartbeatMessage(component=component, incarnation="1", devices=[], time=0, interval=1.0)
        heartbeats.fold(replace(heartbeat_record(message), timestamp_us=round(at * 1e6)), count=True)

    for second in range(10):
        beat("a", second)
        beat("b", second)
    assert heartbeats.can_tell
    beat("a", 60)  # the bus is back
    assert not heartbeats.can_tell
    assert heartbeats.alive("b")
    for second in range(61, 71):  # b may still wait for an answer from the broker that hung
        beat("a", second)
        assert not heartbeats.can_tell
        assert heartbeats.judged_at == as_time(9), "a controller is silent by this time too"
    beat("a", second := 71)
    assert heartbeats.can_tell
    assert heartbeats.judged_at == as_time(71)
    assert not heartbeats.alive("b")
    beat("b", second)
    assert heartbeats.alive("b")
    for second in range(12):  # the broker's clock was set back; b is dead
        assert heartbeats.alive("b")
        beat("a", second)
    assert not heartbeats.alive("b")


def test_after_a_take_over_an_alarm_stays_until_who_was_never_heard_of_is_missing_for_a_minute():
    """Otherwise each start would clear true alarms, and raise them again as news."""
    clock = ManualClock(NOW)
    lives = signs_of_life(unheard=("SdpFacade-mirror", "alerts-intake-0"), silent=("SdpFacade-logs",))
    shown = overview(heartbeats=lives, clock=clock)
    absent = {("serverGone", "sdp-facade/mirror"), ("intakeGone", "sdp-facade")}
    alive = {("serverGone", "sdp-facade/alerts"), ("workerGone", "sdp-facade"), ("workerSilent", "sdp-facade/x-1")}
    silent = {("serverGone", "sdp-facade/logs")}
    health_of(shown)
    assert set(shown.find(as_time(NOW))) == silent
    assert [*map(shown.judges, absent)] == [False, False]
    assert all(map(shown.judges, alive | silent))
    clock.sleep(60.0)
    assert set(shown.find(as_time(NOW))) == silent | absent
    assert all(map(shown.judges, absent | alive | silent))


@pytest.mark.parametrize(
    "key",
    [
        ("serverGone", "sdp-facade/alerts"),
        ("workerSilent", "sdp-facade/aggregate-0"),
        ("workerGone", "sdp-facade"),
        ("controllerSilent", "sdp-facade/a"),
        ("twoControllers", "sdp-facade"),
        ("streamSilent", "ingest/0001"),
        ("streamLagging", "sdp-facade/ingest.heaps"),
        ("deadLetters", "sdp-facade/ingest.heaps"),
        ("positionCorrected", "sdp-facade/ingest.heaps"),
        ("brokerMissing", "sdp-facade/broker-2"),
    ],
)
def test_what_is_in_no_list_yet_is_not_judged(key):
    """Heartbeats, accounts, summaries and the brokers' answers come one after the other after a start."""
    watch = SimpleNamespace(step=lambda topics: {})
    server = SimpleNamespace(icd=ICD, settings=Settings(), bus=SimpleNamespace(replica_watch=lambda: watch))
    replicas = Replicas(server, ICD.classes["SdpBus"], ("mid-sdp/bus/0",))
    shown = overview(heartbeats=Heartbeats())
    shown._flows = [*shown._flows, replicas]
    health_of(shown)
    assert shown.finds(key)
    assert key not in shown.find(as_time(NOW))
    assert not shown.judges(key)


def test_a_controller_is_not_silent_when_a_broker_is_back_and_no_heartbeat_was_read_yet():
    """A wall clock called each controller silent, until the first heartbeat had told of the outage."""
    shown = overview()
    later = as_time(NOW + 60)
    health_of(shown, later)
    assert ("controllerSilent", "sdp-facade/a") not in shown.find(later)


def test_a_server_without_an_account_is_not_missed_right_after_an_outage():
    """During the outage nobody could write one: each server was said to write none, with the advice to restart it."""
    lives = signs_of_life()
    shown = overview(heartbeats=lives, accounts_us={f"SdpFacade-{one}": as_time(NOW) for one in INSTANCES})
    health_of(shown)
    for at in (NOW + 30 + second for second in range(12)):
        for name in (*(f"SdpFacade-{one}" for one in INSTANCES), *WORKERS):
            beat = HeartbeatMessage(component=name, incarnation="1", devices=[], time=as_time(at), interval=1.0)
            lives.fold(replace(heartbeat_record(beat), timestamp_us=as_time(at)), count=True)
        said = [text for text in health_of(shown, as_time(at))[1] if "writes no account" in text]
        assert len(said) == len(INSTANCES) * lives.can_tell, (at, said)
    assert lives.can_tell


def test_a_controller_that_has_been_silent_for_longer_than_the_topic_keeps_heartbeats_is_not_judged():
    shown = overview()
    health_of(shown)
    assert shown.judges(("controllerSilent", "sdp-facade/a"))
    assert not shown.judges(("controllerSilent", "sdp-facade/b")), "nobody knows whether it has ended"


@pytest.mark.parametrize("silent", [(), BOTH[:1], BOTH])
@pytest.mark.parametrize("stopped", [(), BOTH[1:], BOTH])
def test_the_slot_of_a_running_worker_is_never_recommended_and_that_of_a_killed_one_always(silent, stopped):
    """Who followed the response to a lag took the slot of the worker that ran."""
    shown = overview(
        heartbeats=signs_of_life(silent=set(silent) - {*stopped}, stopped=stopped), lagging={"ingest.heaps": 10**9}
    )
    do = " ".join(one.get("response", "") for one in issues_of(shown))
    named = {f"aggregate-{slot}" for slot in re.findall(r"aggregate --slot (\S+?)[. ]", do + " ")}
    assert named == {*silent} - {*stopped}


def test_a_lag_is_that_of_its_readers():
    """The response advised another worker also where a device server was behind."""
    lags = {"ingest.heaps": 10**9, "ingest.summary": 10**9}
    shown = overview(lagging=lags)
    shown._workers.streams["ingest.heaps"] = shown._readers.streams.pop("ingest.heaps")
    heaps, summary = issues_of(shown)
    assert heaps["text"].endswith("; workers read it")
    assert heaps["response"].endswith("start one more worker: sdp-facade aggregate.")
    assert summary["text"].endswith("; read by the device server 0"), "the only reader of this account"
    assert summary["response"].endswith("more workers do not help.")


@pytest.mark.needs("facade.sdk")
@pytest.mark.parametrize("worker", [worker for one in manifests() for worker in one.workers], ids=lambda one: one.name)
def test_one_more_worker_is_advised_without_a_slot_and_finds_a_free_one(worker):
    """Who followed the response to a lag took the slot of the worker that ran."""
    given = next(option.default for option in dict(walk())[worker.start].params if option.name == "slot")
    assert given == FREE
    stream = sorted(worker.reads(["ingest.heaps"]))[0]
    shown = overview(lagging={stream: 10**9})
    shown._workers.streams[stream] = totals = shown._readers.streams.pop(stream)
    later = as_time(NOW) + 100 * SECOND  # of some streams only the seconds have a limit
    totals.backlogs["0"].note(later, 0, 10**9)
    (do,) = (one["response"] for one in issues_of(shown, later) if one.get("condition") == "streamLagging")
    assert do.endswith(f"start one more worker: sdp-facade {' '.join(worker.start)}.")


def hear(heartbeats: Heartbeats, lives: Mapping[str, Iterable[float]]) -> None:
    """Fold heartbeats of controllers, and of the server `srv`, at some times, in their order."""
    for at, name in sorted((at, name) for name, times in lives.items() for at in times):
        role = "server" if name == "srv" else "controller"
        beat = HeartbeatMessage(
            component=name, incarnation="1", devices=["mid-sdp/subarray/01"], time=0, interval=1.0, role=role
        )
        heartbeats.fold(replace(heartbeat_record(beat), timestamp_us=as_time(at)), count=True)


def controllers(lives: Mapping[str, Iterable[float]]) -> tuple[CommandsHealth, Heartbeats]:
    """Return the health of controllers, and the heartbeats of which it is made."""
    heartbeats, components = Heartbeats(), Components()
    heartbeats.listeners.append(components.fold)
    hear(heartbeats, lives)
    server = SimpleNamespace(
        share=lambda kind: components,
        heartbeats=lambda: heartbeats,
        devices_with_commands=list,
        has_read=lambda *topics: False,
        clock=ManualClock(),
    )
    return CommandsHealth(server), heartbeats


def test_of_names_that_are_new_at_each_start_the_longest_silent_is_forgotten():
    """Each pod of a controller stayed in the memory until a restart."""
    pods = [f"pod-{number}" for number in range(MOST_COMPONENTS)]
    heartbeats, components = Heartbeats(), Components()
    heartbeats.listeners.append(components.fold)
    hear(heartbeats, {"kept": (0, 2), **dict.fromkeys(pods, (3,)), pods[0]: (1,)})
    for kept in (heartbeats.newest, components.newest, components.heard):
        assert {*kept} == {"kept", *pods[1:]}


def test_a_controller_that_died_in_an_outage_is_no_rival_of_its_successor():
    """`twoControllers` told operators to stop one of two, of which one was dead."""
    for last in range(162, 180):
        srv = [*range(90, 100), *range(160, last)]
        found, _ = controllers({"a": range(90, 100), "b": range(161, last), "srv": srv})
        said = [one.alarm[0] for one in found.issues(as_time(last))]
        assert said == ["controllerSilent"] * (last > 171), last


def test_outages_that_recur_hide_nobody_who_died():
    """Each began the wait for all processes anew, so that a controller that died in the first one was never missed."""
    before, slices = range(100), [range(begin, begin + 9) for begin in range(115, 400, 15)]
    lives = {"a": [], "b": slices[0][:5], "srv": [at for one in slices for at in one]}
    lives["slow"] = [at for one in slices for at in one[7:]]  # it waits for answers of brokers that hung
    health, heartbeats = controllers(dict.fromkeys(lives, before))
    silent: dict[str, float] = {}
    missed: dict[str, float] = {}
    for last in lives["srv"]:
        hear(heartbeats, {name: [last] for name, times in lives.items() if last in times})
        for condition, source in (issue.alarm for issue in health.issues(as_time(last)) if issue.alarm):
            if condition == "controllerSilent":
                silent.setdefault(source.rpartition("/")[2], last)
        for name in lives:
            if not heartbeats.alive(name):
                missed.setdefault(name, last)
    assert silent == missed == {"a": 133, "b": 148}


def test_a_dead_controller_is_silent_although_the_clock_of_the_broker_was_set_back():
    """Its last heartbeat was in the future for an hour."""
    found, heartbeats = controllers({"a": range(3600, 3700), "srv": range(3600, 3700)})
    assert not [*found.issues(as_time(3700))]
    hear(heartbeats, {"srv": range(60)})
    assert [one.alarm[0] for one in found.issues(as_time(60))] == ["controllerSilent"]

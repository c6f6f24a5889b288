"""A disaster at scale, in one process: 500 of 1,500 nodes, a rack, a worker, a controller and a broker end together.

The overview finds the faults, the facade's own alerts tell them, and SdpAlerts shows the alarms: all over brokers in
memory, under one clock.
"""

import json
import random
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from facade.flows.alerts.messages import AlarmKey, decode_alert
from facade.flows.alerts.reporter import reporter
from facade.flows.alerts.suppression import Suppression
from facade.kernel.clock import as_time
from facade.kernel.config import Settings
from facade.kernel.runtime.flow import Fault, FaultKey
from facade.kernel.runtime.health_issues import DEGRADED, ORIGIN, HealthIssue, HealthSource
from facade.kernel.severities import ALARM, CRITICAL, WARNING
from tests.support.alerting import Bench
from tests.support.commanding import ICD
from tests.support.overview import INSTANCES, NOW, WORKERS, health_of, heartbeat, overview, signs_of_life
from tests.support.simulated_bus import MemoryBus

NODES, RACK = 1500, 50
RACKS = tuple(f"ingest-{number:02d}" for number in range(NODES // RACK))
SERVERS = (*(one for one in INSTANCES if one != "ingest-00"), *RACKS)


MORE = ("serverGone", "workerSilent", "controllerSilent", "brokerMissing")
"""What a rack's server, a worker, a controller and a broker are told by."""


SCANS = [("mid-sdp/subarray/01", *one, NOW - 60) for one in (("scanID", "1"), ("obsState", "SCANNING"))]


FINDS = overview().finds


class Brokers(HealthSource):
    conditions: ClassVar = {"brokerMissing": ORIGIN}

    def issues(self, now):
        yield HealthIssue(DEGRADED, "broker 2 is away", ("brokerMissing", f"{ORIGIN}/broker-2"), ALARM, of_bus=True)


class Deployment:
    """SdpAlerts, and what tells the faults that SdpMaster finds."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.alerts = self.bench.server()
        self.found = look(())
        self.start()

    def start(self) -> None:
        control: Any = SimpleNamespace(
            icd=ICD,
            settings=Settings(rack_size=RACK),
            clock=self.bench.clock,
            bus=MemoryBus(self.bench.broker),
            flows=[],
            periodic_tasks=[],
            find=lambda kind: None,
            share=lambda kind, make: make(),
            has_read=lambda *topics: True,
        )
        self.own = reporter(control, lambda now: self.found, self.finds, (), lambda key: True, "")
        (before,) = control.flows
        for record in self.bench.broker.read("alert-state"):
            before.fold(record, count=True)
        self.seconds(3)

    @staticmethod
    def finds(key: FaultKey) -> bool:
        return key[0] in Brokers.conditions or FINDS(key)

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.own.perform()
            self.alerts.cycle(1, seconds=1.0)

    def alarms(self, state: str = "", condition: str = "") -> list[dict[str, Any]]:
        found = json.loads(self.alerts.api.alarms())
        return [one for one in found if state in ("", one["state"]) and condition in ("", one["condition"])]

    def seen(self) -> set[str]:
        """Return the conditions that have asked for an acknowledgement at any time."""
        return {name for _, name, reading in self.alerts.sink.pushed if reading.value == "UNACK"}


def look(dead: Iterable[int], *, more: bool = False, host: Iterable[str] = ()) -> Mapping[FaultKey, Fault]:
    """Return what the overview finds; `host`: the components of one that is lost."""
    accounts = {f"SdpFacade-{one}": 10**15 for one in SERVERS}
    silent = (f"SdpFacade-{RACKS[7]}", WORKERS[0]) if more else tuple(host)
    shown = overview(
        nodes=NODES,
        rack_size=RACK,
        reporting=set(range(NODES)) - set(dead),
        accounts_us=accounts,
        heartbeats=signs_of_life(silent=silent, instances=SERVERS, incarnation="900.000-sdp-2-0b1c"),
        controllers=heartbeat(at=NOW - 60 if more else NOW),
        states=SCANS,
    )
    if more:
        shown._flows.append(Brokers())
    health_of(shown)
    return shown.find(as_time(NOW))


def nodes(*numbers: int) -> set[str]:
    return {f"ingest/{number:04d}" for number in numbers}


DEAD = {
    "ten racks": [*range(500)],
    "every third node": [*range(0, NODES, 3)],
    "nodes here and there": random.Random(35).sample(range(NODES), 500),
    "all": [*range(NODES)],
}


@pytest.mark.parametrize("dead", [pytest.param(dead, id=name) for name, dead in DEAD.items()])
def test_a_disaster_is_at_most_ten_alarms_in_ten_minutes_and_none_is_lost(dead: list[int]) -> None:
    site = Deployment()
    site.found = look({*dead, *range(350, 400)}, more=True)
    site.seconds(50)
    site.bench.clock.sleep(540)
    site.seconds(5)
    silent = {source for condition, source in site.found if condition == "streamSilent"}
    assert silent == nodes(*dead, *range(350, 400))
    racks = site.alarms("DSUPR", "rackSilent")
    assert site.alerts.shows("newAlarms") == 5
    assert not site.alerts.shows("flood")
    told = [json.loads(one)["condition"] for one in site.alerts.shows("activeAlerts")]
    assert sorted(told) == sorted(["ingestSilent", *MORE])
    on_the_log = [decode_alert(one.value).condition for one in site.bench.broker.read("alerts")]
    assert on_the_log[: len(racks) + 1] == ["ingestSilent", *["rackSilent"] * len(racks)]
    assert site.seen() & {"streamSilent", "rackSilent"} == set(), "the cause came first"
    explained = {one["source"]: one["suppressed_by"] for one in site.alarms("DSUPR", "streamSilent")}
    assert explained.keys() == silent, "each one is listed"
    assert all(cause.startswith(("rackSilent@ingest/rack-", "ingestSilent@")) for cause in explained.values())
    raised = len(site.alarms())
    assert raised == len(site.found) + len(racks) + 1
    assert site.alerts.shows("activeCount") + site.alerts.shows("suppressedCount") == raised


def test_what_is_still_wrong_when_the_cause_ends_is_told_and_the_rest_asks_nobody() -> None:
    site = Deployment()
    site.found = look(range(500))
    site.seconds(60)
    site.found = look([7, 400, 401, 402, 403])
    site.seconds(60)
    assert {(one["condition"], one["source"], one["state"]) for one in site.alarms()} == {
        ("ingestSilent", "ingest/all", "RTNUN"),
        ("rackSilent", "ingest/rack-08", "UNACK"),
        ("streamSilent", "ingest/0007", "UNACK"),
        *(("streamSilent", source, "DSUPR") for source in nodes(400, 401, 402, 403)),
    }
    assert site.alerts.shows("newAlarms") == 3


@pytest.mark.parametrize(
    ("source", "places"),
    [
        ("ingest/0399", [("rackSilent", "ingest/rack-07"), ("ingestSilent", "ingest/all")]),
        ("sdp-facade/ingest-07", [("rackSilent", "ingest/rack-07"), ("ingestSilent", "ingest/all")]),
        ("ingest/all", [("ingestSilent", "ingest/all")]),
        ("ingest/0399/x", []),
        ("pipeline/7", []),
    ],
)
def test_a_source_lies_in_the_places_that_follow_from_its_number(source: str, places: list[AlarmKey]) -> None:
    conditions = {
        "hot": replace(ICD.conditions["deadLetters"], suppressed_by=("rackSilent@rack", "ingestSilent@ingest"))
    }
    assert [*Suppression(conditions, ICD.locations, RACK).causes(("hot", source))] == places


def test_a_lost_host_is_one_alarm_which_names_its_processes_and_three_processes_are_three() -> None:
    site, servers = Deployment(), [f"SdpFacade-{rack}" for rack in RACKS[:15]]
    site.found = look((), host=servers[:1])  # its signs of life do not end at the same moment
    site.seconds(2)
    site.found = look((), host=[*servers, WORKERS[0]])
    site.seconds(20)
    (host,) = site.alarms("UNACK")
    assert (host["condition"], host["source"]) == ("processesGone", "all")
    assert host["text"].startswith("15 serverGone, 1 workerSilent: sdp-facade/ingest-00, ")
    assert host["text"].endswith(", ...; hosts: sdp-2 (16)")
    assert (site.alerts.shows("suppressedCount"), site.alerts.shows("newAlarms")) == (16, 1)
    site.start()  # what told it is killed as well
    site.found = look((), host=servers[:3])
    site.seconds(20)
    assert site.alerts.state("processesGone", "all") == "RTNUN"
    assert {one["source"] for one in site.alarms("UNACK")} == {f"sdp-facade/{rack}" for rack in RACKS[:3]}
    site.found = look((), host=servers[:4])
    site.seconds(20)
    assert [one["condition"] for one in site.alarms("UNACK")] == ["processesGone"], "from four on they are one"


def test_an_acknowledged_loss_of_processes_asks_again_with_each_further_one() -> None:
    site, servers = Deployment(), [f"SdpFacade-{rack}" for rack in RACKS[:15]]
    site.found = look((), host=servers)
    site.seconds(20)
    site.alerts.acknowledge("processesGone", "all")
    site.found = look((), host=[*servers, "SdpFacade-subarray"])
    site.seconds(20)
    assert site.alerts.state("processesGone", "all") == "UNACK", "it may be the server that TM commands"


def test_one_rack_is_one_alarm_and_three_nodes_of_it_are_three() -> None:
    site = Deployment()
    site.found = look([50, 51, 52])
    site.seconds(20)
    assert {one["source"] for one in site.alarms("UNACK")} == nodes(50, 51, 52)
    site.found = look(range(50, 100))
    site.seconds(20)
    (rack,) = site.alarms("UNACK")
    assert (rack["condition"], rack["source"]) == ("rackSilent", "ingest/rack-01")
    assert rack["text"].startswith("50 streamSilent: ingest/0050, ingest/0051, ")
    assert site.alerts.shows("suppressedCount") == 50


def test_an_acknowledged_cause_asks_again_when_it_explains_many_more() -> None:
    site = Deployment()
    site.found = look(range(0, 300, 50))
    site.seconds(20)
    site.alerts.acknowledge("ingestSilent", "ingest/all")
    site.found = look([*range(0, 300, 50), 1, 51])
    site.seconds(20)
    assert site.alerts.state("ingestSilent", "ingest/all") == "ACKED", "8 of 6 are no news"
    site.bench.clock.sleep(3600)
    site.found = look(range(1006))
    site.seconds(20)
    assert site.alerts.state("ingestSilent", "ingest/all") == "UNACK"
    assert site.alerts.shows("newAlarms") == 1


def test_restarts_in_the_middle_raise_nothing_again_and_clear_it_later() -> None:
    site = Deployment()
    site.found = look(range(500), more=True)
    site.seconds(60)
    before = site.alarms()
    site.start()
    site.alerts = site.bench.server()
    site.seconds(60)
    assert [(one["condition"], one["source"], one["state"], one["raised"]) for one in site.alarms()] == [
        (one["condition"], one["source"], one["state"], one["raised"]) for one in before
    ]
    assert site.alerts.shows("newAlarms") == 0, "operators have been told"
    site.found = look(())
    site.seconds(60)
    assert {(one["condition"], one["state"]) for one in site.alarms()} == {
        (condition, "RTNUN") for condition in ("ingestSilent", *MORE)
    }


def lags(*topics: str) -> dict[FaultKey, Fault]:
    return {("streamLagging", f"{ORIGIN}/{topic}"): Fault(f"{topic} lags", WARNING) for topic in topics}


LATE: FaultKey = ("streamLate", "ingest/0001")


@pytest.mark.parametrize(
    ("cause", "explained", "others"),
    [
        (("serverGone", f"{ORIGIN}/{RACKS[0]}"), lags("ingest.summary", "telemetry.summary"), lags("ingest.heaps")),
        (("serverGone", f"{ORIGIN}/quality"), lags("quality"), lags("ingest.summary", "alerts")),
        (("workerGone", ORIGIN), lags("ingest.heaps"), lags("ingest.summary", "logs")),
        (("workerSilent", f"{ORIGIN}/aggregate-1"), lags("ingest.heaps"), lags("ingest.summary", "logs")),
        (("workerSilent", f"{ORIGIN}/logs-aggregate-0"), lags("logs"), lags("ingest.heaps")),
        (("logsGone", ORIGIN), lags("logs"), lags("ingest.heaps")),
        *((key, {LATE: Fault("late", ALARM)}, {}) for key in lags("ingest.heaps")),
        *((key, {}, {LATE: Fault("late", ALARM)}) for key in lags("quality")),
        (("streamsLagging", "all"), lags("alerts", "quality", "logs"), {}),
    ],
)
def test_an_alarm_suppresses_its_effects_on_the_same_stream(
    cause: FaultKey, explained: Mapping[FaultKey, Fault], others: Mapping[FaultKey, Fault]
) -> None:
    site = Deployment()
    gathered = cause[0] == "streamsLagging"  # which the facade raises itself
    site.found = {**({} if gathered else {cause: Fault("the cause", CRITICAL)}), **explained, **others}
    site.finds = lambda key: True  # type: ignore[method-assign]
    site.seconds(40)
    shown = {(one["condition"], one["source"]): one["state"] for one in site.alarms()}
    assert {key for key, state in shown.items() if state == "DSUPR"} == {*explained}
    assert {key for key, state in shown.items() if state == "UNACK"} == {cause, *others}


@pytest.mark.parametrize(("ill", "told"), [(5, "nodeDegraded"), (6, "ingestDegraded"), (1500, "ingestDegraded")])
def test_nodes_beyond_their_limits_are_one_alarm_where_they_are_many(ill: int, told: str) -> None:
    site = Deployment()
    site.found = {("nodeDegraded", source): Fault("packets are lost", ALARM) for source in nodes(*range(ill))}
    site.finds = lambda key: True  # type: ignore[method-assign]
    site.seconds(40)
    assert {one["condition"] for one in site.alarms("UNACK")} == {told}


def test_after_an_outage_of_the_brokers_one_alarm_stands_that_explains_the_others() -> None:
    site = Deployment()
    late = {("streamLate", source): Fault("late", ALARM) for source in nodes(*range(20))}
    site.found = {**lags("ingest.heaps", "ingest.summary", "telemetry.summary", "logs"), **late}
    site.seconds(40)
    assert [one["condition"] for one in site.alarms("UNACK")] == ["streamsLagging"]
    assert site.seen() == {"streamsLagging"}
    site.start()  # what told it is killed as well
    site.found = late  # the records that waited are counted for some seconds more
    site.seconds(10)
    site.found = {}
    site.seconds(40)
    assert site.seen() == {"streamsLagging"}
    assert site.alerts.state("streamsLagging", "all") == "RTNUN"

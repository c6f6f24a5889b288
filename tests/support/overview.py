"""The overview with everything that can be wrong about SDP, without a bus."""

from dataclasses import replace
from types import SimpleNamespace

from facade.flows.commands.composition import CommandsHealth
from facade.flows.commands.flow import Components
from facade.flows.overview.presence import Presence
from facade.flows.overview.views import Overview
from facade.flows.telemetry.composition import Telemetry, TelemetryHealth
from facade.flows.telemetry.plan import plans
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import ManualClock, as_time
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.outcome import USED
from facade.kernel.runtime.heartbeats import HeartbeatMessage, Heartbeats, heartbeat_record
from facade.kernel.windows.totals import Totals
from facade.sdp.device_state import DeviceStates, StateMessage
from facade.sdp.messages import DeviceComplaint
from facade.sdp.stream_accounts import Backlog, StreamTotals, WorkerAccounts

NOW = 1000.0
MASTER = "mid-sdp/control/0"
ICD = load()
INSTANCES = ("alerts", "calibration", "control", "ingest-00", "logs", "mirror", "quality", "subarray")
WORKERS = ("aggregate-0", "aggregate-1", "alerts-intake-0", "tables-assemble-0", "logs-aggregate-0")


def signs_of_life(
    silent=(), stopped=(), unheard=(), complaints=None, until=NOW, instances=INSTANCES, workers=WORKERS, incarnation="1"
):
    """Return signs of life of a whole facade, in which some have fallen silent, said goodbye, or never spoken."""
    made = Heartbeats()
    names = {f"SdpFacade-{one}": "server" for one in instances} | dict.fromkeys(workers, "worker")
    for at in range(round(NOW) - 60, round(until) + 1):
        for name, role in names.items():
            if name in unheard or (name in {*silent, *stopped} and at > NOW - 30):
                continue
            beat = HeartbeatMessage(
                component=name,
                incarnation=incarnation,
                devices=[],
                time=at * 1_000_000,
                interval=1.0,
                role=role,
                stopping=name in stopped and at == NOW - 30,
                complaints=[DeviceComplaint(*one) for one in (complaints or {}).get(name, ())],
            )
            assert made.fold(replace(heartbeat_record(beat), timestamp_us=at * 1_000_000), count=True) is USED
    return made


def heartbeat(devices=(MASTER,), at=NOW, name="a"):
    """Return what is kept of a controller's sign of life."""
    beat = SimpleNamespace(
        component=name,
        role="controller",
        devices=tuple(devices),
        stopping=False,
        group="",
        incarnation="1",
        version="1",
    )
    return {name: (beat, as_time(at))}


def overview(
    *, connected=True, bus_error="", nodes=4, reporting=None, controllers=None, unbalanced=(), lagging=(),
    streams=None, accounts_us=None, heartbeats=None, without="", scan=1, states=(), still=(), rack_size=0,
    clock=None, excesses=(),
):  # fmt: skip
    """Return an overview in which all is well but for what is said."""
    accounts = WorkerAccounts()
    found = dict(streams or {})
    for name in (*unbalanced, *dict(lagging)):
        found[name] = StreamTotals()
        found[name].account.consumed = int(name in unbalanced)
        found[name].backlogs["0"] = backlog = Backlog()
        backlog.note(as_time(NOW), 0, dict(lagging).get(name, 0))
    components = Components()
    components.newest = heartbeat() if controllers is None else controllers
    components.heard = {*components.newest}
    heard = frozenset(range(nodes) if reporting is None else reporting)
    totals = Totals(nodes)
    totals.epoch[:], totals.heard[:] = scan, as_time(NOW)
    ledger = SimpleNamespace(
        plan=plans(ICD)["ingest.heaps"],
        expected=frozenset(range(nodes)),
        groups=range(nodes),
        number=int,
        totals=totals,
        standing_still=lambda now, group=None: [one for one in still if one[1].read_to < read_until(now)],
        is_silent=lambda group, within: True,
        read_to=lambda group=None: server.clock.now_us(),
    )

    def read_until(now):
        """Return up to which time workers that do not stand still have read [us]."""
        return ledger.plan.rule.newest_close(now - 1_500_000)

    telemetry = SimpleNamespace(
        over_all=lambda: [(ledger, heard)],
        ledgers=lambda: [ledger],
        totals=totals,
        excesses=SimpleNamespace(complaints=lambda: excesses),
    )
    states_shown = DeviceStates(ICD, {})
    shared = {Components: components, Telemetry: telemetry, DeviceStates: states_shown}
    server = SimpleNamespace(
        icd=ICD,
        settings=Settings(nodes=nodes, rack_size=rack_size or nodes, without=without),
        devices={"SdpMaster": [MASTER]},
        instance="SdpFacade-control",
        clock=clock or ManualClock(NOW),
        heartbeats=lambda: heartbeats or signs_of_life(),
        share=lambda kind, make=None: shared.setdefault(kind, shared.get(kind) or kind()),
        find=shared.get,
        has_read=lambda *topics: True,
        devices_with_commands=lambda: [MASTER],
        metrics=[],
    )
    bus = BusHealth(connected=connected, last_error=bus_error)
    readers = SimpleNamespace(streams=found)
    flows = [
        Presence(server, accounts_us or {f"SdpFacade-{one}": 10**15 for one in INSTANCES}),
        TelemetryHealth(server),
        CommandsHealth(server),
    ]
    for device, attribute, value, time in states:
        time_us = as_time(time)
        states_shown.take(StateMessage(device=device, attribute=attribute, value=value, time=time_us, origin="c"), 0)
    return Overview(ICD, bus, accounts, readers, flows)


def health_of(shown, now=None):
    """Return healthState and its reasons at a time."""
    return shown.judge(shown.issues(as_time(NOW) if now is None else now))


def issues_of(shown, now=None):
    """Return healthIssues at a time."""
    return shown.issues_as_dicts(shown.issues(as_time(NOW) if now is None else now))


def judgement_of(shown):
    """Return what a person should know and do."""
    return shown.judgement(health_of(shown)[0], issues_of(shown))

"""The overview with everything that can be wrong about SDP, without a bus."""

from types import SimpleNamespace

from facade.bus.port import BusHealth
from facade.config import Settings
from facade.flows.commands.composition import CommandsHealth
from facade.flows.commands.flow import Components
from facade.flows.overview.health import Overview
from facade.flows.telemetry.composition import Telemetry, TelemetryHealth
from facade.icd.load import load
from facade.runtime.stream_accounts import WorkerAccounts

NOW = 1000.0
MASTER = "mid-sdp/control/0"
ICD = load()


def heartbeat(devices=(MASTER,), at=NOW):
    """Return what is kept of a controller's sign of life."""
    beat = SimpleNamespace(component="a", role="controller", devices=tuple(devices), stopping=False, version="1")
    return {"a": (beat, at)}


def overview(
    *, connected=True, bus_error="", workers=2, nodes=4, reporting=None, controllers=None, unbalanced=(), lagging=(),
    streams=None,
):  # fmt: skip
    """Return an overview in which all is well but for what is said."""
    accounts = WorkerAccounts()
    for worker in range(workers):
        accounts._workers["ingest.heaps", str(worker)] = NOW
    found = dict(streams or {})
    for name in (*unbalanced, *dict(lagging)):
        account = SimpleNamespace(balance=int(name in unbalanced), dead_lettered=0, last_error="")
        found[name] = SimpleNamespace(account=account, lag=dict(lagging).get(name, 0))
    components = Components()
    components.newest = heartbeat() if controllers is None else controllers
    heard = frozenset(range(nodes) if reporting is None else reporting)
    telemetry = SimpleNamespace(reporting=lambda topic: heard)
    shared = {WorkerAccounts: accounts, Components: components, Telemetry: telemetry}
    server = SimpleNamespace(
        icd=ICD,
        settings=Settings(nodes=nodes),
        devices={},
        clock=SimpleNamespace(now=lambda: NOW),
        share=lambda kind, make=None: shared[kind],
        has_read=lambda *topics: True,
        devices_with_commands=lambda: [MASTER],
    )
    bus = BusHealth(connected=connected, last_error=bus_error)
    readers = SimpleNamespace(streams=found)
    return Overview(ICD.classes["SdpBus"], bus, accounts, readers, [TelemetryHealth(server), CommandsHealth(server)])

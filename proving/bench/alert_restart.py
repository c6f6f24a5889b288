"""How soon all alarms are back after the device server was killed."""

import json

import tango

from facade.bus.kafka.producer import KafkaStreamWriter
from facade.bus.port import BusHealth
from facade.errors import InfraError
from facade.flows.alerts.messages import ALERTS, Alert, alert_record
from proving.bench.hop_roles import ALERTS as DEVICE
from proving.bench.load import NODES
from proving.bench.report import Outcome, Verdict
from proving.deployment import Deployment
from proving.testbed import Testbed

ALARMS = 10_000
BAR = 5.0
"""From the start of the process until a client is given all alarms [s]."""
_INSTANCE = "alerts"
_SNAPSHOT = 3.0
"""So that a snapshot stands after the last alert, as in a quiet hour [s]."""


def alert_restart(testbed: Testbed, *, quick: bool) -> Outcome:
    """Kill the device server with ten thousand retained alarms and start it again."""
    took, progress = [], testbed.progress
    with testbed.system("alert-restart", nodes=NODES) as running:
        _raise(running)
        progress.demand(lambda: _retained(running) == ALARMS, 60.0, f"{ALARMS:,} alarms")
        for _ in range(2 if quick else 5):
            progress.wait(_SNAPSHOT, "at rest")
            running.processes.kill(_INSTANCE)
            began = progress.clock.monotonic()
            running.processes.start_again(_INSTANCE)
            progress.demand(lambda: _retained(running) == ALARMS, 60.0, "all alarms are back")
            took.append(progress.clock.monotonic() - began)
    found = f"{max(took):.2f} s, the longest of {len(took)}"
    return Outcome(
        name="alert-restart",
        what=f"kill -9 with {ALARMS:,} retained alarms -> a client is given all of them again",
        how=("from the start of the new process, its Python, PyTango and its registration in the database included",),
        verdicts=(Verdict(what="until all are back", bar=f"< {BAR:g} s", found=found, reached=max(took) < BAR),),
        figures={"seconds": took},
    )


def _raise(running: Deployment) -> None:
    writer = KafkaStreamWriter(running.connection, health=BusHealth(), client="bench-alerts")
    now_us = round(running.clock.now() * 1e6)
    records = [
        alert_record(
            Alert(
                condition=f"bench{number % 20}",
                source=f"source/{number:05d}",
                severity="WARNING",
                state="ACTIVE",
                text="expected nothing, found something",
                raised_at=now_us,
                sequence=1,
            )
        )
        for number in range(ALARMS)
    ]
    writer.send_many(ALERTS, [record.key for record in records], [record.value for record in records])
    if not writer.flush(30.0) or writer.failed:
        raise InfraError(f"{ALARMS:,} alerts were not delivered")


def _retained(running: Deployment) -> int:
    running.processes.check()
    try:
        proxy = running.proxy(DEVICE)
        if proxy.state() == tango.DevState.UNKNOWN:
            return 0
        return len(json.loads(proxy.command_inout("GetAlarms")))
    except tango.DevFailed:
        return 0

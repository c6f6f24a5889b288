"""How soon all alarms are back after the device server was killed."""

import json
import sys

import tango

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.writer import KafkaStreamWriter
from facade.bus.port import BusHealth
from facade.flows.alerts.messages import ALERTS, Alert, alert_record
from proving.bench.alert_roles import DEVICE
from proving.bench.deployment import SERVER_PROGRAM, Deployment, deployment
from proving.bench.report import Outcome, Verdict
from proving.testbed import BenchError, Stage

ALARMS = 10_000
BAR = 5.0
"""From the start of the process until a client is given all alarms [s]."""
_INSTANCE = "alerts"
_SNAPSHOT = 3.0
"""So that a snapshot stands after the last alert, as in a quiet hour [s]."""


def alert_restart(stage: Stage, *, quick: bool) -> Outcome:
    """Kill the device server with ten thousand retained alarms and start it again."""
    took = []
    with deployment(stage, stage.settings("alert-restart", nodes=1)) as running:
        _raise(running)
        stage.until(lambda: _retained(running) == ALARMS, f"{ALARMS:,} alarms", 60.0)
        for _ in range(2 if quick else 5):
            stage.watch(_SNAPSHOT, "at rest")
            running.processes[_INSTANCE].kill()
            began = stage.clock.monotonic()
            process = stage.start(_INSTANCE, [sys.executable, "-c", SERVER_PROGRAM, _INSTANCE], running.settings)
            running.processes[_INSTANCE] = process
            stage.until(lambda: _retained(running) == ALARMS, "all alarms are back", 60.0)
            took.append(stage.clock.monotonic() - began)
    found = f"{max(took):.2f} s, the longest of {len(took)}"
    return Outcome(
        name="alert-restart",
        what=f"kill -9 with {ALARMS:,} retained alarms -> a client is given all of them again",
        how=("from the start of the new process, its Python, PyTango and its registration in the database included",),
        verdicts=(Verdict(what="until all are back", bar=f"< {BAR:g} s", found=found, reached=max(took) < BAR),),
        figures={"seconds": took},
    )


def _raise(running: Deployment) -> None:
    clock = running.stage.clock
    writer = KafkaStreamWriter(Connection(running.settings, clock=clock), health=BusHealth(), client="bench-alerts")
    now_us = round(clock.now() * 1e6)
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
        raise BenchError(f"{ALARMS:,} alerts were not delivered")


def _retained(running: Deployment) -> int:
    running.require_all()
    try:
        # A proxy of its own each time: one that has failed waits before it tries again.
        proxy = tango.DeviceProxy(f"tango://{running.stage.tango_host}/{DEVICE}")
        if proxy.state() == tango.DevState.UNKNOWN:
            return 0
        return len(json.loads(proxy.command_inout("GetAlarms")))
    except tango.DevFailed:
        return 0

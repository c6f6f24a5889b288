"""docker/cluster.yaml: it refuses clients without a right, and loses nothing while a broker is away."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tango

from facade.admin.cluster import find_cluster
from facade.admin.quotas import name_of
from facade.flows.telemetry.simulator.ingest import read_report
from facade.infra import tools
from facade.infra.security import ADMINISTRATOR
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.config import load_settings
from facade.kernel.errors import BusError, InfraError
from sdp_facade_lab.containers.images import podman
from sdp_facade_lab.containers.project import Phases, Project, drive
from sdp_facade_lab.progress import ProgressLine

_PROGRAM: Final = str(Path(sys.executable).with_name("sdp-facade"))
_SENDER: Final = name_of("ingest-node")
_LOST: Final = "kafka-2"
_RATE: Final = 500
"""[heaps/s]"""
_WITHIN_S: Final = 300.0
"""Longest wait [s]; it is no judgement of pace, only the sign of a hang."""
_UNANSWERED_S: Final = 5.0
"""Brokers that have just answered others give a stranger no answer within this time [s]."""


def run(project: Project, progress: ProgressLine, phases: Phases, folder: Path) -> None:
    """Try forbidden acts; then observe while a broker is away and heaps come, and count them when it is back."""
    phases.begin("refusals")
    _check_refusals(project, progress)
    report = folder / "sent.json"
    argv = [_PROGRAM, "simulate", "ingest", "--rate", str(_RATE), "--report", str(report)]

    def lose() -> None:
        phases.begin("a broker away")
        podman("kill", project.container(_LOST))  # podman does not start it again
        progress.demand(lambda: _shown(project, "brokersMissing") == [1], _WITHIN_S, "brokersMissing of SdpBus")
        progress.step(f"{_LOST}: killed; SdpBus misses a broker")

    with (folder / "sender.log").open("w") as log:
        sender = subprocess.Popen(argv, env=project.logged_in(_SENDER), stdout=log, stderr=log)
    try:
        phases.begin("observation")
        drive(project, progress, folder, lose)
        phases.begin("return of the broker")
        project.start(_LOST)
        project.await_healthy([_LOST])
        in_sync = ("brokersMissing", "underReplicatedPartitions", "offlinePartitions")
        progress.demand(lambda: _shown(project, *in_sync) == [0, 0, 0], _WITHIN_S, "replicas in sync")
        progress.step(f"{_LOST}: started again; all replicas are in sync")
    finally:
        sender.terminate()
        sender.wait()
    phases.begin("account")
    sent = read_report(report).sent
    if sender.returncode or not sent:
        raise InfraError(f"sending heaps: exit code {sender.returncode}:\n{tools.tail_of(folder / 'sender.log')}")

    def all_are_there() -> bool:
        consumed, *outcomes = _shown(project, *(f"ingestHeaps{one}" for one in ("Consumed", "Used", "Late")))
        return consumed == sum(outcomes) == sent

    progress.demand(all_are_there, _WITHIN_S, f"an account of {sent:,} heaps")
    progress.step(f"{sent:,} heaps were sent meanwhile; SdpBus accounts for each of them once")


def _check_refusals(project: Project, progress: ProgressLine) -> None:
    rights = [_PROGRAM, "rights", "check", "--group", "controller=simulated-controller"]
    said = tools.run(rights, what="comparing the rights", env=project.logged_in(ADMINISTRATOR))
    progress.step(f"administrator: {said.splitlines()[-1]}")
    settings = load_settings(project.logged_in(_SENDER))
    login = settings.kafka
    strangers: Mapping[str, Mapping[str, str]] = {
        "without TLS": {},
        "without a login": {"security.protocol": "SSL", "ssl.ca.pem": login["ssl.ca.pem"]},
        "with a wrong password": {**login, "sasl.password": "guessed"},
    }
    if find_cluster(settings.bootstrap, _WITHIN_S, login) is None:
        raise InfraError(f"expected an answer of the brokers to {_SENDER}, got none")
    for what, tried in strangers.items():
        if find_cluster(settings.bootstrap, _UNANSWERED_S, tried) is not None:
            raise InfraError(f"expected no answer of the brokers to a client {what}, got one")
        progress.step(f"a client {what} gets no answer")
    writer = KafkaWriter(Connection(settings), health=BusHealth(), client="containers")
    try:
        writer.send_durably(Record(topic="commands", key=None, value=b"{}"), _WITHIN_S)
    except BusError as error:
        if "authorization failed" not in str(error):
            raise
        progress.step(f"{_SENDER} writes a command: {error}")
    else:
        raise InfraError(f"expected that {_SENDER} may write no command, but it did")
    finally:
        writer.close(_WITHIN_S)


def _shown(project: Project, *names: str) -> list[Any]:
    """Return attributes of SdpBus; none: it does not answer."""
    try:
        proxy = tango.DeviceProxy(f"tango://{project.outside['TANGO_HOST']}/mid-sdp/bus/0")
        return [one.value for one in proxy.read_attributes(names)]
    except tango.DevFailed:
        return [None] * len(names)

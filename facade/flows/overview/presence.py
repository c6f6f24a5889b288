"""Which processes of the facade are alive, and which of them should be."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from facade.errors import ConfigError
from facade.icd.check_roles import instance_role
from facade.instances import devices_of
from facade.manifest import Worker, manifests
from facade.reading import Value
from facade.runtime.composition import Server
from facade.runtime.flow import Fault, FaultKey
from facade.runtime.health import ORIGIN, Complaint
from facade.runtime.heartbeats import TOPIC

_SERVER, _WORKER = "serverGone", "workerSilent"
_NEVER_STARTED = 60.0
"""Who was never heard of is an alarm only after so long [s]: not everything is started at once."""


class _Row(NamedTuple):
    """Somebody who is missing."""

    complaint: Complaint
    alarm: FaultKey
    severity: str
    """Of the alarm."""
    heard: bool = True
    """Whether anything was heard of them."""


class Presence:
    """Health: device servers of the deployment, and workers; see `facade.runtime.health.Health`.

    Expected are each device-server instance that the deployment has, one worker of each kind at least, and whatever
    worker was heard of within the retention of the signs of life and did not say goodbye.

    Raises
    ------
    ConfigError
        The setting `without` names something that is no role of the ICD.
    """

    def __init__(self, server: Server) -> None:
        icd, settings = server.icd, server.settings
        without = {name.strip() for name in settings.without.split(",")} - {""}
        if odd := without - icd.roles.keys():
            known = ", ".join(sorted(icd.roles))
            raise ConfigError(f"settings: without: expected roles of the ICD ({known}), got {', '.join(sorted(odd))}")
        self._server, self._heartbeats = server, server.heartbeats()
        self._within = icd.topics[TOPIC].retention or 0.0
        own = next(icd.classes[name].instance for name in server.devices)
        self._prefix = server.instance.removesuffix(own)
        self._instances = sorted(
            instance
            for one in icd.classes.values()
            if instance_role(one.instance) not in without
            for instance in devices_of(one, settings)
        )
        self._workers: list[Worker] = [
            worker for one in manifests() for worker in one.workers if worker.name not in without
        ]
        self._began = server.clock.monotonic()
        self._rows: list[_Row] = []

    def complaints(self, now: float) -> Iterator[Complaint]:
        """Return who is missing, and what devices say of their own health."""
        yield from (row.complaint for row in self._look())
        for component, heard in self._heartbeats.newest.items():
            if component != self._server.instance and self._heartbeats.alive(component):
                for one in heard.heartbeat.complaints:
                    yield Complaint("DEGRADED", f"{one.device}: {one.text}")

    def faults(self, now: float) -> dict[FaultKey, Fault]:
        """Return who is missing, one fault for each."""
        is_early = self._server.clock.monotonic() - self._began < _NEVER_STARTED
        return {row.alarm: Fault(row.severity, row.complaint.text) for row in self._look() if row.heard or not is_early}

    def finds(self, key: FaultKey) -> bool:
        """Return whether it is about a device server or a worker."""
        conditions = {_SERVER, _WORKER, *(worker.gone for one in manifests() for worker in one.workers)}
        return key[0] in conditions and f"{key[1]}/".startswith(f"{ORIGIN}/")

    def values(self, device_class: str) -> Mapping[str, Value]:
        """Return nothing: health says it all."""
        return {}

    def _look(self) -> list[_Row]:
        # Right after the bus was away nothing new is known of anybody.
        if self._server.has_read(TOPIC) and self._heartbeats.can_tell:
            self._rows = [*self._servers(), *(row for worker in self._workers for row in self._of_kind(worker))]
        return self._rows

    def _servers(self) -> Iterator[_Row]:
        for instance in self._instances:
            if not self._heartbeats.alive(name := self._prefix + instance):
                complaint = Complaint("DEGRADED", f"device server {instance} {self._seen(name)}")
                yield _Row(complaint, (_SERVER, f"{ORIGIN}/{instance}"), "CRITICAL", self._is_known(name))

    def _of_kind(self, worker: Worker) -> Iterator[_Row]:
        heard = [name for name in self._heartbeats.newest if name.startswith(f"{worker.group}-")]
        start = f"sdp-facade {' '.join(worker.start)}"
        if not any(map(self._heartbeats.alive, heard)):
            last = max(heard, key=lambda name: self._heartbeats.newest[name].at, default="the first one")
            text = f"no {worker.name} worker alive ({start}): {last} {self._seen(last)}"
            complaint = Complaint("FAILED", text, of_bus=True)
            yield _Row(complaint, (worker.gone, ORIGIN), "CRITICAL", self._is_known(last))
            return
        for name in heard:
            silent = not (self._heartbeats.newest[name].heartbeat.stopping or self._heartbeats.alive(name))
            if silent and self._heartbeats.silence(name) < self._within:
                complaint = Complaint("DEGRADED", f"worker {name} ({start}) {self._seen(name)}")
                yield _Row(complaint, (_WORKER, f"{ORIGIN}/{name}"), "WARNING")

    def _is_known(self, component: str) -> bool:
        return component in self._heartbeats.newest

    def _seen(self, component: str) -> str:
        if not self._is_known(component):
            return "was not heard of yet"
        heard = self._heartbeats.newest[component]
        at = datetime.fromtimestamp(heard.at, UTC).isoformat(timespec="seconds")
        return f"{'was stopped at' if heard.heartbeat.stopping else 'silent since'} {at}"

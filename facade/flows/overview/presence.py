"""Which processes of the facade are alive, and which of them should be."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from facade.errors import ConfigError
from facade.icd.model import instance_role
from facade.instances import devices_of
from facade.manifest import WorkerEntry, manifests
from facade.runtime.composition import Server
from facade.runtime.flow import FaultKey
from facade.runtime.health_issues import DEGRADED, FAILED, ORIGIN, HealthIssue, HealthSource
from facade.runtime.heartbeats import TOPIC
from facade.runtime.scans import scans
from facade.severities import CRITICAL

_MOST_LISTED = 4
_SERVER, _WORKER = "serverGone", "workerSilent"
_NO_ACCOUNT = 15.0
"""A device server gives an account each 2 s; one that gave none for so long is named [s]."""
_NEVER_STARTED = 60.0
"""Who was never heard of is an alarm only after so long [s]: not everything is started at once."""


class Presence(HealthSource):
    """Device servers of the deployment, and workers; see `facade.runtime.health_issues.HealthSource`.

    Expected are each device-server instance that the deployment has, one worker of each kind at least, and whatever
    worker was heard of within the retention of the signs of life and did not say goodbye.

    Parameters
    ----------
    accounts_us
        When each device server last gave an account, by its own clock [Unix us].

    Raises
    ------
    ConfigError
        The setting `without` names something that is no role of the ICD.
    """

    def __init__(self, server: Server, accounts_us: Mapping[str, int]) -> None:
        self._accounts_us = accounts_us
        self._lives: dict[str, tuple[str, int]] = {}
        """Incarnation of each device server, and when it was first heard of, by its own clock [Unix us]."""
        icd, settings = server.icd, server.settings
        without = settings.left_out
        if odd := without - icd.roles.keys():
            known = ", ".join(sorted(icd.roles))
            raise ConfigError(f"settings: without: expected roles of the ICD ({known}), got {', '.join(sorted(odd))}")
        self._server, self._heartbeats, self._scans = server, server.heartbeats(), scans(server)
        self._within = icd.topics[TOPIC].retention or 0.0
        own = next(icd.classes[name].instance for name in server.devices)
        self._prefix = server.instance.removesuffix(own)
        found = (one for one in icd.classes.values() if instance_role(one.instance) not in without)
        self._instances = sorted({instance for one in found for instance in devices_of(one, settings)})
        self._workers: list[WorkerEntry] = [
            worker for one in manifests() for worker in one.workers if worker.name not in without
        ]
        gone = {worker.gone for one in manifests() for worker in one.workers}
        self.conditions: Mapping[str, str] = dict.fromkeys((_SERVER, _WORKER, *gone), ORIGIN)
        self._began = server.clock.monotonic()
        self._rows: list[HealthIssue] = []

    def issues(self, now: float) -> Iterator[HealthIssue]:
        """Return the processes that are missing, and the complaints of devices."""
        yield from self._look()
        for component, heard in self._heartbeats.newest.items():
            if component != self._server.instance and self._heartbeats.alive(component):
                for one in heard.heartbeat.complaints:
                    if not one.subarray or one.subarray in self._scans.scanning(now):
                        yield HealthIssue(
                            DEGRADED, f"{one.device}: {one.text}", device=one.device, reasons=tuple(one.reasons)
                        )

    def _look(self) -> list[HealthIssue]:
        # Right after the bus was away nothing new is known of anybody.
        if self._server.has_read(TOPIC) and self._heartbeats.can_tell:
            self._rows = [*self._servers(), *(row for worker in self._workers for row in self._of_kind(worker))]
        return self._rows

    def _servers(self) -> Iterator[HealthIssue]:
        for instance in self._instances:
            is_own = (name := self._prefix + instance) == self._server.instance
            # This server is alive, though after a start its own sign of life may be the last one to be read.
            if not (is_own or self._heartbeats.alive(name)):
                text = f"device server {instance} {self._seen(name)}"
                yield HealthIssue(DEGRADED, text, self._alarm(name, _SERVER, instance), CRITICAL)
            elif self._is_known(name) and self._without_account(name) > _NO_ACCOUNT:
                text = f"device server {instance} is alive but writes no account: the figures of its streams are old"
                yield HealthIssue(DEGRADED, text, of_bus=True)

    def _without_account(self, name: str) -> float:
        """Return for how long a device server has lived without giving an account, by its own clock [s]."""
        beat = self._heartbeats.newest[name].heartbeat
        if self._lives.get(name, ("", 0))[0] != beat.incarnation:
            self._lives[name] = beat.incarnation, beat.time
        return (beat.time - max(self._lives[name][1], self._accounts_us.get(name, 0))) / 1e6

    def _of_kind(self, worker: WorkerEntry) -> Iterator[HealthIssue]:
        heard = self._heartbeats.heard_of(worker.group)
        start = f"sdp-facade {' '.join(worker.start)}"
        if not self._heartbeats.alive_of(worker.group):
            heard.sort(key=lambda name: -self._heartbeats.newest[name].at)
            last = heard[:_MOST_LISTED] or ["the first one"]
            text = f"no {worker.name} worker alive ({start}): {', '.join(f'{n} {self._seen(n)}' for n in last)}"
            yield HealthIssue(FAILED, text, self._alarm(last[0], worker.gone), CRITICAL, of_bus=True)
            return
        for name in heard:
            silent = not (self._heartbeats.newest[name].heartbeat.stopping or self._heartbeats.alive(name))
            if silent and self._heartbeats.silence(name) < self._within:
                yield HealthIssue(
                    DEGRADED, f"worker {name} ({start}) {self._seen(name)}", self._alarm(name, _WORKER, name)
                )

    def _alarm(self, component: str, condition: str, *part: str) -> FaultKey | None:
        """Return the alarm to raise; None for a component that was never heard of, as not all start at once."""
        is_early = self._server.clock.monotonic() - self._began < _NEVER_STARTED
        return None if is_early and not self._is_known(component) else (condition, "/".join((ORIGIN, *part)))

    def _is_known(self, component: str) -> bool:
        return component in self._heartbeats.newest

    def _seen(self, component: str) -> str:
        if not self._is_known(component):
            return "was not heard of yet"
        heard = self._heartbeats.newest[component]
        at = datetime.fromtimestamp(heard.at, UTC).isoformat(timespec="seconds")
        return f"{'was stopped at' if heard.heartbeat.stopping else 'silent since'} {at}"

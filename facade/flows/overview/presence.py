"""The issues about processes that are missing, and about devices that complain."""

from collections.abc import Iterator, Mapping

from facade.kernel.clock import NEVER, SECOND, Duration, Time, as_duration, utc_seconds
from facade.kernel.errors import ConfigError
from facade.kernel.icd.model import instance_role
from facade.kernel.icd.topic_model import slot_name
from facade.kernel.instances import devices_of
from facade.kernel.manifest import WorkerEntry, manifests
from facade.kernel.names import PROGRAM
from facade.kernel.reading import Value
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import FaultKey
from facade.kernel.runtime.health_issues import DEGRADED, FAILED, ORIGIN, HealthIssue, HealthSource
from facade.kernel.runtime.heartbeats import TOPIC, host_of
from facade.sdp.scans import scans

MASTER = "SdpMaster"
MOST_HEARD = 4
"""Workers named by the issue about a missing role."""
_SERVER, _WORKER = "serverGone", "workerSilent"
_NO_ACCOUNT = 15 * SECOND
"""Time without an account after which a device server has an issue; it writes one every 2 s."""
_NEVER_STARTED = 60.0
"""Time after the start of this server before a process without any heartbeat raises an alarm [s]."""


class Presence(HealthSource):
    """Device servers of the deployment, and workers; see `facade.kernel.runtime.health_issues.HealthSource`.

    Expected are each device-server instance of the deployment, at least one worker of each kind, and every worker with
    a heartbeat within the retention of the topic, unless its last one was final.
    """

    def __init__(self, server: Server, accounts_us: Mapping[str, Time]) -> None:
        self._accounts_us = accounts_us
        self._lives: dict[str, tuple[str, Time]] = {}
        """Incarnation of each device server, and its first known time, by its own clock."""
        icd, settings = server.icd, server.settings
        without = settings.left_out
        if odd := without - icd.roles.keys():
            known = ", ".join(sorted(icd.roles))
            raise ConfigError(f"settings: without: expected roles of the ICD ({known}), got {', '.join(sorted(odd))}")
        self._server, self._heartbeats, self._scans = server, server.heartbeats(), scans(server)
        self._within = as_duration(icd.topics[TOPIC].retention or 0.0)
        own = next(icd.classes[name].instance for name in server.devices)
        self._prefix = server.instance.removesuffix(own)
        found = (one for one in icd.classes.values() if instance_role(one.instance) not in without)
        self._instances = sorted({instance for one in found for instance in devices_of(one, settings)})
        self._workers: list[WorkerEntry] = [
            worker for one in manifests() for worker in one.workers if worker.name not in without
        ]
        self._processes = {
            role: words for one in manifests() for role, words in one.processes.items() if role not in without
        }
        gone = {worker.gone for one in manifests() for worker in one.workers}
        self.conditions: Mapping[str, str] = dict.fromkeys((_SERVER, _WORKER, *gone), ORIGIN)
        self._began = server.clock.monotonic()
        self._rows: list[HealthIssue] = []
        self._early: set[FaultKey] = set()
        """Alarms about components that may not have begun yet: these are neither raised nor cleared."""

    def issues(self, now: Time) -> Iterator[HealthIssue]:
        """Return the missing processes, and the complaints of devices."""
        yield from self._look()
        for component, heard in self._heartbeats.newest.items():
            if component != self._server.instance and self._heartbeats.alive(component):
                for one in heard.heartbeat.complaints:
                    if not one.subarray or one.subarray in self._scans.scanning(now):
                        yield HealthIssue(
                            DEGRADED,
                            f"{one.device}: {one.text}",
                            device=one.device,
                            reasons=tuple(one.reasons),
                            response=f"Read the Status of {one.device}.",
                        )

    def judges(self, key: FaultKey) -> bool:
        """Return whether heartbeats tell of a component; see `facade.kernel.runtime.health_issues.HealthSource`."""
        # Right after an outage of the bus the state of all processes is unknown.
        return self._server.has_read(TOPIC) and self._heartbeats.can_tell and key not in self._early

    def values(self, device_class: str) -> Mapping[str, Value]:
        """Return the device servers of this deployment."""
        return {"deviceServers": tuple(self._instances)} if device_class == MASTER else {}

    def _look(self) -> list[HealthIssue]:
        if self._server.has_read(TOPIC) and self._heartbeats.judged_at:
            self._early.clear()
            kinds = (row for worker in self._workers for row in self._of_kind(worker))
            self._rows = [*self._servers(), *kinds, *self._optional()]
        return self._rows

    def _servers(self) -> Iterator[HealthIssue]:
        for instance in self._instances:
            is_own = (name := self._prefix + instance) == self._server.instance
            # This server is alive, though after a start its own heartbeat may be the last one read.
            if not (is_own or self._heartbeats.alive(name)):
                text = f"device server {instance} {self._seen(name)}"
                followed = self._heartbeats.is_followed(name)
                alarm = None if followed else self._alarm(name, _SERVER, instance)
                do = "Wait: its standby takes its place." if followed else f"Start it: sdp-facade serve {instance}."
                yield HealthIssue(DEGRADED, text, alarm, host=self._host(name), response=do)
            # While the bus was away, no server could write its account.
            elif self._is_known(name) and self._without_account(name) > _NO_ACCOUNT and self._heartbeats.can_tell:
                text = f"device server {instance} is alive but writes no account: the figures of its streams are old"
                do = f"Read the log of the instance {instance}, which says why, and restart it."
                yield HealthIssue(DEGRADED, text, of_bus=True, response=do)

    def _without_account(self, name: str) -> Duration:
        """Return the time that a device server has lived without writing an account, by its own clock."""
        beat = self._heartbeats.newest[name].heartbeat
        if self._lives.get(name, ("", NEVER))[0] != beat.incarnation:
            self._lives[name] = beat.incarnation, beat.time
        return beat.time - max(self._lives[name][1], self._accounts_us.get(name, NEVER))

    def _of_kind(self, worker: WorkerEntry) -> Iterator[HealthIssue]:
        heard = self._heartbeats.heard_of(worker.name)
        start = f"sdp-facade {' '.join(worker.start)}"
        if not self._heartbeats.alive_of(worker.name):
            heard.sort(key=lambda name: self._heartbeats.newest[name].at, reverse=True)
            last = heard[:MOST_HEARD] or ["the first one"]
            text = f"no {worker.name} worker alive ({start}): {', '.join(f'{n} {self._seen(n)}' for n in last)}"
            # One that was killed comes back at once with its slot. Another one has to wait until the brokers miss it.
            killed = [name for name in last if self._is_missed(name)]
            slots = " and ".join(f"{start} --slot {_slot(worker, name)}" for name in killed) or start
            do = f"Start the workers again: {slots}."
            key = self._alarm(last[0], worker.gone)
            yield HealthIssue(FAILED, text, key, of_bus=True, response=do)
            return
        for name in heard:
            if self._is_missed(name):
                text = f"worker {name} ({start}) {self._seen(name)}"
                do = f"End its process if it hangs, then start it again: {start} --slot {_slot(worker, name)}."
                yield HealthIssue(DEGRADED, text, self._alarm(name, _WORKER, name), host=self._host(name), response=do)

    def _optional(self) -> Iterator[HealthIssue]:
        for role, words in self._processes.items():
            for name in filter(self._is_missed, self._heartbeats.heard_of(role)):
                text = f"process {name} {self._seen(name)}"
                key, slot = self._alarm(name, _WORKER, name), name.removeprefix(slot_name(role, ""))
                again = f"{PROGRAM} {' '.join(words)}{'' if slot == '0' else f' --slot {slot}'}"
                do = f"End its process if it hangs, then start it again with its options: {again}."
                yield HealthIssue(DEGRADED, text, key, host=self._host(name), response=do)

    def _alarm(self, component: str, condition: str, *part: str) -> FaultKey | None:
        """Return the alarm to raise; None for a component without any heartbeat, as not all start at once."""
        key = condition, "/".join((ORIGIN, *part))
        if not self._is_known(component) and self._server.clock.monotonic() - self._began < _NEVER_STARTED:
            self._early.add(key)
            return None
        return key

    def _is_missed(self, worker: str) -> bool:
        """Return whether a worker is silent that was not stopped in order, and that the topic still has."""
        left = not self._is_known(worker) or self._heartbeats.newest[worker].heartbeat.stopping
        return not (left or self._heartbeats.alive(worker)) and self._heartbeats.silence(worker) < self._within

    def _is_known(self, component: str) -> bool:
        return component in self._heartbeats.newest

    def _host(self, component: str) -> str:
        return host_of(self._heartbeats.newest[component].heartbeat.incarnation) if self._is_known(component) else ""

    def _seen(self, component: str) -> str:
        if not self._is_known(component):
            return "was not heard of yet"
        heard = self._heartbeats.newest[component]
        at = utc_seconds(heard.at)
        return f"{'was stopped at' if heard.heartbeat.stopping else 'silent since'} {at}"


def _slot(worker: WorkerEntry, name: str) -> str:
    return name.removeprefix(slot_name(worker.name, ""))

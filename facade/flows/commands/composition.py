"""The command path of a device server: flows, views, the gateway, the admission of orders, and its periodic tasks."""

import logging
from collections.abc import Callable, Iterator, Mapping
from threading import Event

from facade.flows.commands.admission import OrderAdmission
from facade.flows.commands.arguments import arguments_of
from facade.flows.commands.flow import Components, flows
from facade.flows.commands.gateway import Gateway
from facade.flows.commands.lease import INTERVAL, TERM, Lease
from facade.flows.commands.messages import (
    ACKS,
    COMMANDS,
    HEARTBEATS,
    HELD_COMMANDS,
    REFUSALS,
    ack_record,
    unapproved_record,
)
from facade.flows.commands.outcomes import FINAL, WAITING
from facade.flows.commands.refused import Refusals, RefusalView
from facade.flows.commands.shown import SUBARRAY, Shown
from facade.flows.commands.tracker import Tracker
from facade.flows.commands.view import CommandSources, CommandView, SubarrayView, rivalries, silences
from facade.kernel.bus.offsets import Extent
from facade.kernel.bus.port import Record
from facade.kernel.clock import Clock, Time, as_duration
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.instances import classes_of, number_of
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import Fault, FaultKey
from facade.kernel.runtime.health_issues import DEGRADED, FAILED, ORIGIN, HealthIssue, HealthSource
from facade.kernel.runtime.heartbeats import SERVERS, SILENT, Heartbeats
from facade.kernel.runtime.metrics import Figures, MetricFamily
from facade.kernel.runtime.steps import run_steps
from facade.sdp.device_state import SETTINGS, DeviceSettings, states_of
from facade.sdp.device_state import TOPIC as STATES
from facade.sdp.replay import why_refused

_STUCK, _SILENT, _SOURCE = "subarrayStuck", "controllerSilent", f"{ORIGIN}/subarray/"
"""Two conditions, and the begin of the sources of the first: alarms of other sources are not cleared."""
_ASK_EACH = 1.0
"""Pause before a question to the brokers [s]."""

_log = logging.getLogger(__name__)


class CommandsEnd:
    """Asks the brokers for the end of `commands`, as proof that a record is not there.

    The end in the newest fetch answer does not prove it. A leader may stand still, so that this server's fetch gets no
    answer, while a controller reads the record from the new leader. Once `not_after` has passed by a second, no
    controller begins the command. So this server asks for the end after that time, and reads up to it. A command whose
    record was not there will never be executed.

    The brokers are asked only while a command lacks this proof. The next question follows after a pause.

    Parameters
    ----------
    extents
        Asks the brokers, and waits for the answer; see `facade.kernel.bus.offsets.TopicWatch.extents`.
    has_read_to
        Whether this server has read up to the end in an answer.
    """

    def __init__(
        self,
        extents: Callable[[list[str]], Mapping[str, Extent]],
        has_read_to: Callable[[str, Extent], bool],
        clock: Clock,
    ) -> None:
        self._extents, self._has_read_to, self._clock = extents, has_read_to, clock
        self._is_wanted = False
        self._answer: tuple[Time, float, Extent] | None = None
        """The newest answer, and when it was asked for, by both clocks."""

    def has_read(self, time_us: Time) -> bool:
        """Return whether every record on the log at a time has been read; if that is not known, have it asked."""
        if self._answer is not None:
            asked_us, asked, now = self._answer
            # Since the question the clock may have been set back.
            asked_us = min(asked_us, self._clock.now_us() - as_duration(self._clock.monotonic() - asked))
            if asked_us > time_us and self._has_read_to(COMMANDS, now):
                return True
        self._is_wanted = True
        return False

    def run(self, stop: Event) -> None:
        """Ask when it is wanted, until `stop` is set: in a thread of its own, as an answer may take seconds."""
        run_steps(self.step, stop, f"asking for the end of {COMMANDS}", each=_ASK_EACH)

    def step(self) -> None:
        """Ask once if it is wanted, and wait for the answer."""
        if not self._is_wanted:
            return
        asked_us, asked = self._clock.now_us(), self._clock.monotonic()
        try:
            found = self._extents([COMMANDS])
            if COMMANDS in found:
                self._answer = asked_us, asked, found[COMMANDS]
        except BusError as error:
            _log.warning("overdue commands stay open, as the end of %s is not known: %s", COMMANDS, error)
        finally:
            self._is_wanted = False  # until the next cycle, which knows the answer


class CommandDeadlines:
    """Ends overdue commands, in each cycle; see `facade.kernel.runtime.event_loop`.

    Parameters
    ----------
    origin
        Name of this server in the acknowledgements that it writes.
    post
        Queues a record without waiting.
    caught_up
        Whether all commands and acknowledgements on the bus have been read: one of them may be an outcome, which holds.
    has_read
        See `CommandsEnd.has_read`.
    """

    def __init__(
        self,
        *,
        origin: str,
        post: Callable[[Record], None],
        lease: Lease,
        tracker: Tracker,
        caught_up: Callable[[], bool],
        has_read: Callable[[Time], bool],
        clock: Clock,
    ) -> None:
        self._origin, self._post, self._lease, self._tracker = origin, post, lease, tracker
        self._caught_up, self._has_read, self._clock = caught_up, has_read, clock

    def perform(self) -> None:
        """Send due outcomes."""
        monotonic = self._clock.monotonic()
        if why_refused(self._clock):
            return  # the outcomes of the night are still to come
        # A server whose own heartbeats do not come back does not read acknowledgements either.
        if self._caught_up() and self._lease.held_for(monotonic) >= TERM:
            for ack in self._tracker.due(self._clock.now_us(), monotonic, self._origin, self._has_read):
                one = self._tracker.find(ack.id)
                waits = one is not None and one.state in WAITING
                self._post(unapproved_record(ack) if waits else ack_record(ack))

    def end(self) -> None:
        """Give the lease back: after the final heartbeat the next start need not wait for it to expire."""
        self._lease.release()


class CaughtUp:
    """Notes in each cycle whether some topics have no unread records; see `facade.kernel.runtime.event_loop`.

    Other threads cannot ask the reader, which may have taken records that the loop has not processed.
    """

    def __init__(self, is_at_end: Callable[[], bool]) -> None:
        self._is_at_end = is_at_end
        self.now = False

    def perform(self) -> None:
        """Note it."""
        self.now = self._is_at_end()

    def end(self) -> None:
        """Do nothing."""


def compose(server: Server) -> None:
    """Add the command path to a device server."""
    icd, states, clock, instance = server.icd, states_of(server), server.clock, server.instance
    classes = {device: icd.classes[server.classes[device]] for device in server.devices_with_commands()}
    components, sign, sender = server.share(Components), server.sign_of_life, server.sender()
    tracker, lease = Tracker(list(classes)), Lease(instance, sign.incarnation)
    # The lease depends on these heartbeats, so they use the commands' producer, and a shorter interval.
    sign.devices, sign.interval, sign.sent = list(classes), INTERVAL, lease.sent
    sign.send, sign.flush = sender.post, sender.close
    sign.hurries = lambda: lease.is_another_s  # the first one after the lease has lapsed takes it
    server.heartbeats().listeners.append(components.fold)
    servers = Heartbeats(SERVERS)
    servers.listeners.append(lease.fold)
    server.flows.append(servers)
    server.is_eager |= SUBARRAY in server.devices
    approvals = server.settings.need_approval
    known = {
        f"{one.name}.{entry.name}" for one in icd.classes.values() for entry in one.commands if entry.approval_within
    }
    if unknown := sorted(approvals - known):
        raise ConfigError(f"settings: approvals: expected some of {', '.join(sorted(known))}, got {unknown[0]!r:.100}")
    held = (HELD_COMMANDS,) if approvals else ()
    log = (STATES, SETTINGS, COMMANDS, ACKS, HEARTBEATS, SERVERS, *held)
    shown = Shown(
        classes=classes,
        tracker=tracker,
        states=states,
        known=lambda: server.has_read(*log),
        state_of=server.state,
    )
    sources = CommandSources(
        shown=shown,
        components=components,
        heartbeats=server.heartbeats(),
        lease=lease,
        health=server.bus.health,
        clock=clock,
    )
    refusals = Refusals(server.bus.writer().send, origin=instance, clock=clock)
    caught_up = CaughtUp(lambda: shown.known() and server.is_at_end(COMMANDS, ACKS, *held))
    all_ = classes_of(icd, server.settings, icd.commanded)
    below = icd.executors if SUBARRAY in server.devices else ()
    admission = OrderAdmission(
        icd=icd,
        classes=all_,
        own=frozenset(device for device, name in all_.items() if device in classes or name in below),
        arguments=arguments_of(icd),
        components=components,
        refusals=refusals,
        signatures=states.signatures,
        approvals=approvals,
        post=sender.post,
        why_not_now=lambda: gateway.why_not_held() if shown.known() else "the bus was not read yet",
        caught_up=lambda: caught_up.now,
        origin=instance,
        clock=clock,
    )
    server.flows += [
        states,
        DeviceSettings(states),
        *flows(tracker, states, refusals, admission, clock, holds=bool(approvals)),
    ]
    subarrays: dict[str, SubarrayView] = {}
    for device, device_class in classes.items():
        server.views += [
            CommandView(device, device_class, tracker, states, shown.known),
            RefusalView(device, refusals, lambda: server.has_read(REFUSALS)),
        ]
        if device_class.name == SUBARRAY:
            subarrays[device] = SubarrayView(device, device_class, sources, server.version)
            server.views.append(subarrays[device])
    if subarrays:

        def find_stuck(now: Time) -> dict[FaultKey, Fault] | None:
            if not (server.bus.health.connected and shown.known()):
                return None
            sources_of = {number_of(icd.classes[SUBARRAY], device): view for device, view in subarrays.items()}
            return {
                (_STUCK, f"{_SOURCE}{number:02d}"): Fault(f"subarray {number:02d}: {text}")
                for number, view in sources_of.items()
                if (text := view.stuck(now))
            }

        def is_stuck(key: FaultKey) -> bool:
            return key[0] == _STUCK and key[1].startswith(_SOURCE)

        server.report(find_stuck, is_stuck, STATES, COMMANDS, ACKS)
    gateway = Gateway(
        classes=classes,
        arguments=arguments_of(icd),
        states=states,
        shown=shown,
        tracker=tracker,
        lease=lease,
        sender=sender,
        refusals=refusals,
        ready=shown.known,
        caught_up=lambda: caught_up.now,
        origin=instance,
        clock=clock,
        commanders=server.settings.may_command,
        approvals=approvals,
        timeout=server.settings.command_timeout,
    )
    server.share(Gateway, lambda: gateway)
    server.metrics.append(
        MetricFamily(
            "sdp_command_outcomes",
            "Commands that have ended, as this process saw it.",
            ("device_class", "outcome"),
            lambda: outcomes_by_class(tracker, {device: one.name for device, one in classes.items()}),
            is_counter=True,
        )
    )
    end = server.share(CommandsEnd, lambda: CommandsEnd(server.bus.watch().extents, server.has_read_to, clock))
    server.threads.append(end.run)
    server.periodic_tasks += [caught_up, admission, refusals]
    server.periodic_tasks.append(
        CommandDeadlines(
            origin=instance,
            post=sender.post,
            lease=lease,
            tracker=tracker,
            caught_up=lambda: shown.known() and server.is_at_end(COMMANDS, ACKS, *held),
            has_read=end.has_read,
            clock=clock,
        )
    )


def outcomes_by_class(tracker: Tracker, classes: Mapping[str, str]) -> Figures:
    """Return the ended commands by device class and outcome; with zeros, as Prometheus misses a first increase."""
    found = {(classes[device], outcome): 0.0 for device in classes for outcome in sorted(FINAL)}
    for (device, outcome), count in tracker.outcomes.copy().items():
        found[classes[device], outcome] += count
    return found


class CommandsHealth(HealthSource):
    """Health issues about controllers; see `facade.kernel.runtime.health_issues.HealthSource`."""

    conditions: Mapping[str, str] = {_SILENT: ORIGIN, "twoControllers": ORIGIN}

    def __init__(self, server: Server) -> None:
        self._server = server
        self._components, self._heartbeats = server.share(Components), server.heartbeats()
        self._devices = server.devices_with_commands()

    def issues(self, now: Time) -> Iterator[HealthIssue]:
        """Return silent and surplus controllers, and devices without a controller."""
        at = self._heartbeats.judged_at
        # Two that were heard now: one that died in an outage has no rival in its successor.
        for text in rivalries(self._components, self._heartbeats.newest_at):
            yield HealthIssue(FAILED, text, ("twoControllers", ORIGIN))
        for name, text in silences(self._components, at).items():
            # Without another controller no command is executed.
            devices = self._components.newest[name][0].devices
            is_alone = any(not self._components.alive_for(one, at, SILENT) for one in devices)
            yield HealthIssue(FAILED if is_alone else DEGRADED, text, (_SILENT, f"{ORIGIN}/{name}"))
        # A replay has no controllers.
        if self._server.has_read(HEARTBEATS) and not why_refused(self._server.clock):
            heard = {device for beat, _ in self._components.newest.values() for device in beat.devices}
            for device in self._devices:
                # A silent controller is known, and has an issue of its own.
                if device not in heard:
                    text = f"no controller of {device} was heard of: its commands are not executed"
                    yield HealthIssue(DEGRADED, text, response=f"Start the controller of {device}.")

    def judges(self, key: FaultKey) -> bool:
        """Return whether heartbeats tell of a controller; see `facade.kernel.runtime.health_issues.HealthSource`.

        The topic keeps them for an hour: a controller that has been silent for longer is not known after a restart.
        """
        condition, source = key
        is_known = condition != _SILENT or source.removeprefix(f"{ORIGIN}/") in self._components.heard
        return is_known and self._server.has_read(HEARTBEATS) and self._heartbeats.can_tell

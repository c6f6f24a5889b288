"""Checks a command, writes it to the bus, and returns its id after the bus has confirmed it.

Called from Tango's threads, from several at a time: one call after the other is checked and noted, and each waits for
the bus by itself. A refusal changes nothing; a call that the bus did not confirm in time says whether the command may
still happen.

A deployment may list commands that wait for a second person. Such a call is checked as any other; then the command is
written to a topic of its own, where it waits. The approval checks it again in the state of that moment, and writes it
to the topic of commands under its id. As a controller executes each id once, nothing is executed twice. The withdrawal
writes the outcome; from then on this server takes no approval, whether or not the bus has confirmed the outcome.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import msgspec

from facade.bus.port import Headers, Record
from facade.clock import Clock, Time, as_duration, utc_seconds, utc_text
from facade.errors import ArgumentError, CommandRefused, NotSent, OutcomeUnknown
from facade.flows.commands.arguments import Arguments
from facade.flows.commands.lease import INTERVAL, Lease
from facade.flows.commands.messages import (
    AckMessage,
    CommandMessage,
    command_id,
    command_record,
    given_by,
    held_record,
    unapproved_record,
)
from facade.flows.commands.outcomes import NEW, UNDELIVERED, WAITING, Tracked, digest
from facade.flows.commands.refused import FAILED, NOT_ALLOWED, Refusals
from facade.flows.commands.rules import (
    REPORTED,
    contradiction,
    is_second_person,
    shown,
    unsettled,
    why_not_allowed,
)
from facade.flows.commands.tracker import Tracker
from facade.icd.model import CommandDefinition, DeviceClass
from facade.runtime.admin_mode import ATTRIBUTE as ADMIN_MODE
from facade.runtime.admin_mode import DISABLED
from facade.runtime.device_state import OBS_STATE, STATE, DeviceStates
from facade.runtime.replay import why_refused

_log = logging.getLogger(__name__)

MOST_PENDING = 32
"""Most commands of one device without an outcome."""
_LONGEST_SENDING = INTERVAL
"""Longest time of sending for which the lease must still last [s].

A longer timeout is for busy machines, whose heartbeats are late as well; they would refuse commands all the time.
"""


class CommandRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The JSON argument of GiveCommand: a command and its operator."""

    command: str
    operator: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    argument: str | None = None


class Decision(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The JSON argument of ApproveCommand and WithdrawCommand: a waiting command and the person who decides."""

    id: str
    operator: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


_decode_request = msgspec.json.Decoder(CommandRequest).decode
_decode_decision = msgspec.json.Decoder(Decision).decode


def read_request(text: str, device_class: DeviceClass) -> CommandRequest:
    """Read the argument of GiveCommand.

    Raises
    ------
    CommandRefused
        The device class has no such command, or Tango would not carry a call of this form to it; or the name of the
        operator is not one that can be shown.
    """
    where = f"{device_class.name}.GiveCommand"
    try:
        request = _decode_request(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        form = "expected a JSON object with the keys command, operator and, if the command takes one, argument"
        raise CommandRefused(FAILED, f"argument: {error}; {form}, got {text!r:.200}", where) from error
    entry = next((one for one in device_class.commands if one.name == request.command), None)
    if entry is None:
        known = ", ".join(one.name for one in device_class.commands)
        what = f"$.command: expected one of {known}, got {request.command!r:.100}"
    elif entry.argument is None and request.argument is not None:
        what = f"$.argument: expected none, as {entry.name} takes none, got {request.argument!r:.100}"
    else:
        _require_name(request.operator, where)
        return request
    raise CommandRefused(FAILED, what, where)


def read_decision(text: str, where: str) -> Decision:
    """Read the argument of ApproveCommand or WithdrawCommand.

    Raises
    ------
    CommandRefused
        It has another form, or the name of the operator is not one that can be shown.
    """
    try:
        decision = _decode_decision(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        form = "expected a JSON object with the keys id and operator"
        raise CommandRefused(FAILED, f"argument: {error}; {form}, got {text!r:.200}", where) from error
    _require_name(decision.operator, where)
    return decision


def _require_name(operator: str, where: str) -> None:
    if not (operator.strip() and operator.isprintable()):
        what = f"$.operator: expected a name without control characters, got {operator!r:.100}"
        raise CommandRefused(FAILED, what, where)


class CommandSender(Protocol):
    """Writes a command to the bus."""

    def send(self, record: Record, timeout: float, queued: Callable[[], None]) -> None:
        """Return after all in-sync replicas have the record.

        Parameters
        ----------
        queued
            Called before the wait: later records are sent after this one.

        Raises
        ------
        NotSent
            The record is surely not on the bus, and will not be.
        OutcomeUnknown
            The record may be on the bus, or still come, after `timeout` [s].
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The command path of one device server."""

    classes: Mapping[str, DeviceClass]
    """Device class by device name."""
    arguments: Arguments
    states: DeviceStates
    device_state: Callable[[str], str]
    """Returns the Tango State that a device shows."""
    tracker: Tracker
    lease: Lease
    sender: CommandSender
    refusals: Refusals
    ready: Callable[[], bool]
    """Whether all records from before the start have been read."""
    caught_up: Callable[[], bool]
    """Whether all commands and acknowledgements on the bus have been read."""
    origin: str
    clock: Clock
    timeout: float = 0.4
    """Longest wait for the bus [s]."""
    commanders: frozenset[str] = frozenset()
    """Hosts whose commands are accepted, as Tango names them; none: any."""
    approvals: frozenset[str] = frozenset()
    """Commands that wait for a second person, each as class and command."""
    _checking: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held until a command is noted and queued: the next one is checked against it, and comes after it."""
    _sending: set[str] = field(default_factory=set, init=False)
    """Ids of the commands whose calls wait for the bus."""

    def give(
        self,
        device: str,
        name: str,
        text: str | None,
        headers: Headers = (),
        *,
        client: str = "",
        operator: str = "",
    ) -> str:
        """Put a command of a device on the bus, and return its id.

        Parameters
        ----------
        text
            JSON argument; None for a command that takes none.
        client
            Tango client of the call; empty: unknown.
        operator
            Name that the client says, as of `read_request`; empty: none.

        Raises
        ------
        CommandRefused
            Nothing was sent; the reason and the text say why.
        NotSent, OutcomeUnknown
            The bus did not confirm it.
        """
        with self._noted(device, name, text, client, operator):
            return self._give(device, name, text, headers, client, operator)

    @contextmanager
    def _noted(self, device: str, name: str, argument: str | None, client: str, operator: str) -> Iterator[None]:
        try:
            yield
        except (CommandRefused, NotSent) as error:
            self.refusals.note(device, name, error, argument=argument, client=client, operator=operator)
            raise

    def _give(self, device: str, name: str, text: str | None, headers: Headers, client: str, operator: str) -> str:
        commands = {command.name: command for command in self.classes[device].commands}
        command = commands[name]
        where = f"{self.classes[device].name}.{name}"
        self._require_host(name, client, where)
        if where in self.approvals and not operator:
            how = "give it with GiveCommand, or with `sdp-facade command --operator NAME`"
            what = f"{name} waits for a second person: expected the name of the operator, got none; {how}"
            raise CommandRefused(NOT_ALLOWED, what, where)
        try:
            checked = None if command.argument is None else self.arguments.check(command.argument, text or "")
        except ArgumentError as error:
            faults = (f"{name}: {error.faults[0]}", *error.faults[1:])
            raise CommandRefused(FAILED, f"{name}: {error}", where, faults) from error
        document = None if checked is None else checked.document
        transaction_id = (checked and checked.transaction_id) or self._new_transaction_id()
        with ExitStack() as order:
            order.enter_context(self._checking)
            self._require_readiness(name, where)
            self._require_mode(device, name, where)
            before = self.tracker.of_transaction(device, name, transaction_id)
            if before is not None:
                again = self._repeated(before, digest(document), where)
                if again is not None:
                    return again
            else:
                self._require_allowed(device, command)
                self._require_sense(device, command, document, where)
            if before is not None:
                waits = before.state in WAITING
                # A repeated call changes neither the issuer nor the approver.
                message = msgspec.structs.replace(before.message, argument=document)
            else:
                waits = where in self.approvals
                message = self._message(device, command, document, transaction_id, client, operator)
                if waits:
                    self._require_place(device, name, where)
                    until = message.issued + as_duration(command.approval_within)
                    message = msgspec.structs.replace(message, not_after=until, deadline=until, ceiling=until)
                    self.tracker.hold(message)
                else:
                    self.tracker.begin(message)
            self._sending.add(message.id)
            try:
                if waits:
                    return self._hold(message, headers, order.close, again=before is not None)
                return self._send(message, headers, order.close, again=before is not None)
            finally:
                self._sending.discard(message.id)

    def approve(self, device: str, decision: Decision, headers: Headers = (), *, client: str = "") -> str:
        """Put a command that waits for a second person on the bus, and return its id.

        Raises
        ------
        CommandRefused
            It does not wait, the caller is not another person, or it is not allowed now; the text says why.
        NotSent, OutcomeUnknown
            The bus did not confirm it.
        """
        name, operator = "ApproveCommand", decision.operator
        where = f"{self.classes[device].name}.{name}"
        with self._noted(device, name, decision.id, client, operator), ExitStack() as order:
            tracked, waiting = self._decided(device, decision, name, client, order)
            if not is_second_person(waiting, operator):
                what = (
                    f"{waiting.command}: expected another person than {_first(waiting)}, got {operator}, from {client}"
                )
                raise CommandRefused(NOT_ALLOWED, what, where)
            commands = {command.name: command for command in self.classes[device].commands}
            command = commands[waiting.command]
            self._require_mode(device, command.name, where)
            self._require_allowed(device, command)
            self._require_sense(device, command, waiting.argument, where)
            made = self._message(
                device, command, waiting.argument, waiting.transaction_id, waiting.client, waiting.operator
            )
            appended_us = tracked.appended_us
            message = msgspec.structs.replace(
                made,
                id=waiting.id,
                approver=operator,
                approver_client=client[:200],
                # After that time it may be UNDELIVERED, and must not begin any more.
                not_after=min(made.not_after, waiting.not_after),
            )
            if not self.tracker.approve(message):
                raise _not_waiting(waiting.id, where)
            self._sending.add(message.id)
            try:
                return self._send(message, headers, order.close, again=False, waiting=(waiting, appended_us))
            finally:
                self._sending.discard(message.id)

    def withdraw(self, device: str, decision: Decision, headers: Headers = (), *, client: str = "") -> str:
        """End a command that waits for a second person, and return its id.

        Raises
        ------
        CommandRefused
            The command does not wait, or another person gave it; the text says why.
        NotSent, OutcomeUnknown
            The bus did not confirm it.
        """
        name, operator = "WithdrawCommand", decision.operator
        where = f"{self.classes[device].name}.{name}"
        with self._noted(device, name, decision.id, client, operator), ExitStack() as order:
            tracked, waiting = self._decided(device, decision, name, client, order)
            # Each person may do one of the two: approve a command or withdraw it.
            if is_second_person(waiting, operator):
                expected = f"expected the person who gave it, {_first(waiting)}"
                what = f"{waiting.command}: {expected}, got {operator}, from {client}"
                raise CommandRefused(NOT_ALLOWED, what, where)
            ack = AckMessage(
                id=waiting.id,
                device=device,
                command=waiting.command,
                status="ABORTED",
                time=self.clock.now_us(),
                origin=self.origin,
                text=f"withdrawn by {given_by(operator, client)}",
                withdrawer=operator,
                withdrawer_client=client[:200],
            )
            self._sending.add(waiting.id)
            began = self.clock.monotonic()
            is_first = self.tracker.close(tracked, began)
            try:
                self.sender.send(unapproved_record(ack, headers), self.timeout, order.close)
                now = self.clock.monotonic()
                if self.lease.held_for(now) <= now - began:  # this process stood still
                    raise OutcomeUnknown("another device server may have had it approved meanwhile")
            except (NotSent, OutcomeUnknown) as error:
                if is_first and isinstance(error, NotSent):  # otherwise it says nothing about the first time
                    self.tracker.wait_on(waiting, tracked.appended_us)
                    raise NotSent(f"{waiting.command} was not withdrawn, and goes on waiting: {error}") from error
                what = (
                    f"outcome of the withdrawal unknown: {error}; ask GetCommand({waiting.id!r}), or withdraw it again"
                )
                raise OutcomeUnknown(f"{waiting.command}: {what}") from error
            finally:
                self._sending.discard(waiting.id)
        _log.info("command withdrawn id=%s device=%s", waiting.id, device)
        return waiting.id

    def _decided(
        self, device: str, decision: Decision, name: str, client: str, order: ExitStack
    ) -> tuple[Tracked, CommandMessage]:
        """Return the command that somebody decides about; no other call is checked until `order` is closed."""
        where = f"{self.classes[device].name}.{name}"
        self._require_host(name, client, where)
        order.enter_context(self._checking)
        self._require_readiness(name, where)
        if not self.caught_up():
            what = "was not sent: the newest commands and acknowledgements are still being read; try again"
            raise CommandRefused(FAILED, f"{name} {what}", where)
        id = decision.id
        found = self.tracker.find(id)
        if found is None or found.state not in WAITING or found.device != device:
            raise _not_waiting(id, where)
        if id in self._sending or self.clock.now_us() > found.message.not_after:
            raise _not_waiting(id, where)
        return found, found.message

    def why_not_held(self) -> str:
        """Return the reason why the lease does not allow this server to write to the bus; empty: it does.

        The record may leave at any time until the timeout, and another server may hold the lease by then.
        """
        by = self.clock.monotonic() + min(self.timeout, _LONGEST_SENDING)
        return self.lease.why_not_held(by, self.clock.now_us())

    def _require_place(self, device: str, name: str, where: str) -> None:
        waiting = sum(one.state in WAITING for one in self.tracker.pending(device))
        if waiting >= MOST_PENDING:
            what = f"{name}: {waiting} commands wait for a second person; expected fewer than {MOST_PENDING}"
            raise CommandRefused(NOT_ALLOWED, what, where)

    def show(self, device: str) -> tuple[str, str | None]:
        """Return State and obsState for the next command; obsState is None for a device without one."""
        state, obs_state, _ = self._look(device)
        return state, obs_state

    def _look(self, device: str) -> tuple[str, str | None, Tracked | None]:
        """Return State and obsState, and the command whose effect is still to come.

        The event loop folds records meanwhile, and of an outcome its states first. So the commands are taken before the
        reports: the effect of one that has ended since is in the reports, or the command is still under way here.
        """
        device_class = self.classes[device]
        commands = {command.name: command for command in device_class.commands}
        pending = self.tracker.under_way(device)
        reports = {name: self.states.get(device, name) for name in (STATE, OBS_STATE)}
        entry = next((a for a in device_class.attributes if a.name == OBS_STATE), None)
        label = None
        if entry is not None:
            label = shown(OBS_STATE, reports[OBS_STATE], entry.initial or "", pending, commands)
        return self.device_state(device), label, unsettled(reports, pending, commands)

    def _require_host(self, name: str, client: str, where: str) -> None:
        host = client.partition(", ")[0]
        if self.commanders and not {host, host.partition(" (")[0]} & self.commanders:
            expected = (
                f"expected a client on one of {', '.join(sorted(self.commanders))}, got {host or 'an unknown one'}"
            )
            raise CommandRefused(NOT_ALLOWED, f"{name} is not taken from there: {expected}", where)

    def _require_readiness(self, name: str, where: str) -> None:
        if why := why_refused(self.clock):
            what = f"was not sent: {why}"
        elif not self.ready():
            what = "was not sent: the bus was not read yet, so the present state is not known; try again later"
        elif why := self.why_not_held():
            what = f"was not sent: {why}"
        else:
            return
        raise CommandRefused(FAILED, f"{name} {what}", where)

    def _require_mode(self, device: str, name: str, where: str) -> None:
        mode = self.states.label(device, ADMIN_MODE)
        if mode in DISABLED:
            what = f"Command {name} not allowed when adminMode is {mode}; expected ONLINE or ENGINEERING, got {mode}"
            raise CommandRefused(NOT_ALLOWED, what, where)

    def _require_allowed(self, device: str, command: CommandDefinition) -> None:
        state, obs_state, under_way = self._look(device)
        origin = f"{self.classes[device].name}.is_{command.name}_allowed()"
        others = self.classes[device].commands
        if why := why_not_allowed(command, state=state, obs_state=obs_state, under_way=under_way, others=others):
            raise CommandRefused(NOT_ALLOWED, why, origin)
        if (count := len(self.tracker.under_way(device))) >= MOST_PENDING:
            what = f"{command.name}: {count} commands are without an outcome; expected fewer than {MOST_PENDING}"
            raise CommandRefused(NOT_ALLOWED, what, origin)

    def _require_sense(
        self, device: str, command: CommandDefinition, document: dict[str, Any] | None, where: str
    ) -> None:
        reported = {name: found.value for name in REPORTED if (found := self.states.get(device, name)) is not None}
        if document is not None and (why := contradiction(command.argument or "", document, reported)):
            raise CommandRefused(FAILED, f"{command.name}: {why}", where)

    def _repeated(self, before: Tracked, argument: bytes, where: str) -> str | None:
        """Return the id of the command of a transaction id; None: it must be sent again."""
        if before.digest != argument:
            what = (
                f"{before.command}: transaction_id {before.message.transaction_id} was used for command {before.id}"
                " with another argument; expected a new one"
            )
            raise CommandRefused(FAILED, what, where)
        if before.status == UNDELIVERED and not before.place:
            what = f"{before.command}: command {before.id} of this transaction_id never reached the bus; use a new one"
            raise CommandRefused(FAILED, what, where)
        waits = before.state in WAITING
        if (waits and not before.appended_us) or before.state == NEW:
            if before.id in self._sending:  # its caller may be told that it was never sent
                raise _unknown(before.message, "another call is sending it", waits=waits)
            if self.clock.now_us() < before.message.not_after:
                return None  # it may never arrive: the same id prevents a second execution
            # A slow bus may have it all the same.
            raise _unknown(before.message, "it was not seen on the bus yet", waits=waits)
        tags = before.message.transaction_id, before.id, before.device
        _log.info("repeated transaction_id=%s id=%s device=%s", *tags)
        return before.id

    def _message(
        self,
        device: str,
        command: CommandDefinition,
        document: dict[str, Any] | None,
        transaction_id: str,
        client: str,
        operator: str,
    ) -> CommandMessage:
        now_us = self.clock.now_us()
        # Commands are in the order of their issue times, even if the clock is set back.
        issued = self.tracker.next_issue(device, now_us)
        return CommandMessage(
            id=command_id(issued, secrets.randbelow(10**12), command.name),
            device=device,
            command=command.name,
            argument=document,
            transaction_id=transaction_id,
            issued=issued,
            not_after=now_us + as_duration(command.start_within),
            deadline=now_us + as_duration(command.deadline),
            ceiling=now_us + as_duration(command.ceiling),
            repeatable=command.repeatable,
            origin=self.origin,
            client=client[:200],
            operator=operator,
        )

    def _hold(self, message: CommandMessage, headers: Headers, queued: Callable[[], None], *, again: bool) -> str:
        """Let a command wait for a second person, with a durable record like any command."""
        try:
            self.sender.send(held_record(message, headers), self.timeout, queued)
        except (NotSent, OutcomeUnknown) as error:
            if again or isinstance(error, OutcomeUnknown):
                # Another life of this server may read it: it waits here as well.
                raise _unknown(message, str(error), waits=True) from error
            self.tracker.undelivered(message.id, self.clock.now_us(), str(error))
            raise NotSent(f"{message.command} was not sent, and does not wait for a second person: {error}") from error
        _log.info("command held id=%s device=%s", message.id, message.device)
        return message.id

    def _send(
        self,
        message: CommandMessage,
        headers: Headers,
        queued: Callable[[], None],
        *,
        again: bool,
        waiting: tuple[CommandMessage, Time] | None = None,
    ) -> str:
        tags = f"transaction_id={message.transaction_id} id={message.id} device={message.device}"
        try:
            self.sender.send(command_record(message, headers), self.timeout, queued)
        except NotSent as error:
            if again:  # it says nothing about the first time
                _log.warning("command not sent again %s: %s", tags, error)
                raise _unknown(message, str(error)) from error
            if waiting is not None:
                self.tracker.wait_on(*waiting)
                what = "the approval was not sent, and the command goes on waiting for a second person"
                raise NotSent(f"{message.command}: {what}: {error}") from error
            self.tracker.undelivered(message.id, self.clock.now_us(), str(error))
            raise NotSent(f"{message.command} was not sent, and will not be executed: {error}") from error
        except OutcomeUnknown as error:
            _log.warning("command unconfirmed %s: %s", tags, error)
            raise _unknown(message, str(error)) from error
        self.tracker.sent(message.id)
        _log.info("command sent %s", tags)
        return message.id

    def _new_transaction_id(self) -> str:
        day = utc_text(self.clock.now_us())[:10].replace("-", "")
        return f"txn-sdp-{day}-{secrets.token_hex(8)}"


def _first(waiting: CommandMessage) -> str:
    return given_by(waiting.operator, waiting.client) or "a client that Tango does not identify"


def _not_waiting(id: str, where: str) -> CommandRefused:
    what = f"$.id: expected the id of a command of this device that waits for a second person, got {id!r:.200}"
    return CommandRefused(FAILED, what, where)


def _unknown(command: CommandMessage, why: str, *, waits: bool = False) -> OutcomeUnknown:
    limit = "cannot be approved" if waits else "will not begin"
    return OutcomeUnknown(
        f"{command.command}: outcome unknown: {why}. It {limit} after {utc_seconds(command.not_after)}; ask"
        f" GetCommand({command.id!r}), or repeat the call with transaction_id {command.transaction_id}"
    )

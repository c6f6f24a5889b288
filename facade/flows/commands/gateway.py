"""Checks a command, writes it to the bus, and returns its id after the bus has confirmed it.

Called from Tango's threads, from several at a time: one call after the other is checked, noted and queued, and each
waits for the bus by itself. A refusal changes nothing; a call that the bus did not confirm in time says whether the
command may still happen. A command may have to wait for a second person, see `facade.flows.commands.approvals`.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from facade.flows.commands.approvals import Name, hold, require_name
from facade.flows.commands.arguments import Arguments
from facade.flows.commands.lease import INTERVAL, Lease
from facade.flows.commands.messages import CommandMessage, command_id, command_record, held_record
from facade.flows.commands.outcomes import GIVEN_UP, NEW, SENT, UNDELIVERED, WAITING, Tracked, digest
from facade.flows.commands.refused import FAILED, NOT_ALLOWED, Refusals
from facade.flows.commands.rules import MOST_PENDING, REPORTED, contradiction, why_not_allowed
from facade.flows.commands.shown import Shown
from facade.flows.commands.tracker import Tracker
from facade.kernel.bus.port import CommandSender, Headers, Record, Sending
from facade.kernel.clock import Clock, as_duration, utc_seconds, utc_text
from facade.kernel.errors import ArgumentError, CommandRefused, NotSent, OutcomeUnknown
from facade.kernel.icd.model import CommandDefinition, DeviceClass
from facade.sdp.admin_mode import ATTRIBUTE as ADMIN_MODE
from facade.sdp.admin_mode import DISABLED, MODE_LOST
from facade.sdp.device_state import DeviceStates
from facade.sdp.replay import why_refused

_log = logging.getLogger(__name__)

_LONGEST_SENDING = INTERVAL
"""Longest time of sending for which the lease must still last [s].

A longer timeout is for busy machines, whose heartbeats are late as well; they would refuse commands all the time.
"""


class CommandRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The JSON argument of GiveCommand: a command and its operator."""

    command: str
    operator: Name
    argument: str | None = None


_decode_request = msgspec.json.Decoder(CommandRequest).decode


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
        require_name(request.operator, where)
        return request
    raise CommandRefused(FAILED, what, where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The command path of one device server."""

    classes: Mapping[str, DeviceClass]
    """Device class by device name."""
    arguments: Arguments
    states: DeviceStates
    shown: Shown
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
    checking: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held until a command is noted and queued: the next one is checked against it, and comes after it."""
    sending: set[str] = field(default_factory=set, init=False)
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
        with self.call(device, name, text, client, operator) as where:
            command = self.command(device, name)
            try:
                checked = None if command.argument is None else self.arguments.check(command.argument, text or "")
            except ArgumentError as error:
                faults = (f"{name}: {error.faults[0]}", *error.faults[1:])
                raise CommandRefused(FAILED, f"{name}: {error}", where, faults) from error
            document = None if checked is None else checked.document
            transaction_id = (checked and checked.transaction_id) or self._new_transaction_id()
            with self.checking:
                self.require_readiness(name, where)
                self.require_mode(device, name, where)
                before = self.tracker.of_transaction(device, name, transaction_id)
                # Asked once: a command that is withdrawn at this moment no longer waits, and must not go to `commands`.
                waits = where in self.approvals if before is None else before.state in WAITING
                if before is None:
                    self.require_allowed(device, command, document, where)
                    message = self.message(device, command, document, transaction_id)
                    message = msgspec.structs.replace(message, client=client, operator=operator)
                    if waits:
                        message = hold(self, message, command, where)
                    else:
                        self.tracker.begin(message)
                elif (again := self._repeated(before, digest(document), where)) is not None:
                    return again
                else:
                    # A repeated call changes neither the issuer nor the approver.
                    message = msgspec.structs.replace(before.message, argument=document)
                under_way = self.send(message.id, (held_record if waits else command_record)(message, headers))
            with under_way as sending:
                self._confirm(message, sending, waits=waits, again=before is not None)
        return message.id

    def _confirm(self, message: CommandMessage, sending: Sending, *, waits: bool, again: bool) -> None:
        tags = f"transaction_id={message.transaction_id} id={message.id} device={message.device}"
        try:
            sending.result()
        except (NotSent, OutcomeUnknown) as error:
            if again or isinstance(error, OutcomeUnknown):  # a second time says nothing about the first one
                _log.warning("command unconfirmed %s: %s", tags, error)
                raise self.unknown(message, str(error), waits=waits) from error
            self.tracker.change(message.id, GIVEN_UP, ended=self.clock.now_us(), text=str(error))
            end = "does not wait for a second person" if waits else "will not be executed"
            raise NotSent(f"{message.command} was not sent, and {end}: {error}") from error
        if not waits:
            self.tracker.change(message.id, SENT)
        _log.info("command %s %s", "held" if waits else "sent", tags)

    @contextmanager
    def call(self, device: str, name: str, argument: str | None, client: str, operator: str) -> Iterator[str]:
        """Note the refusal of a Tango call, and refuse one from another host; the value names class and command."""
        where = f"{self.classes[device].name}.{name}"
        host = client.partition(", ")[0]
        try:
            if self.commanders and not {host, host.partition(" (")[0]} & self.commanders:
                expected = f"expected a client on one of {', '.join(sorted(self.commanders))}"
                what = f"{name} is not taken from there: {expected}, got {host or 'an unknown one'}"
                raise CommandRefused(NOT_ALLOWED, what, where)
            yield where
        except (CommandRefused, NotSent) as error:
            self.refusals.note(device, name, error, argument=argument, client=client, operator=operator)
            raise

    def send(self, id: str, record: Record) -> AbstractContextManager[Sending]:
        """Queue a record of a command; the context, which its call is in while it waits, bars other calls from it."""
        assert self.checking.locked(), f"{id} is sent while another command may be checked against what was before"
        assert id not in self.sending, f"two calls would send {id}, and judge each by its own result"
        sending = self.sender.send(record, self.timeout)
        self.sending.add(id)
        return self._under_way(id, sending)

    @contextmanager
    def _under_way(self, id: str, sending: Sending) -> Iterator[Sending]:
        try:
            yield sending
        finally:
            self.sending.discard(id)

    def command(self, device: str, name: str) -> CommandDefinition:
        """Return a command of a device."""
        return next(command for command in self.classes[device].commands if command.name == name)

    def why_not_held(self) -> str:
        """Return the reason why the lease does not allow this server to write to the bus; empty: it does.

        The record may leave at any time until the timeout, and another server may hold the lease by then.
        """
        by = self.clock.monotonic() + min(self.timeout, _LONGEST_SENDING)
        return self.lease.why_not_held(by, self.clock.now_us())

    def show(self, device: str) -> tuple[str, str | None]:
        """Return State and obsState for the next command; obsState is None for a device without one."""
        return self.shown.look(device)[:2]

    def require_readiness(self, name: str, where: str) -> None:
        """Refuse a call while this server may not write commands, or does not know the present state."""
        if why := why_refused(self.clock):
            what = f"was not sent: {why}"
        elif not self.ready():
            what = "was not sent: the bus was not read yet, so the present state is not known; try again later"
        elif why := self.why_not_held():
            what = f"was not sent: {why}"
        else:
            return
        raise CommandRefused(FAILED, f"{name} {what}", where)

    def require_mode(self, device: str, name: str, where: str) -> None:
        """Refuse a command of a device that its adminMode has taken out of use, or may have."""
        if self.states.has_lost(device, ADMIN_MODE):
            raise CommandRefused(NOT_ALLOWED, f"Command {name} not allowed: {MODE_LOST}", where)
        mode = self.states.label(device, ADMIN_MODE)
        if mode in DISABLED:
            what = f"Command {name} not allowed when adminMode is {mode}; expected ONLINE or ENGINEERING, got {mode}"
            raise CommandRefused(NOT_ALLOWED, what, where)

    def require_allowed(
        self, device: str, command: CommandDefinition, document: dict[str, Any] | None, where: str
    ) -> None:
        """Refuse a command that the state of its device forbids, or whose argument contradicts its reports."""
        state, obs_state, unsettled = self.shown.look(device)
        origin = f"{self.classes[device].name}.is_{command.name}_allowed()"
        others = self.classes[device].commands
        if why := why_not_allowed(command, state=state, obs_state=obs_state, under_way=unsettled, others=others):
            raise CommandRefused(NOT_ALLOWED, why, origin)
        if (count := len(self.tracker.under_way(device))) >= MOST_PENDING:
            what = f"{command.name}: {count} commands are without an outcome; expected fewer than {MOST_PENDING}"
            raise CommandRefused(NOT_ALLOWED, what, origin)
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
            if before.id in self.sending:  # its caller may be told that it was never sent
                raise self.unknown(before.message, "another call is sending it", waits=waits)
            if self.clock.now_us() < before.message.not_after:
                return None  # it may never arrive: the same id prevents a second execution
            # A slow bus may have it all the same.
            raise self.unknown(before.message, "it was not seen on the bus yet", waits=waits)
        tags = before.message.transaction_id, before.id, before.device
        _log.info("repeated transaction_id=%s id=%s device=%s", *tags)
        return before.id

    def message(
        self, device: str, command: CommandDefinition, document: dict[str, Any] | None, transaction_id: str
    ) -> CommandMessage:
        """Return a command that is issued now."""
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
        )

    @staticmethod
    def unknown(message: CommandMessage, why: str, *, waits: bool = False) -> OutcomeUnknown:
        """Return the error of a call whose command may or may not be on the bus."""
        limit = "cannot be approved" if waits else "will not begin"
        return OutcomeUnknown(
            f"{message.command}: outcome unknown: {why}. It {limit} after {utc_seconds(message.not_after)}; ask"
            f" GetCommand({message.id!r}), or repeat the call with transaction_id {message.transaction_id}"
        )

    def _new_transaction_id(self) -> str:
        day = utc_text(self.clock.now_us())[:10].replace("-", "")
        return f"txn-sdp-{day}-{secrets.token_hex(8)}"

"""Approval and withdrawal of commands by a second person.

A deployment may list commands that wait for a second person. Such a call is checked as any other; then the command is
written to a topic of its own, where it waits. The approval checks it again in the state of that moment, and writes it
to the topic of commands under its id. As a controller executes each id once, nothing is executed twice. The withdrawal
writes the outcome; from then on this server takes no approval, whether or not the bus has confirmed the outcome.
"""

import logging
import re
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from facade.flows.commands.messages import AckMessage, CommandMessage, command_record, given_by, unapproved_record
from facade.flows.commands.outcomes import CLOSED, HELD, NEW, SENT, WAITING, Tracked
from facade.flows.commands.refused import FAILED, NOT_ALLOWED
from facade.flows.commands.rules import MOST_PENDING
from facade.kernel.bus.port import Headers
from facade.kernel.clock import as_duration
from facade.kernel.errors import CommandRefused, NotSent, OutcomeUnknown
from facade.kernel.icd.model import CommandDefinition

if TYPE_CHECKING:
    from facade.flows.commands.gateway import Gateway

_log = logging.getLogger(__name__)

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
"""Name that a person states; it may have a subject, see `signature`."""
_SUBJECT = re.compile(r"<([^<>\s]+#[^<>\s]+)>\s*$")


class Named(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON argument that names its operator."""

    operator: Name


class Decision(Named, kw_only=True):
    """The JSON argument of ApproveCommand and WithdrawCommand: the waiting command and the name of a second person."""

    id: str


_Named = TypeVar("_Named", bound=Named)


def read_named(kind: type[_Named], text: str, where: str) -> _Named:
    """Read a JSON argument that names its operator.

    Raises
    ------
    CommandRefused
        It has another form, or the name of the operator is not one that can be shown.
    """
    try:
        named = msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        form = f"expected a JSON object with the keys {' and '.join(sorted(kind.__struct_fields__))}"
        raise CommandRefused(FAILED, f"argument: {error}; {form}, got {text!r:.200}", where) from error
    require_name(named.operator, where)
    return named


def require_name(operator: str, where: str) -> None:
    """Refuse a name that cannot be shown."""
    if not (operator.strip() and operator.isprintable()):
        what = f"$.operator: expected a name without control characters, got {operator!r:.100}"
        raise CommandRefused(FAILED, what, where)


def signature(name: str, subject: str) -> str:
    """Return the name in records of a person whom a provider of OpenID Connect knows as ISSUER#SUB."""
    return f"{name} <{subject}>"


def is_second_person(first: CommandMessage, operator: str) -> bool:
    """Return whether the caller is another person than the giver of the command, by the names that both stated.

    Two subjects are two persons, whatever their names. A subject and a name without one may be the same person, and are
    not two. Hosts and processes are not compared: one process may act for several people, and after a failover Tango
    gives it another name.
    """
    (had_subject, before), (has_subject, now) = _identity(first.operator), _identity(operator)
    # Without a name: from a release that did not require one.
    return bool(before) and had_subject == has_subject and now != before


def _identity(operator: str) -> tuple[bool, str]:
    """Return whether a name has a subject, and the subject, or else the name as people tell names apart."""
    found = _SUBJECT.search(operator)
    return (True, found[1]) if found else (False, operator.strip().casefold())


def hold(gateway: "Gateway", message: CommandMessage, command: CommandDefinition, where: str) -> CommandMessage:
    """Let a new command wait for a second person, and return it with the times that hold until the approval.

    Raises
    ------
    CommandRefused
        Its giver has stated no name, or too many commands wait.
    """
    name = command.name
    waiting = sum(one.state in WAITING for one in gateway.tracker.pending(message.device))
    if not message.operator:
        how = "give it with GiveCommand, or with `sdp-facade command --operator NAME`"
        what = f"{name} waits for a second person: expected the name of the operator, got none; {how}"
    elif waiting >= MOST_PENDING:
        what = f"{name}: {waiting} commands wait for a second person; expected fewer than {MOST_PENDING}"
    else:
        # Not from `issued`, which stays ahead after the clock was set back.
        until = gateway.clock.now_us() + as_duration(command.approval_within)
        held = msgspec.structs.replace(message, not_after=until, deadline=until, ceiling=until)
        gateway.tracker.begin(held, HELD)
        return held
    raise CommandRefused(NOT_ALLOWED, what, where)


def approve(gateway: "Gateway", device: str, decision: Decision, headers: Headers = (), *, client: str = "") -> str:
    """Put a command that waits for a second person on the bus, and return its id.

    Raises
    ------
    CommandRefused
        It does not wait, the caller is not another person, or it is not allowed now; the text says why.
    NotSent, OutcomeUnknown
        The bus did not confirm it.
    """
    operator, tracker = decision.operator, gateway.tracker
    with gateway.call(device, "ApproveCommand", decision.id, client, operator) as where:
        with gateway.checking:
            tracked = _decided(gateway, device, decision, "ApproveCommand", where)
            waiting, appended_us = tracked.message, tracked.appended_us
            if not is_second_person(waiting, operator):
                expected = f"expected another person than {_giver(waiting)}"
                if _identity(waiting.operator)[0] != _identity(operator)[0]:
                    expected += ", and both with a subject or neither"
                what = f"{waiting.command}: {expected}, got {operator}, from {client}"
                raise CommandRefused(NOT_ALLOWED, what, where)
            command = gateway.command(device, waiting.command)
            gateway.require_mode(device, command.name, where)
            gateway.require_allowed(device, command, waiting.argument, where)
            now = gateway.message(device, command, waiting.argument, waiting.transaction_id)
            message = msgspec.structs.replace(
                now,
                id=waiting.id,
                client=waiting.client,
                operator=waiting.operator,
                approver=operator,
                approver_client=client,
                # After that time it may be UNDELIVERED, and must not begin any more.
                not_after=min(now.not_after, waiting.not_after),
            )
            assert is_second_person(message, message.approver), f"{message.id}: {operator} would approve an own command"
            if not tracker.change(message.id, NEW, message):
                raise _not_waiting(waiting.id, where)
            under_way = gateway.send(message.id, command_record(message, headers))
        with under_way as sending:
            try:
                sending.result()
            except NotSent as error:
                tracker.change(waiting.id, HELD, waiting, appended_us=appended_us)
                what = "the approval was not sent, and the command goes on waiting for a second person"
                raise NotSent(f"{message.command}: {what}: {error}") from error
            except OutcomeUnknown as error:
                raise gateway.unknown(message, str(error)) from error
            tracker.change(message.id, SENT)
    _log.info("command approved id=%s device=%s", message.id, device)
    return message.id


def withdraw(gateway: "Gateway", device: str, decision: Decision, headers: Headers = (), *, client: str = "") -> str:
    """End a command that waits for a second person, and return its id.

    Raises
    ------
    CommandRefused
        The command does not wait, or another person gave it; the text says why.
    NotSent, OutcomeUnknown
        The bus did not confirm it.
    """
    operator, clock = decision.operator, gateway.clock
    with gateway.call(device, "WithdrawCommand", decision.id, client, operator) as where:
        with gateway.checking:
            waiting = _decided(gateway, device, decision, "WithdrawCommand", where).message
            # Each person may do one of the two: approve a command or withdraw it.
            if waiting.operator.strip() and _identity(waiting.operator) != _identity(operator):
                expected = f"expected the person who gave it, {_giver(waiting)}"
                what = f"{waiting.command}: {expected}, got {operator}, from {client}"
                raise CommandRefused(NOT_ALLOWED, what, where)
            ack = AckMessage(
                id=waiting.id,
                device=device,
                command=waiting.command,
                status="ABORTED",
                time=clock.now_us(),
                origin=gateway.origin,
                text=f"withdrawn by {given_by(operator, client)}",
                withdrawer=operator,
                withdrawer_client=client,
            )
            began = clock.monotonic()
            is_first = gateway.tracker.change(waiting.id, CLOSED)
            under_way = gateway.send(waiting.id, unapproved_record(ack, headers))
        with under_way as sending:
            try:
                sending.result()
                now = clock.monotonic()
                if gateway.lease.held_for(now) <= now - began:  # this process stood still
                    raise OutcomeUnknown("another device server may have had it approved meanwhile")
            except (NotSent, OutcomeUnknown) as error:
                if is_first and isinstance(error, NotSent):  # otherwise it says nothing about the first time
                    gateway.tracker.change(waiting.id, HELD)
                    raise NotSent(f"{waiting.command} was not withdrawn, and goes on waiting: {error}") from error
                remedy = f"ask GetCommand({waiting.id!r}), or withdraw it again"
                what = f"outcome of the withdrawal unknown: {error}; {remedy}"
                raise OutcomeUnknown(f"{waiting.command}: {what}") from error
    _log.info("command withdrawn id=%s device=%s", waiting.id, device)
    return waiting.id


def _decided(gateway: "Gateway", device: str, decision: Decision, name: str, where: str) -> Tracked:
    """Return the command that somebody decides about."""
    gateway.require_readiness(name, where)
    if not gateway.caught_up():
        what = "was not sent: the newest commands and acknowledgements are still being read; try again"
        raise CommandRefused(FAILED, f"{name} {what}", where)
    found = gateway.tracker.find(decision.id)
    if (
        found is None
        or found.state not in WAITING
        or found.device != device
        or decision.id in gateway.sending
        or gateway.clock.now_us() > found.message.not_after
    ):
        raise _not_waiting(decision.id, where)
    return found


def _giver(waiting: CommandMessage) -> str:
    return given_by(waiting.operator, waiting.client) or "a client that Tango does not identify"


def _not_waiting(id: str, where: str) -> CommandRefused:
    what = f"$.id: expected the id of a command of this device that waits for a second person, got {id!r:.200}"
    return CommandRefused(FAILED, what, where)

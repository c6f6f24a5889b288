"""Commands, orders, refusals and modes as entries of `sdp-facade audit`."""

import json

from facade.flows.commands.messages import AckMessage, decode_command, decode_held, decode_refusal, given_by
from facade.kernel.bus.port import Record
from facade.kernel.manifest import AuditEntry
from facade.kernel.outcome import RecordRejected, Suppressed
from facade.sdp.device_state import decode_state


def command_entry(record: Record) -> AuditEntry | None:
    """Return the issuer of a command, or the controller and the parent of an order; None: it is unreadable."""
    found = decode_command(record.value)
    if isinstance(found, Suppressed | RecordRejected):
        return None
    argument = "" if found.argument is None else json.dumps(found.argument)
    if found.parent:
        said = " ".join(filter(None, (f"for {found.parent}", argument)))
        by = f"controller {found.origin}"
        return AuditEntry(found.issued, f"{found.command} ordered", found.device, by, "", said, "order")
    if not found.approver:
        who = found.client, found.operator
        return AuditEntry(found.issued, found.command, found.device, *who, argument, "command")
    said = " ".join(filter(None, (f"{found.id} of {given_by(found.operator, found.client)}", argument)))
    act, who = f"{found.command} approved", (found.approver_client, found.approver)
    return AuditEntry(found.issued, act, found.device, *who, said, "approval")


def held_entry(record: Record) -> AuditEntry | None:
    """Return the act of giving or withdrawing a command that needs a second person; None: the record is neither."""
    if isinstance(found := decode_held(record.value), AckMessage):
        if not found.withdrawer:
            return None
        act, who = f"{found.command} withdrawn", (found.withdrawer_client, found.withdrawer)
        return AuditEntry(found.time, act, found.device, *who, found.id, "approval")
    entry = command_entry(record)
    return None if entry is None else entry._replace(act=f"{entry.act} held", kind="approval")


def refusal_entry(record: Record) -> AuditEntry | None:
    """Return the issuer of a refused command; None: it is unreadable."""
    found = decode_refusal(record.value)
    if isinstance(found, Suppressed | RecordRejected):
        return None
    act = f"{found.command} refused"
    return AuditEntry(found.time, act, found.device, found.client, found.operator, found.text, "refusal")


def mode_entry(record: Record) -> AuditEntry | None:
    """Return the act of setting a mode; None: the record is unreadable."""
    found = decode_state(record.value)
    if isinstance(found, Suppressed | RecordRejected):
        return None
    act = f"{found.attribute} {found.value}"
    return AuditEntry(found.time, act, found.device, found.client, found.operator, kind="mode")

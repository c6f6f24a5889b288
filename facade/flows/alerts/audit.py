"""Actions of operators about alarms as entries of `sdp-facade audit`."""

from facade.flows.alerts.messages import Action, decode_action
from facade.kernel.bus.port import Record
from facade.kernel.manifest import AuditEntry


def action_entry(record: Record) -> AuditEntry | None:
    """Return the operator's action on an alarm; None: the record is unreadable."""
    found = decode_action(record.value)
    if not isinstance(found, Action):
        return None
    target = f"{found.condition}@{found.source}"
    return AuditEntry(found.time, found.action, target, found.client, found.operator, found.comment, "alarm")

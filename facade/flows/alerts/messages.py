"""The records of the alert path; their wire forms are the JSON Schemas of the same names.

Times are Unix times in microseconds, as in every message of the bus.
"""

from typing import Literal

import msgspec

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder

ALERTS, PACKETS, STATES = "alerts", "alert-packets", "alert-state"
"""Topics, by their names in the ICD."""

PACKET = "packet"
"""Header of an alert that came as a packet: partition and offset of the packet, with a / between."""

Severity = Literal["INFO", "WARNING", "ALARM", "CRITICAL"]
SEVERITIES: tuple[Severity, ...] = ("INFO", "WARNING", "ALARM", "CRITICAL")
"""The least one first."""
ACTIVE, CLEARED = "ACTIVE", "CLEARED"

ActionKind = Literal[
    "ACKNOWLEDGE", "COMMENT", "SHELVE", "UNSHELVE", "RESET", "REMOVE_FROM_SERVICE", "RETURN_TO_SERVICE"
]

AlarmKey = tuple[str, str]
"""Condition and source."""


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """Something that came along in a packet and can be fetched from there."""

    name: str
    content_type: str
    size: int
    """[bytes]"""
    sha256: str
    packet: str
    """Partition and offset on ``alert-packets``, with a / between."""


class Alert(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="schema", tag="alert/1", kw_only=True):
    """A source says that a condition is active or has cleared; the wire form is ``alert.schema.json``."""

    condition: str
    source: str
    severity: Severity
    state: Literal["ACTIVE", "CLEARED"]
    text: str
    raised_at: int
    """When the condition became active [Unix us]; the same in the alert that clears it."""
    sequence: int
    """Counts the alerts of the source."""
    values: dict[str, float] = {}
    attachments: list[Attachment] = []
    traceparent: str = ""

    @property
    def key(self) -> AlarmKey:
        """Return the alarm that it is about."""
        return self.condition, self.source


class Action(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="schema", tag="alert-action/1", kw_only=True):
    """What an operator does about one alarm; the wire form is ``alert-action.schema.json``."""

    id: str
    action: ActionKind
    condition: str
    source: str
    operator: str
    comment: str
    time: int
    """When the operator did it [Unix us]."""
    origin: str
    occurrence: int = 0
    """For ACKNOWLEDGE: the occurrence that the operator saw."""
    until: int = 0
    """For SHELVE: when it ends [Unix us]."""

    @property
    def key(self) -> AlarmKey:
        """Return the alarm that it is about."""
        return self.condition, self.source


class Alarm(msgspec.Struct, omit_defaults=True, tag_field="schema", tag="alert-state/1", kw_only=True):
    """The state of the alarm of one condition and source; the wire form is ``alert-state.schema.json``."""

    condition: str
    source: str
    state: str
    """As of IEC 62682, beneath shelving, suppression and removal from service."""
    through: int
    """Sequence number of the newest alert or action that is in it."""
    occurrence: int = 0
    """Sequence number of the alert that last asked for an acknowledgement."""
    severity: Severity = "INFO"
    text: str = ""
    raised_at: int = 0
    changed_at: int = 0
    """When it changed last, by the broker's clock [Unix us]."""
    source_raised_at: int = 0
    """When the newest occurrence began by its source, believed or not [Unix us]."""
    source_sequence: int = 0
    """The source's own number of the newest alert."""
    raised: int = 0
    """How often it was raised since it was last at rest and forgotten."""
    pending: Literal["", "RAISE", "CLEAR"] = ""
    """What a delay holds back, and until when [Unix us], and by which alert."""
    pending_at: int = 0
    pending_occurrence: int = 0
    shelved_until: int = 0
    """0: it is not shelved [Unix us]."""
    out_of_service: bool = False
    action: str = ""
    """What an operator did last, who, why and when [Unix us]."""
    operator: str = ""
    comment: str = ""
    acted_at: int = 0
    acted: list[int] = []
    """Sequence numbers of the newest actions that took effect: others on the log were refused."""

    @property
    def key(self) -> AlarmKey:
        """Return condition and source."""
        return self.condition, self.source


decode_alert = msgspec.json.Decoder(Alert).decode
decode_action = msgspec.json.Decoder(Action).decode
decode_alarm = BatchDecoder(Alarm).decode_one
encode = msgspec.json.Encoder().encode


def alert_record(message: Alert | Action) -> Record:
    """Return the record of an alert or of an operator's action."""
    return Record(topic=ALERTS, key=message.condition.encode(), value=encode(message))


def state_record(key: AlarmKey, alarm: Alarm | None) -> Record:
    """Return the record of an alarm's state; None: that it is forgotten."""
    value = None if alarm is None else encode(alarm)
    return Record(topic=STATES, key=f"{key[0]}@{key[1]}".encode(), value=value)

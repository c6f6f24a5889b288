"""The records of the alert path; their wire forms are the JSON Schemas of the same names.

Times are Unix times in microseconds, as in every message of the bus.
"""

from dataclasses import replace
from typing import get_args

import msgspec

from facade.kernel.bus.port import Record
from facade.kernel.codec.decode import BatchDecoder
from facade.sdp import alarm_states as states
from facade.sdp import messages
from facade.sdp.messages import ActionTaken as ActionTaken
from facade.sdp.messages import AlertNotification as AlertNotification
from facade.sdp.messages import Attachment as Attachment

ALERTS, ACTIONS, PACKETS, STATES = "alerts", "alert-actions", "alert-packets", "alert-state"
NOTIFICATIONS = "alert-notifications"
FOLLOWING, WAITING, SENDING, SENT, ENDING = get_args(messages.AlertNotificationPhase)
"""Phases of telling a receiver of an alarm."""

PACKET = "packet"
"""Header of an alert that came as a packet: log, partition and offset of the packet, with / between. The log is the id
of the topic, since offsets begin at 0 again on a topic that is created again; see
`facade.kernel.bus.port.OffsetRange`."""

ACTIVE, CLEARED = "ACTIVE", "CLEARED"

ActionKind = messages.AlertActionAction
MOST_MISSING = 1_000_000
"""Larger gaps in a source's numbers mean another numbering, not lost alerts."""

AlarmKey = tuple[str, str]
"""Condition and source."""


class Alert(messages.Alert, frozen=True, kw_only=True):
    """A source says that a condition is active or has cleared."""

    @property
    def key(self) -> AlarmKey:
        """Return the alarm of the alert."""
        return self.condition, self.source


class Action(messages.AlertAction, frozen=True, kw_only=True):
    """An operator's action on an alarm."""

    @property
    def key(self) -> AlarmKey:
        """Return the alarm of the action."""
        return self.condition, self.source


class Alarm(messages.AlertState, kw_only=True):
    """The state of the alarm of one condition and source; alerts before the newest are merged into it."""

    @property
    def is_active(self) -> bool:
        """Return whether its source reports the condition as active."""
        return self.pending == "RAISE" or (self.state in states.ACTIVE and self.pending != "CLEAR")

    @property
    def key(self) -> AlarmKey:
        """Return condition and source."""
        return self.condition, self.source


decode_alert = BatchDecoder(Alert).decode_one
decode_action = BatchDecoder(Action).decode_one
decode_alert_or_action = BatchDecoder[Alert | Action](Alert, Action).decode_one
decode_alarm = BatchDecoder(Alarm).decode_one
decode_notification = BatchDecoder(AlertNotification).decode_one
encode = msgspec.json.Encoder().encode


def alert_record(message: Alert | Action) -> Record:
    """Return the record of an alert or of an operator's action."""
    return Record(topic=ALERTS, key=message.condition.encode(), value=encode(message))


def action_records(action: Action) -> tuple[Record, Record]:
    """Return the records of an operator's action: its proof, and the one that gives it its place among the alerts."""
    place = alert_record(action)
    return replace(place, topic=ACTIONS), place


def state_record(key: AlarmKey, alarm: Alarm | None) -> Record:
    """Return the record of an alarm's state; None: a tombstone."""
    value = None if alarm is None else encode(alarm)
    return Record(topic=STATES, key=f"{key[0]}@{key[1]}".encode(), value=value)

"""The records of the telescope model and of the mirror's rules, and the mirrors that write the model."""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER, SECOND, Time
from facade.kernel.codec.decode import BatchDecoder
from facade.sdp.messages import MirrorRule as MirrorRule
from facade.sdp.messages import TelescopeAttribute as TelescopeAttribute

MODEL, RULES = "telescope.model", "telescope.mirror"
decode_attribute = BatchDecoder(TelescopeAttribute).decode_one
decode_rule = BatchDecoder(MirrorRule).decode_one
CONNECTED: Final = "CONNECTED"
DISCONNECTED: Final = "DISCONNECTED"
ENDED: Final = "ENDED"
"""States of the connection to an attribute's device."""
_NAME = re.compile(r"(tango://[^/\s]+/)?[^/\s]+/[^/\s]+/[^/\s]+/[^/\s]+")
OVERLAP = 2 * SECOND
"""Longest time by which a former mirror's records may follow the first record of the next one: they were under
way."""
SILENT = 25 * SECOND
"""Time without records after which a mirror counts as ended; each attribute has a heartbeat every 10 s."""
_MOST = 100


def is_name(text: str) -> bool:
    """Return whether a text is the full name of an attribute, or a pattern of such names."""
    return _NAME.fullmatch(text) is not None


def device_of(name: str) -> str:
    """Return the device of an attribute, by its full name."""
    return name.rpartition("/")[0]


def attribute_record(message: TelescopeAttribute) -> Record:
    """Return the record of an attribute of the telescope."""
    return Record(topic=MODEL, key=message.name.encode(), value=msgspec.json.encode(message))


def rule_record(rule: MirrorRule) -> Record:
    """Return the record that sets a rule."""
    return Record(topic=RULES, key=rule.rule.encode(), value=msgspec.json.encode(rule))


class MirrorWriter(NamedTuple):
    """A mirror that writes; of several at once, the greatest one is valid."""

    epoch: int = 0
    incarnation: str = ""


def writer_of(message: TelescopeAttribute) -> MirrorWriter:
    """Return the writer of a record."""
    return MirrorWriter(message.epoch, message.incarnation)


def is_next(before: TelescopeAttribute, after: TelescopeAttribute) -> bool:
    """Return whether no record is missing between two records.

    A mirror that starts reports no gap if the record that it finds is still valid. Records of two mirrors have separate
    counts: they are consecutive if they have the same content.
    """
    if writer_of(before) != writer_of(after):
        return (before.value, before.time) == (after.value, after.time)
    return after.number - before.number in (0, 1)


class Writers:
    """The times at which each mirror has written, by the broker's clock; for any thread."""

    def __init__(self) -> None:
        self._heard: dict[MirrorWriter, tuple[Time, Time]] = {}
        """Times of the first and the newest record of each."""
        self._newest = NEVER

    def take(self, records: Iterable[Record]) -> list[TelescopeAttribute]:
        """Process records of the topic, and return the readable ones."""
        found = []
        for record in records:
            message = decode_attribute(record.value)
            if isinstance(message, TelescopeAttribute):
                self.note(message, record.timestamp_us)
                found.append(message)
        return found

    def note(self, message: TelescopeAttribute, at: Time) -> None:
        """Process a record with the broker's timestamp."""
        writer = writer_of(message)
        first, last = self._heard.get(writer, (at, at))
        self._heard[writer] = min(first, at), max(last, at)
        self._newest = max(self._newest, at)
        if len(self._heard) > _MOST:
            del self._heard[min(self._heard, key=lambda one: self._heard[one][1])]

    def next_epoch(self) -> int:
        """Return the epoch for a mirror that starts now."""
        return max((one.epoch for one in self._heard), default=0) + 1

    def is_silent(self, writer: MirrorWriter) -> bool:
        """Return whether a mirror has stopped writing while others write."""
        _, last = self._heard.get(writer, (NEVER, NEVER))
        return self._newest - last > SILENT

    def at_once(self) -> list[MirrorWriter]:
        """Return the mirrors that write at the same time, the greatest first; none, if there is only one."""
        heard = dict(self._heard)
        live = [one for one, (_, last) in heard.items() if self._newest - last <= SILENT]
        found = [one for one in live if any(_overlap(heard[one], heard[other]) for other in live if other != one)]
        return sorted(found, reverse=True)

    def beside(self, own: MirrorWriter) -> list[MirrorWriter]:
        """Return the other mirrors that write at the same time."""
        return [one for one in self.at_once() if one != own]


def _overlap(one: tuple[Time, Time], other: tuple[Time, Time]) -> bool:
    return min(one[1], other[1]) - max(one[0], other[0]) > OVERLAP

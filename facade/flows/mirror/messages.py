"""The records of the telescope model and of the rules that say what is mirrored."""

import re
from typing import Final

import msgspec

from facade import messages
from facade.bus.port import Record
from facade.codec.decode import BatchDecoder

MODEL, RULES = "telescope.model", "telescope.mirror"
"""Topics, by their names in the ICD."""

TelescopeAttribute = messages.TelescopeAttribute
MirrorRule = messages.MirrorRule
decode_attribute = BatchDecoder(TelescopeAttribute).decode_one
decode_rule = BatchDecoder(MirrorRule).decode_one

CONNECTED: Final = "CONNECTED"
DISCONNECTED: Final = "DISCONNECTED"
ENDED: Final = "ENDED"
"""What is known of the connection to an attribute's device."""

_NAME = re.compile(r"(tango://[^/\s]+/)?[^/\s]+/[^/\s]+/[^/\s]+/[^/\s]+")


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

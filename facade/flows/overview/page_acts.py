"""What people did at an operator's page: the records of `page-acts`, and their entries of `sdp-facade audit`."""

from typing import Final

import msgspec

from facade.kernel.bus.port import Record
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.manifest import AuditEntry
from facade.sdp.messages import PageAct

TOPIC: Final = "page-acts"
_KINDS: Final = {"redrive": "redrive", "sign-in": "sign-in", "sign-out": "sign-in"}
KEPT: Final = _KINDS.keys()
"""Acts that are kept when they are done as well; other records have the rest, with the person."""
KEPT_REFUSED: Final = KEPT | {"admin-mode"}
"""Acts that are kept when a device refused them: it writes no record of a mode that it did not set."""
COMMENT: Final = "comment"
"""A comment about a command, a time or anything else: its record is durable before the person hears that it is kept."""
_decode = BatchDecoder(PageAct).decode_one


def act_record(act: PageAct) -> Record:
    """Return the record of an act."""
    return Record(topic=TOPIC, key=act.origin.encode(), value=msgspec.json.encode(act))


def page_entry(record: Record) -> AuditEntry | None:
    """Return the entry of an act; None: the record is unreadable."""
    found = _decode(record.value)
    if not isinstance(found, PageAct):
        return None
    act, kind = f"{found.act} at the page", (_KINDS | {COMMENT: COMMENT}).get(found.act, "refusal")
    if found.refused:
        act, kind = f"{found.act} refused by the page", "refusal"
    return AuditEntry(found.time, act, found.target or found.origin, found.address, found.person, found.text, kind)

"""Records that could not be used, set aside whole.

A dead letter is the original key, value and headers; what is added is in headers that begin with
``dl.``, so that a replay needs only to drop those.
"""

from facade.bus.port import Record
from facade.outcome import Rejected

TOPIC = "dead-letters"
PREFIX = "dl."


def dead_letter(record: Record, why: Rejected, *, by: str) -> Record:
    """Return the record for the dead-letter topic.

    Parameters
    ----------
    by
        The worker or device server that could not use it.
    """
    added = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp_us": str(record.timestamp_us),
        "reason": why.reason,
        "path": why.path,
        "detail": why.detail[:500],
        "by": by,
    }
    headers = tuple((PREFIX + name, text.encode()) for name, text in added.items())
    return Record(topic=TOPIC, key=record.key, value=record.value, headers=(*record.headers, *headers))


def original(letter: Record) -> Record:
    """Return the record as it was when it was set aside; the inverse of `dead_letter`."""
    added = {name[len(PREFIX) :]: raw.decode() for name, raw in letter.headers if name.startswith(PREFIX)}
    return Record(
        topic=added.get("topic", ""),
        key=letter.key,
        value=letter.value,
        headers=tuple(header for header in letter.headers if not header[0].startswith(PREFIX)),
        partition=int(added.get("partition", -1)),
        offset=int(added.get("offset", -1)),
        timestamp_us=int(added.get("timestamp_us", 0)),
    )

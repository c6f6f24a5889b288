"""The records on ``reservations``; the key of a record is the id of its reservation."""

from typing import Final

import msgspec

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder
from facade.codec.plausible import wrong_key, wrong_unit
from facade.messages import Reservation
from facade.outcome import INCONSISTENT, Rejected, Unused

RESERVATIONS = "reservations"
"""Topic, by its name in the ICD."""

REQUESTED: Final = "REQUESTED"
GRANTED: Final = "GRANTED"
REFUSED: Final = "REFUSED"
RELEASED: Final = "RELEASED"
STATES = (REQUESTED, GRANTED, REFUSED, RELEASED)

_decode = BatchDecoder(Reservation).decode_one


def read_reservation(record: Record) -> Reservation | Unused:
    """Return the reservation of a record, or why there is none; whatever the record is, this does not raise."""
    one = _decode(record.value)
    if not isinstance(one, Reservation):
        return one
    if why := wrong_key(record.key, one.id, "$.id") or wrong_unit(one.time, record.timestamp_us, "$.time"):
        return why
    if one.state in (REQUESTED, GRANTED) and one.expires < one.time:
        return Rejected(INCONSISTENT, "$.expires", f"expected at least $.time, {one.time}, got {one.expires}")
    return one


def reservation_record(one: Reservation) -> Record:
    """Return the record of a reservation."""
    return Record(topic=RESERVATIONS, key=one.id.encode(), value=msgspec.json.encode(one))


def owner_of(one: Reservation) -> str:
    """Return who owns a reservation: the id of a processing block, or a subarray such as ``subarray/01``."""
    return one.pb_id or f"subarray/{one.subarray:02d}"

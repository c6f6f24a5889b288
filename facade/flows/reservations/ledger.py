"""The records on ``reservations``, and the ledger of them: held resources, their owners, and conflicts of owners.

The key of a record is the id of its reservation. Reservations expire by the clock, without a record. The ledger keeps
an expired reservation, as a renewal may only be late.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER, Time, utc_text
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.codec.plausible import wrong_key, wrong_unit
from facade.kernel.outcome import INCONSISTENT, USED, Outcome, RecordRejected, Unused
from facade.kernel.recent import Bounded
from facade.kernel.runtime.projection import TOO_MANY, Projection
from facade.sdp.messages import Reservation

RESERVATIONS = "reservations"
REQUESTED: Final = "REQUESTED"
GRANTED: Final = "GRANTED"
REFUSED: Final = "REFUSED"
RELEASED: Final = "RELEASED"
STATES = (REQUESTED, GRANTED, REFUSED, RELEASED)
_decode = BatchDecoder(Reservation).decode_one
MOST = 10_000
"""Most reservations that are not released."""
MOST_NAMES = 100_000
"""Most names of resources in them."""
MOST_RELEASED = 20_000
"""Released ones with a known sequence; an old record of another one counts as new if it comes again."""
MOST_NAMES_SHOWN = 256
"""Most shown names of resources in one reservation."""
Resource = tuple[str, str]
"""Kind and name."""


def read_reservation(record: Record) -> Reservation | Unused:
    """Return the reservation of a record, or the reason why it is unusable. It raises no exception."""
    one = _decode(record.value)
    if not isinstance(one, Reservation):
        return one
    if why := wrong_key(record.key, one.id, "$.id") or wrong_unit(one.time, record.timestamp_us, "$.time"):
        return why
    if one.state in (REQUESTED, GRANTED) and one.expires < one.time:
        return RecordRejected(INCONSISTENT, "$.expires", f"expected at least $.time, {one.time}, got {one.expires}")
    return one


def reservation_record(one: Reservation) -> Record:
    """Return the record of a reservation."""
    return Record(topic=RESERVATIONS, key=one.id.encode(), value=msgspec.json.encode(one))


def owner_of(one: Reservation) -> str:
    """Return the owner of a reservation: the id of a processing block, or a subarray such as ``subarray/01``."""
    return one.pb_id or f"subarray/{one.subarray:02d}"


def as_dict(one: Reservation) -> dict[str, object]:
    """Return the known fields of a reservation, for people and programs."""
    found = {
        "id": one.id,
        "kind": one.kind,
        "names": one.names[:MOST_NAMES_SHOWN],
        "quantity": len(one.names) if one.quantity is None else one.quantity,
        "unit": one.unit,
        "exclusive": one.exclusive,
        "subarray": one.subarray,
        "owner": owner_of(one),
        "state": one.state,
        "expires": utc_text(one.expires),
        "time": utc_text(one.time),
    }
    return found | {name: value for name in ("text", "source") if (value := getattr(one, name))}


class Conflict(NamedTuple):
    """A resource with several owners, at least one of them exclusive."""

    resource: Resource
    reservations: tuple[Reservation, ...]


class ReservationLedger(Projection[Reservation]):
    """A flow: the newest state of each reservation, of all subarrays; see `facade.kernel.runtime.flow.Flow`.

    A conflict may concern a subarray of another device server, so each server keeps them all.

    Parameters
    ----------
    now_us
        Returns the time; expired reservations make room for others. Each question gives its own time.
    """

    topic = RESERVATIONS

    def __init__(self, now_us: Callable[[], Time]) -> None:
        self._now_us = now_us
        self.version = 0
        """Changes with each change of a reservation."""
        self._left_out: Bounded[str, Time] = Bounded(MOST)
        """Expiry of each reservation beyond the limits, by id."""
        self._known: dict[str, Reservation] = {}
        """Unreleased ones, by id."""
        self._of_subarray: dict[int, dict[str, Reservation]] = defaultdict(dict)
        self._released: Bounded[str, int] = Bounded(MOST_RELEASED)
        """Sequences of released ones, by id."""
        self._granted: dict[Resource, dict[str, Reservation]] = {}
        """Granted ones by resource and id, whether expired or not."""
        self._contested: dict[Resource, None] = {}
        """Resources named by several of them."""
        self._newest: dict[int, Time] = {}
        """Time of the newest record of each subarray."""
        self._names = 0
        self._soonest = NEVER
        """No reservation expires earlier."""

    def _read(self, record: Record) -> Reservation | Unused:
        return read_reservation(record)

    def _sequences(self, one: Reservation) -> tuple[int, int]:
        before = self._known.get(one.id)
        return one.sequence, self._released.get(one.id, 0) if before is None else before.sequence

    def _take(self, one: Reservation, record: Record) -> Outcome:
        if one.state != RELEASED and not self._has_room(one, self._now_us()):
            self._left_out[one.id] = one.expires
            return TOO_MANY
        self._remove(one.id)
        self._newest[one.subarray] = max(self._newest.get(one.subarray, NEVER), one.time)
        if one.state == RELEASED:
            self._released[one.id] = one.sequence
        else:
            self._add(one)
        return USED

    def all(self, subarray: int | None = None) -> Iterable[Reservation]:
        """Return the unreleased reservations of a subarray, or of all, including expired ones."""
        return (self._known if subarray is None else self._of_subarray.get(subarray, {})).values()

    def current(self, now: Time, subarray: int | None = None) -> Iterator[Reservation]:
        """Return the requested, granted and refused reservations that have not expired."""
        return (one for one in self.all(subarray) if one.expires > now)

    def left_out(self, now: Time) -> int:
        """Count the unexpired reservations beyond the limits at a time [Unix us]; at most `MOST`."""
        return sum(expires > now for expires in self._left_out.values())

    def holders(self, kind: str, name: str, now: Time) -> list[Reservation]:
        """Return the granted reservations of a resource that have not expired at a time [Unix us]."""
        return [one for one in self._granted.get((kind, name), {}).values() if one.expires > now]

    def conflicts(self, now: Time) -> list[Conflict]:
        """Return the resources with a conflict at a time [Unix us]."""
        found = []
        for resource in self._contested:
            held = self.holders(*resource, now)
            if _is_conflict(held):
                found.append(Conflict(resource, tuple(held)))
        return found

    def next_expiry(self, now: Time) -> Time | None:
        """Return the time of the next expiry; None: there is none."""
        return min((one.expires for one in self.current(now)), default=None)

    def changed_at(self, now: Time, subarray: int | None = None) -> Time:
        """Return the time of the newest record or expiry of a subarray, or of all; 0 if there is none."""
        newest = max(self._newest.values(), default=NEVER) if subarray is None else self._newest.get(subarray, NEVER)
        return max((one.expires for one in self.all(subarray) if newest < one.expires <= now), default=newest)

    def _has_room(self, one: Reservation, now: Time) -> bool:
        if not self._fits(one) and self._soonest <= now:  # not at each record of a storm
            for reservation_id in [known.id for known in self._known.values() if known.expires <= now]:
                self._drop(reservation_id)
            self._soonest = min((known.expires for known in self._known.values()), default=NEVER)
        return self._fits(one)

    def _fits(self, one: Reservation) -> bool:
        before = self._known.get(one.id)
        count, names = (1, 0) if before is None else (0, len(before.names))
        return len(self._known) + count <= MOST and self._names + len(one.names) - names <= MOST_NAMES

    def _add(self, one: Reservation) -> None:
        self._soonest = min(self._soonest, one.expires) if self._known else one.expires
        self._known[one.id] = self._of_subarray[one.subarray][one.id] = one
        self._names += len(one.names)
        for resource in _granted(one):
            granted = self._granted.setdefault(resource, {})
            granted[one.id] = one
            if len(granted) > 1:
                self._contested[resource] = None
        self.version += 1
        count = len(self._known)
        assert count <= MOST, f"expected at most {MOST} reservations, got {count}"
        assert self._names <= MOST_NAMES, f"expected at most {MOST_NAMES} names in reservations, got {self._names}"

    def _remove(self, key: str) -> None:
        for known in (self._released, self._left_out):
            known.pop(key, None)
        self._drop(key)

    def _drop(self, reservation_id: str) -> None:
        one = self._known.pop(reservation_id, None)
        if one is None:
            return
        del self._of_subarray[one.subarray][reservation_id]
        self._names -= len(one.names)
        for resource in _granted(one):
            granted = self._granted.get(resource, {})
            granted.pop(reservation_id, None)  # a name may occur twice
            if len(granted) < 2:
                self._contested.pop(resource, None)
            if not granted:
                self._granted.pop(resource, None)
        self.version += 1
        is_sound = self._names >= 0 if self._known else self._names == 0
        assert is_sound, f"{len(self._known)} reservations have {self._names} names: no other would find room"


def read_ledger(records: Iterable[Record], now: Time) -> ReservationLedger:
    """Return the reservations of the topic.

    Parameters
    ----------
    records
        All records of the topic `reservations`, as from `KafkaBus.read_all`. Records that cannot be decoded are
        left out.
    now
        The present time [Unix us].

    Examples
    --------
    >>> import time
    >>> now_us = time.time_ns() // 1000
    >>> known = read_ledger(open_bus("my-controller").read_all("reservations"), now_us)
    >>> known.holders("receptors", "SKA001", now_us)
    []
    """
    ledger = ReservationLedger(lambda: now)
    for record in records:
        ledger.fold(record, count=True)
    return ledger


def _granted(one: Reservation) -> Iterator[Resource]:
    return ((one.kind, name) for name in one.names) if one.state == GRANTED else iter(())


def _is_conflict(held: Iterable[Reservation]) -> bool:
    """Return whether reservations of one resource conflict; a subarray and its own processing blocks never do."""
    subarrays: Mapping[int, set[str | None]] = defaultdict(set)
    exclusive = []
    for one in held:
        subarrays[one.subarray].add(one.pb_id)
        if one.exclusive:
            exclusive.append(one)
    if not exclusive:
        return False
    return len(subarrays) > 1 or any(
        one.pb_id is not None and len(subarrays[one.subarray] - {None}) > 1 for one in exclusive
    )

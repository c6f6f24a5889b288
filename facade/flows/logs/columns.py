"""Many messages of syslog at once, as columns: the form in which rsyslog writes them by our configuration.

A message has seven fields between single blanks, and its structured data begins with its number. What stands before the
time, between the time and the number, and between the number and the text is the same in many messages: one of each is
parsed whole, as any message is, and says what the others are. A message of another form is left to `decode`.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from facade.flows.logs.lines import NUMBERED, syslog_message
from facade.flows.logs.records import LogRecord, Source, time_of

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:  # the extra `logs` is not installed: messages are taken one by one
    pa = pc = None

FEWEST: Final = 200
"""Below so many records at once, columns cost more than they save."""
_FIELDS: Final = 7
_PRIORITY, _TIME, _HOST, _COMPONENT, _PROCESS, _MESSAGE, _REST = range(_FIELDS)
_SECOND, _FRACTION = 19, 26
"""Where the whole second and its six digits of fraction end."""
_MOST_DIGITS: Final = 18
_LONGEST: Final = 1 << 30
"""More than a record has."""

Indices = npt.NDArray[np.int64]


class Columns(NamedTuple):
    """Messages as arrays of one length, in their order."""

    row: Indices
    """Of the message among those that were given."""
    source: Indices
    """Index in `sources`."""
    time: Indices
    """When it was made [Unix us]."""
    number: Indices
    """Of the shipper."""
    sources: list[Source]


def syslog_columns(values: Sequence[bytes | None]) -> Columns | None:
    """Return those messages that have the usual form; None: no message has, or there are too few.

    A message that is not among them has another form, or cannot be decoded.
    """
    if pa is None or len(values) < FEWEST:
        return None
    parts = _usual(values)
    if parts is None:
        return None
    index, fields, number, tail = parts
    is_time, time = _times(fields[_TIME])
    kinds, first = _kinds((fields[_PRIORITY], fields[_HOST], fields[_COMPONENT], tail))
    known = [_source(values[index[at]], int(number[at])) for at in first]
    good = is_time & np.array([one is not None for one in known])[kinds]
    is_there = np.bincount(kinds[good], minlength=len(known)) > 0  # of some kinds no message has a time
    place = np.cumsum(is_there) - 1
    sources = [one for one, there in zip(known, is_there.tolist(), strict=True) if one is not None and there]
    return Columns(index[good], place[kinds[good]], time[good], number[good], sources)


def _usual(values: Sequence[bytes | None]) -> tuple[Indices, list[Any], Indices, Any] | None:
    """Return which messages have the usual form, their fields, numbers, and what stands from number to text."""
    array = pa.array(values, pa.binary())
    split = pc.split_pattern(array, b" ", max_splits=_FIELDS - 1)
    index = _where(pc.and_(pc.starts_with(array, b"<"), pc.equal(pc.list_value_length(split), _FIELDS)))
    fields = _columns(split.take(pa.array(index)), _FIELDS)
    keep = pc.starts_with(fields[_REST], NUMBERED)
    for one in (_PROCESS, _MESSAGE):
        keep = pc.and_(keep, pc.greater(pc.binary_length(fields[one]), 0))
    index, fields = _only(_where(keep), index, fields)
    split = pc.split_pattern(pc.binary_slice(fields[_REST], len(NUMBERED), _LONGEST), b'"', max_splits=1)
    index, fields, split = _only(_where(pc.equal(pc.list_value_length(split), 2)), index, fields, split)
    digits, rest = _columns(split, 2)
    # Within a value no bracket stands alone: the first one with a blank ends the structured data.
    split = pc.split_pattern(rest, b"] ", max_splits=1)
    keep = pc.and_(_decimal(digits, _MOST_DIGITS), pc.equal(pc.list_value_length(split), 2))
    index, fields, split, digits = _only(_where(keep), index, fields, split, digits)
    tail, body = _columns(split, 2)
    keep = pc.and_(pc.or_(pc.equal(tail, b""), pc.ends_with(tail, b'"')), pc.invert(pc.starts_with(body, b"1|")))
    index, fields, digits, tail = _only(_where(keep), index, fields, digits, tail)
    return (index, fields, _integers(digits), tail) if len(index) else None


def _times(texts: Any) -> tuple[npt.NDArray[np.bool_], Indices]:
    """Return which texts are times with six digits after the second, and all times [Unix us]."""
    fraction, zone = pc.binary_slice(texts, _SECOND + 1, _FRACTION), pc.binary_slice(texts, _FRACTION, _LONGEST)
    good = pc.and_(pc.equal(pc.binary_slice(texts, _SECOND, _SECOND + 1), b"."), _decimal(fraction, 6))
    good = _flags(pc.and_(good, pc.equal(pc.binary_length(fraction), 6)))
    kinds, first = _kinds((pc.binary_slice(texts, 0, _SECOND), zone))
    seconds = [_second(texts[at].as_py()) for at in first]
    whole = np.array([0 if one is None else one for one in seconds], np.int64)[kinds]
    good &= np.array([one is not None for one in seconds])[kinds]
    parts = np.zeros(len(good), np.int64)
    parts[good] = _integers(fraction.filter(pa.array(good)))
    return good, whole + parts


def _second(text: bytes) -> int | None:
    """Return the time of a text without its fraction [Unix us]; None: it is none."""
    zone = text[_FRACTION:]
    if zone and zone[:1] not in b"Z+-":
        return None
    try:
        return time_of((text[:_SECOND] + zone).decode("ascii"))
    except ValueError:
        return None


def _source(value: bytes | None, number: int) -> Source | None:
    """Return the source of a message; None: it cannot be decoded, or its host is known from its key alone."""
    try:
        one: LogRecord = syslog_message(value or b"")
    except ValueError:
        return None
    return one.source if one.sequence == number and one.source.host else None


def _kinds(columns: Sequence[Any]) -> tuple[Indices, Indices]:
    """Return for each row the number of its kind, and the first row of each kind."""
    kinds = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        coded = column.dictionary_encode()
        # Coded again, as the product of the sizes of many columns would be too large.
        mixed = kinds * len(coded.dictionary) + coded.indices.to_numpy(zero_copy_only=False)
        again = pa.array(mixed).dictionary_encode()
        kinds, count = again.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(again.dictionary)
    first = np.zeros(count, np.int64)
    first[kinds[::-1]] = np.arange(len(kinds) - 1, -1, -1)
    return kinds, first


def _only(rows: Indices, index: Indices, fields: list[Any], *more: Any) -> Any:
    """Return some rows of all that is given."""
    if len(rows) == len(index):
        return index, fields, *more
    taken = pa.array(rows)
    return index[rows], [one.take(taken) for one in fields], *(one.take(taken) for one in more)


def _columns(split: Any, width: int) -> list[Any]:
    """Return the columns of lists that all have so many entries."""
    flat = split.flatten()
    return [flat.take(pa.array(np.arange(at, len(flat), width))) for at in range(width)]


def _decimal(texts: Any, most: int) -> Any:
    # What is no UTF-8 is no decimal either, so that nothing needs to be checked here.
    text = pc.cast(texts, pa.string(), safe=False)
    return pc.and_(pc.ascii_is_decimal(text), pc.less_equal(pc.binary_length(texts), most))


def _integers(texts: Any) -> Indices:
    return np.asarray(pc.cast(pc.cast(texts, pa.string()), pa.int64()).to_numpy(zero_copy_only=False), np.int64)


def _flags(one: Any) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(one, False).to_numpy(zero_copy_only=False), np.bool_)


def _where(one: Any) -> Indices:
    return np.flatnonzero(_flags(one))

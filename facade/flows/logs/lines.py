"""Logs in lines: messages of syslog (RFC 5424 and 3164), and lines of SKA's log form, alone or within such a message.

Most messages differ from an earlier one in nothing but time, number and text. The source of such a message is looked up
by the bytes of its header, without parsing it again.

Many messages at once are read as columns, in rsyslog's form with our configuration. Such a message has seven fields
between single blanks, and its structured data begins with its number. The parts before the time, between the time and
the number, and between the number and the text are the same in many messages: one of each is parsed as any message, and
represents the others. A message of another form is left to `decode`.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from facade.flows.logs.records import OF_SYSLOG, LogRecord, LogSource, severity_of, source_of, time_of
from facade.kernel.clock import NEVER, Time

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:  # the extra `logs` is not installed: messages are parsed one by one
    pa = pc = None

_SYSLOG: Final = re.compile(
    r"<(\d{1,3})>1 ([^ ]+) ([^ ]{1,255}) ([^ ]{1,48}) [^ ]+ [^ ]+ "
    r'(-|(?:\[(?:[^\]"\\]|"(?:[^"\\\]]|\\.)*")*\])+)(?: (.*))?',
    re.DOTALL,
)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_OLD: Final = re.compile(
    r"<(\d{1,3})>"
    rf"(?:({'|'.join(_MONTHS)}) ([ \d]\d) (\d\d:\d\d:\d\d)"
    r"(?: (UTC|GMT)(?= )|(?: [A-Z]{1,5}| ([+-]\d\d:?\d\d))?(?= \d{4} ))?(?: (\d{4})(?= ))?"
    r"|(\d{4}-\d\d-\d\dT[^ ]{8,24})) "
    r"(?:([^ ]{0,254}[^ :]) )?([^ :\[]{1,100})(?:\[[^\] ]{0,100}\])?(?:: ?|(?= )|$)(.*)",
    re.DOTALL,
)
"""Time of RFC 3164, also with zone and year, with the time in full, as rsyslog forwards it, and without a host, as
programs write it."""
_PARAMETER: Final = re.compile(r'(sequenceId|rack|eb_id)="([^"\\\]]{0,100})"')
_SKA: Final = re.compile(r"1\|([^|]{1,40})\|([A-Za-z]{1,20})\|[^|]*\|[^|]*\|([^|#]*)[^|]*\|([^|]*)\|(.*)", re.DOTALL)
_SKA_TAG: Final = re.compile(r"(tango-device|rack|host|eb_id):([^,\s]+)")
NUMBERED: Final = b'[meta sequenceId="'
"""Begin of rsyslog's structured data with our configuration."""
_BEGIN_OF_SKA: Final = (b"1|", b"\xef\xbb\xbf1|")
"""Begins of a text in SKA's log form, also after the mark of UTF-8: it has a component and a severity of its own."""
_MOST_HEADERS, _LONGEST_HEADER = 50_000, 1024
"""Number of headers that are kept, and the longest of them [bytes]."""
_NIL: Final = "-"
SyslogHeader = tuple[bytes, bytes, bytes, bytes]
"""Priority with version, host, component, structured data without the number."""
_headers: dict[SyslogHeader, LogSource] = {}
FEWEST: Final = 200
"""Number of records below which columns cost more than they save."""
_FIELDS: Final = 7
_PRIORITY, _TIME, _HOST, _COMPONENT, _PROCESS, _MESSAGE, _REST = range(_FIELDS)
_SECOND, _FRACTION = 19, 26
"""Ends of the whole second and of its six digits of fraction."""
_MOST_DIGITS: Final = 18
_LONGEST: Final = 1 << 30
Indices = npt.NDArray[np.int64]


def syslog_message(value: bytes) -> LogRecord:
    """Decode a message of RFC 5424 or 3164; of structured data, `sequenceId`, `rack` and `eb_id` are known.

    The older form usually has neither year nor zone: such a message counts as one without a time.
    """
    split = _split(value)
    if split is None:
        return _parse(value)
    header, time, number, body = split
    source = _headers.get(header)
    if source is None:
        one = _parse(value)
        if sum(map(len, header)) <= _LONGEST_HEADER:
            if len(_headers) >= _MOST_HEADERS:
                _headers.clear()
            _headers[header] = one.source
        return one
    return LogRecord(source, NEVER if time == b"-" else time_of(time.decode("utf-8", "replace")), body, int(number))


def _split(value: bytes) -> tuple[SyslogHeader, bytes, bytes, bytes] | None:
    """Return header, time, number and text of a message; None: it has an unusual form."""
    try:
        priority, time, host, component, _, _, rest = value.split(b" ", 6)
    except ValueError:
        return None
    if not priority.endswith(b">1"):
        return None
    if rest.startswith(NUMBERED):
        begin = rest.find(b'"', len(NUMBERED))
        # Within a value, quotation marks and brackets are escaped.
        end = rest.find(b'"] ', begin)
        number = rest[len(NUMBERED) : begin]
        if begin < 0 or end < 0 or not number.isdigit():
            return None
        data, body = rest[begin:end], rest[end + 3 :]
    elif rest.startswith(b"- "):
        data, number, body = b"-", b"0", rest[2:]
    else:
        return None
    if body.startswith(_BEGIN_OF_SKA):
        return None
    return (priority, host, component, data), time, number, body


def _parse(value: bytes) -> LogRecord:
    text = value.decode("utf-8", "replace")
    if found := _SYSLOG.match(text):
        priority, time, host, component, data, body = found.groups("")
    elif found := _OLD.match(text):
        priority, month, day, clock, utc, zone, year, time, host, component, body = found.groups("")
        data = ""
        if year and (utc or zone):  # a zone with a name only is ambiguous
            time = f"{year}-{_MONTHS.index(month) + 1:02}-{int(day):02}T{clock}{zone or 'Z'}"
    if found is None or int(priority) > 191:
        raise ValueError(f"expected a message of RFC 5424 or RFC 3164, got {text[:60]!r}")
    body = body.removeprefix("\ufeff")
    severity, tags = OF_SYSLOG[int(priority) & 7], dict[str, str]()
    if body.startswith("1|") and (inner := _SKA.fullmatch(body)):
        time, body = inner[1], inner[5]
        component, severity, tags = _of_ska(inner)
    parameters = dict(_PARAMETER.findall(data))
    number = parameters.get("sequenceId", "")
    source = source_of(
        "" if component == _NIL else component,
        severity,
        tags.get("host") or ("" if host == _NIL else host),
        parameters.get("rack") or tags.get("rack", ""),
        parameters.get("eb_id") or tags.get("eb_id", ""),
    )
    is_number = number.isascii() and number.isdecimal()
    return LogRecord(source, NEVER if time in ("", _NIL) else time_of(time), body, int(number) if is_number else 0)


def ska_line(value: bytes) -> LogRecord:
    """Decode a line of SKA's log form: ``1|time|level|thread|function|file#line|tags|message``."""
    found = _SKA.fullmatch(text := value.decode("utf-8", "replace").rstrip("\n"))
    if found is None:
        raise ValueError(f"expected eight fields of SKA's form, got {text[:60]!r}")
    component, severity, tags = _of_ska(found)
    place = tags.get("host", ""), tags.get("rack", ""), tags.get("eb_id", "")
    return LogRecord(source_of(component, severity, *place), time_of(found[1]), found[5])


def _of_ska(found: "re.Match[str]") -> tuple[str, int, dict[str, str]]:
    tags = dict(_SKA_TAG.findall(found[4])) if found[4] else {}
    return tags.get("tango-device") or found[3], severity_of(found[2]), tags


class Columns(NamedTuple):
    """Messages as arrays of one length, in their order."""

    row: Indices
    """Index of the message in the input."""
    source: Indices
    time: Indices
    """Time of the message [Unix us]."""
    number: Indices
    sources: list[LogSource]


def syslog_columns(values: Sequence[bytes | None]) -> Columns | None:
    """Return the messages of the usual form; None: there are none, or too few.

    Messages left out have another form, or cannot be decoded.
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
    is_there = np.bincount(kinds[good], minlength=len(known)) > 0  # some kinds have no message with a time
    place = np.cumsum(is_there) - 1
    sources = [one for one, there in zip(known, is_there.tolist(), strict=True) if one is not None and there]
    return Columns(index[good], place[kinds[good]], time[good], number[good], sources)


def _usual(values: Sequence[bytes | None]) -> tuple[Indices, list[Any], Indices, Any] | None:
    """Return the mask of messages of the usual form, their fields, numbers, and the parts from number to text."""
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
    # Within a value brackets are escaped: the first one with a blank ends the structured data.
    split = pc.split_pattern(rest, b"] ", max_splits=1)
    keep = pc.and_(_decimal(digits, _MOST_DIGITS), pc.equal(pc.list_value_length(split), 2))
    index, fields, split, digits = _only(_where(keep), index, fields, split, digits)
    tail, body = _columns(split, 2)
    is_ska = pc.or_(*(pc.starts_with(body, begin) for begin in _BEGIN_OF_SKA))
    keep = pc.and_not(pc.or_(pc.equal(tail, b""), pc.ends_with(tail, b'"')), is_ska)
    index, fields, digits, tail = _only(_where(keep), index, fields, digits, tail)
    return (index, fields, _integers(digits), tail) if len(index) else None


def _times(texts: Any) -> tuple[npt.NDArray[np.bool_], Indices]:
    """Return the mask of times with six digits after the second, and all times [Unix us]."""
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


def _second(text: bytes) -> Time | None:
    zone = text[_FRACTION:]
    if zone and zone[:1] not in b"Z+-":
        return None
    try:
        return time_of((text[:_SECOND] + zone).decode("ascii"))
    except ValueError:
        return None


def _source(value: bytes | None, number: int) -> LogSource | None:
    """Return the source of a message; None: it cannot be decoded, or only its key has the host."""
    try:
        one: LogRecord = syslog_message(value or b"")
    except ValueError:
        return None
    return one.source if one.sequence == number and one.source.host else None


def _kinds(columns: Sequence[Any]) -> tuple[Indices, Indices]:
    """Return the number of each row's kind, and the first row of each kind."""
    kinds = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        coded = column.dictionary_encode()
        # Encoded again, as the product of the sizes of many columns would be too large.
        mixed = kinds * len(coded.dictionary) + coded.indices.to_numpy(zero_copy_only=False)
        again = pa.array(mixed).dictionary_encode()
        kinds, count = again.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(again.dictionary)
    first = np.zeros(count, np.int64)
    first[kinds[::-1]] = np.arange(len(kinds) - 1, -1, -1)
    return kinds, first


def _only(rows: Indices, index: Indices, fields: list[Any], *more: Any) -> Any:
    if len(rows) == len(index):
        return index, fields, *more
    taken = pa.array(rows)
    return index[rows], [one.take(taken) for one in fields], *(one.take(taken) for one in more)


def _columns(split: Any, width: int) -> list[Any]:
    flat = split.flatten()
    return [flat.take(pa.array(np.arange(at, len(flat), width))) for at in range(width)]


def _decimal(texts: Any, most: int) -> Any:
    # Text that is not UTF-8 is not decimal either.
    text = pc.cast(texts, pa.string(), safe=False)
    return pc.and_(pc.ascii_is_decimal(text), pc.less_equal(pc.binary_length(texts), most))


def _integers(texts: Any) -> Indices:
    return np.asarray(pc.cast(pc.cast(texts, pa.string()), pa.int64()).to_numpy(zero_copy_only=False), np.int64)


def _flags(one: Any) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(one, False).to_numpy(zero_copy_only=False), np.bool_)


def _where(one: Any) -> Indices:
    return np.flatnonzero(_flags(one))

"""Logs in lines: messages of syslog (RFC 5424 and 3164), and lines of SKA's log form, alone or within such a message.

Most messages differ from one before them in nothing but time, number and text. The source of such a message is found by
the bytes of its header, and nothing of it is parsed again.
"""

import re
from typing import Final

from facade.flows.logs.records import OF_SYSLOG, LogRecord, Source, severity_of, source_of, time_of

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
"""Of RFC 3164, also with zone and year, with the time in full, as rsyslog forwards it, and without a host, as programs
write it."""
_PARAMETER: Final = re.compile(r'(sequenceId|rack|eb_id)="([^"\\\]]{0,100})"')
_SKA: Final = re.compile(r"1\|([^|]{1,40})\|([A-Za-z]{1,20})\|[^|]*\|[^|]*\|([^|#]*)[^|]*\|([^|]*)\|(.*)", re.DOTALL)
_SKA_TAG: Final = re.compile(r"(tango-device|rack|host|eb_id):([^,\s]+)")
NUMBERED: Final = b'[meta sequenceId="'
"""How the structured data begins that rsyslog writes by our configuration."""
_MOST_HEADERS: Final = 50_000
_NIL: Final = "-"

Header = tuple[bytes, bytes, bytes, bytes]
"""Priority with version, host, component, structured data without the number."""
_headers: dict[Header, Source] = {}


def syslog_message(value: bytes) -> LogRecord:
    """Decode a message of RFC 5424 or 3164; of structured data, `sequenceId`, `rack` and `eb_id` are known.

    The older form commonly says neither year nor zone: such a message counts as one without a time.

    Raises
    ------
    ValueError
        It is none.
    """
    split = _split(value)
    if split is None:
        return _parse(value)
    header, time, number, body = split
    source = _headers.get(header)
    if source is None:
        one = _parse(value)
        if len(_headers) >= _MOST_HEADERS:
            _headers.clear()
        _headers[header] = one.source
        return one
    return LogRecord(source, 0 if time == b"-" else time_of(time.decode("utf-8", "replace")), body, int(number))


def _split(value: bytes) -> tuple[Header, bytes, bytes, bytes] | None:
    """Return header, time, number and text of a message; None: it has another form than most."""
    try:
        priority, time, host, component, _, _, rest = value.split(b" ", 6)
    except ValueError:
        return None
    if not priority.endswith(b">1"):
        return None
    if rest.startswith(NUMBERED):
        begin = rest.find(b'"', len(NUMBERED))
        # Within a value, neither a quotation mark nor a bracket stands alone.
        end = rest.find(b'"] ', begin)
        number = rest[len(NUMBERED) : begin]
        if begin < 0 or end < 0 or not number.isdigit():
            return None
        data, body = rest[begin:end], rest[end + 3 :]
    elif rest.startswith(b"- "):
        data, number, body = b"-", b"0", rest[2:]
    else:
        return None
    if body.startswith(b"1|"):
        return None
    return (priority, host, component, data), time, number, body


def _parse(value: bytes) -> LogRecord:
    text = value.decode("utf-8", "replace")
    if found := _SYSLOG.match(text):
        priority, time, host, component, data, body = found.groups("")
    elif found := _OLD.match(text):
        priority, month, day, clock, utc, zone, year, time, host, component, body = found.groups("")
        data = ""
        if year and (utc or zone):  # of a zone that is a name alone, there are several
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
    return LogRecord(source, 0 if time in ("", _NIL) else time_of(time), body, int(number) if is_number else 0)


def ska_line(value: bytes) -> LogRecord:
    """Decode a line of SKA's log form: ``1|time|level|thread|function|file#line|tags|message``.

    Raises
    ------
    ValueError
        It is none.
    """
    found = _SKA.fullmatch(text := value.decode("utf-8", "replace").rstrip("\n"))
    if found is None:
        raise ValueError(f"expected eight fields of SKA's form, got {text[:60]!r}")
    component, severity, tags = _of_ska(found)
    place = tags.get("host", ""), tags.get("rack", ""), tags.get("eb_id", "")
    return LogRecord(source_of(component, severity, *place), time_of(found[1]), found[5])


def _of_ska(found: "re.Match[str]") -> tuple[str, int, dict[str, str]]:
    """Return component, severity and tags of a line."""
    tags = dict(_SKA_TAG.findall(found[4])) if found[4] else {}
    return tags.get("tango-device") or found[3], severity_of(found[2]), tags

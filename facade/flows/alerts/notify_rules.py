"""The rules by which people elsewhere are told of alarms: a TOML file, checked whole before anybody is told.

Secrets stay outside: the file names another file, or a variable of the environment, and each message reads it anew.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta

from facade.flows.alerts.messages import Alarm
from facade.kernel.clock import SECOND, Duration, Time, as_duration, as_seconds
from facade.kernel.errors import ConfigError
from facade.kernel.severities import SEVERITIES, Severity
from facade.sdp.durations import parse_duration

__all__ = ["ALERTMANAGER", "MailServer", "Receiver", "Rule", "Rules", "Secret", "read_rules"]

ALERTMANAGER = "alertmanager"
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_ODD = r'@\s<>,;:()[\]\\"\x00-\x1f\x7f'
_ADDRESS = re.compile(rf"[^{_ODD}]+@(?:[^{_ODD}.]+(?:\.[^{_ODD}.]+)*|\[[0-9A-Za-z.:]+\])")
"""What the email package reads as exactly this one address; for some other texts it fails with an AttributeError."""
_PATH = re.compile(r"[!-~]*")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Secret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a password or a token is."""

    file: str = ""
    variable: str = ""

    def __post_init__(self) -> None:
        """Require one of both, which can be read."""
        if bool(self.file) == bool(self.variable):
            raise ValueError("expected file or variable, that names where the secret is, got both or none")
        try:
            self.read()
        except OSError as error:
            raise ValueError(str(error)) from error

    def read(self) -> str:
        """Return the secret.

        Raises
        ------
        OSError
            It is not there, or has other characters than printable ones of ASCII.
        """
        place = f"the variable {self.variable}" if self.variable else f"the file {self.file}"
        try:
            text = os.environ.get(self.variable, "") if self.variable else Path(self.file).read_text()
        except (OSError, UnicodeError) as error:
            what = getattr(error, "strerror", None) or "not text"
            raise OSError(f"expected a secret in {place}, got: {what}") from None
        if not (found := text.strip()):
            raise OSError(f"expected a secret in {place}, got none")
        # The libraries for HTTP and SMTP refuse other characters with an error that quotes the secret.
        if not (found.isascii() and found.isprintable()):
            raise OSError(f"expected a secret of printable ASCII characters in {place}, got others")
        return found


class MailServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server that takes all mail."""

    server: str
    """Host and port."""
    sender: str
    tls: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password: Secret | None = None

    def __post_init__(self) -> None:
        """Check what the types do not."""
        _require_port(self.server)
        _require(_ADDRESS, self.sender, "sender", "a mail address such as sdp@example.org")
        if bool(self.user) != bool(self.password):
            raise ValueError("expected user and password, or neither, got one of them")
        if self.user and self.tls == "none":
            raise ValueError('tls: expected "starttls" or "tls", as a password is sent, got "none"')


class Receiver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One receiver: an address for mail, or the URL of a web hook.

    A mail to several addresses could be taken for some of them only.
    """

    mail: str = ""
    webhook: str = ""
    form: Literal["alertmanager", "webhook"] = "webhook"
    """What a web hook gets: the request that Alertmanager takes, or the one that it sends to its own receivers."""
    token: Secret | None = None

    def __post_init__(self) -> None:
        """Check what the types do not."""
        if bool(self.mail) == bool(self.webhook):
            raise ValueError("expected mail or webhook, got both or none")
        if self.mail:
            _require(_ADDRESS, self.mail, "mail", "one address such as shift@example.org")
            return
        url = urlsplit(self.webhook)
        if url.scheme not in ("http", "https") or not url.hostname or url.username or url.password or url.query:
            what = "expected http:// or https:// with a host, and without a user or a query, as these may be secret"
            raise ValueError(f"webhook: {what}; name a token by token = {{file = ...}}")
        try:
            port = url.port
        except ValueError:
            port = 0
        if port == 0:
            raise ValueError("webhook: expected a port from 1 to 65535 after the host, got another")
        if not _PATH.fullmatch(url.path):
            raise ValueError("webhook: expected a path of printable ASCII characters without blanks, got others")


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules: which receivers get messages about which alarms, and when."""

    to: Annotated[tuple[str, ...], Meta(min_length=1)]
    after: str
    """Time for which an alarm has waited for a person."""
    conditions: Annotated[tuple[str, ...], Meta(min_length=1)] = ("*",)
    places: Annotated[tuple[str, ...], Meta(min_length=1)] = ("*",)
    """Sources; as in conditions, ``*`` stands for any characters."""
    severity: Severity = SEVERITIES[0]
    """The mildest severity."""
    hours: tuple[str, ...] = ()
    """None: at any time."""
    again: str = ""
    ends: bool = True

    def __post_init__(self) -> None:
        """Check what the types do not."""
        _duration(self.after, "after")
        if self.again:
            _duration(self.again, "again")
        for one in self.hours:
            found = _require(_HOURS, one, "hours", "hours such as 18:00-08:00")
            if found[1] + found[2] == found[3] + found[4]:
                raise ValueError(f"hours: expected two different times, got {one!r}; leave hours out for the whole day")

    def covers(self, alarm: Alarm) -> bool:
        """Return whether it is about an alarm."""
        return (
            SEVERITIES.index(alarm.severity) >= SEVERITIES.index(self.severity)
            and any(fnmatchcase(alarm.condition, one) for one in self.conditions)
            and any(fnmatchcase(alarm.source, one) for one in self.places)
        )

    def applies(self, now: Time, zone: ZoneInfo) -> bool:
        """Return whether a time is within its hours."""
        at = datetime.fromtimestamp(as_seconds(now), zone)
        minute = timedelta(hours=at.hour, minutes=at.minute)
        spans = (_span(one) for one in self.hours)
        return not self.hours or any(
            begin <= minute < end if begin < end else minute >= begin or minute < end for begin, end in spans
        )

    @property
    def wait(self) -> Duration:
        """Return the time for which an alarm must have waited."""
        return _duration(self.after, "after")

    @property
    def repeat(self) -> Duration | None:
        """Return the time after which it is told again; None: never."""
        return _duration(self.again, "again") if self.again else None


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of rules."""

    receivers: dict[str, Receiver]
    rules: Sequence[Rule]
    mail: MailServer | None = None
    zone: str = "UTC"

    def for_alarm(self, alarm: Alarm) -> Iterator[str]:
        """Return the receivers that are told of an alarm if it waits for long enough."""
        return iter(dict.fromkeys(name for rule in self.rules if rule.covers(alarm) for name in rule.to))

    def unknown_conditions(self, known: Collection[str]) -> Iterator[str]:
        """Return a text for each entry of `conditions` that fits no condition of the interface."""
        for number, rule in enumerate(self.rules):
            for one in rule.conditions:
                if not any(fnmatchcase(name, one) for name in known):
                    near = "".join(f", which has {name}" for name in get_close_matches(one, known, 1))
                    what = f"expected a condition of the interface{near}, got {one!r:.100}"
                    yield f"rules[{number}]: conditions: {what}; it fits no alarm unless a source raises its own"

    def rule(self, receiver: str, alarm: Alarm, now: Time | None = None) -> Rule | None:
        """Return the first rule by which a receiver is told of an alarm: at a time, or at any."""
        zone = _zone(self.zone)
        return next(
            (
                one
                for one in self.rules
                if receiver in one.to and one.covers(alarm) and (now is None or one.applies(now, zone))
            ),
            None,
        )


def read_rules(file: Path) -> Rules:
    """Read and check a file of rules.

    Raises
    ------
    ConfigError
        Something is wrong; the message has the file, the line and the key.
    """
    try:
        text = file.read_text()
        whole = msgspec.toml.decode(text)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from error
    return _Parser(file, text).parse(whole)


class _Parser:
    def __init__(self, file: Path, text: str) -> None:
        self._file, self._lines = file, text.splitlines()

    def parse(self, whole: Mapping[str, Any]) -> Rules:
        if odd := [name for name in whole if name not in Rules.__struct_fields__]:
            raise self._wrong(odd[0], f"expected one of {', '.join(Rules.__struct_fields__)}, got this key")
        named, listed = whole.get("receivers"), whole.get("rules")
        if not isinstance(named, dict) or not named:
            raise self._wrong("receivers", "expected tables [receivers.NAME], got none")
        if not isinstance(listed, list) or not listed:
            raise self._wrong("rules", "expected tables [[rules]], got none")
        mail = self._made(MailServer, whole["mail"], "mail") if "mail" in whole else None
        receivers = {name: self._made(Receiver, one, f"receivers.{name}") for name, one in named.items()}
        for name, one in receivers.items():
            if not _NAME.fullmatch(name):
                raise self._wrong(f"receivers.{name}", "expected a name of letters, digits, '.', '_' and '-'")
            if one.mail and mail is None:
                raise self._wrong(f"receivers.{name}", "expected a table [mail] with the server for its mail, got none")
        rules = [self._made(Rule, one, f"rules[{number}]") for number, one in enumerate(listed)]
        for number, rule in enumerate(rules):
            for to in rule.to:
                if to not in receivers:
                    raise self._wrong(f"rules[{number}]", f"to: expected some of {', '.join(receivers)}, got {to!r}")
                if not rule.ends and receivers[to].form == ALERTMANAGER:
                    raise self._wrong(f"rules[{number}]", f"ends: expected true for {to}, or its alert would never end")
        try:
            _zone(zone := whole.get("zone", "UTC"))
        except (ValueError, OSError, TypeError, LookupError) as error:
            what = f"expected the name of a time zone such as Africa/Johannesburg, got {zone!r}"
            raise self._wrong("zone", what) from error
        return Rules(receivers=receivers, rules=rules, mail=mail, zone=zone)

    def _made(self, kind: type[_Struct], values: Any, where: str) -> _Struct:
        for key in ("password", "token"):
            if isinstance(values, dict) and isinstance(values.get(key), str):
                what = "expected {file = ...} or {variable = ...}, as no secret may be in this file, got a text"
                raise self._wrong(where, f"{key}: {what}")
        try:
            return msgspec.convert(values, kind)
        except msgspec.ValidationError as error:
            raise self._wrong(where, str(error)) from error

    def _wrong(self, where: str, what: str) -> ConfigError:
        """Return an error with the line of a table or key, if it stands at the beginning of one."""
        rule = re.fullmatch(r"rules\[(\d{1,9})\]", where)
        begin = r"\s*\[\[\s*rules\s*\]\]" if rule else rf"\s*\[\s*{re.escape(where)}\s*[.\]]|{re.escape(where)}\s*="
        found = [at for at, line in enumerate(self._lines, 1) if re.match(begin, line)]
        index = int(rule[1]) if rule else 0
        line = f"line {found[index]}: " if index < len(found) else ""
        return ConfigError(f"{self._file}: {line}{where}: {what}")


@cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@cache
def _duration(text: str, key: str) -> Duration:
    try:
        found = as_duration(parse_duration(text, key))
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if found < SECOND:
        raise ValueError(f"{key}: expected at least 1s, got {text!r}")
    return found


@cache
def _span(hours: str) -> tuple[timedelta, timedelta]:
    begin, end = (
        timedelta(hours=int(hour), minutes=int(minute)) for hour, minute in (one.split(":") for one in hours.split("-"))
    )
    return begin, end


def _require(form: re.Pattern[str], text: str, key: str, expected: str) -> re.Match[str]:
    if (found := form.fullmatch(text)) is None:
        raise ValueError(f"{key}: expected {expected}, got {text!r:.100}")
    return found


def _require_port(server: str) -> None:
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"server: expected host and port such as smtp.example.org:587, got {server!r:.100}")

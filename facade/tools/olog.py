"""`sdp-facade olog`: posts the comments of operators to an Olog, the logbook of Phoebus, by its REST interface.

Theory of operation. The comments are records on the bus already, each durable before its person hears so. This process
reads them from a time on, and posts each as an entry of a logbook. It keeps no position. An entry has the id of its
comment as a property, and before each post the process asks the Olog for an entry with this id. After a restart, on any
host, it reads the comments of the last days again, and posts those that the Olog does not have. Two processes that run
at once may both find none, so a deployment runs one. The Olog passes over a part of a question that it does not know,
and answers with entries of others. So an entry counts only if it has the id.

An Olog that hangs or refuses an entry holds up nothing but this process. A comment that was refused goes behind those
that wait, and the pauses grow with each failure. While one waits after a failure, an alert says so, whose delay is that
of its condition.
"""

import base64
import hashlib
import json
import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import typer

from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.port import Record
from facade.kernel.clock import Clock, SystemClock, Time, as_duration, to_ms, utc_seconds
from facade.kernel.config import load_client_settings, without_secrets
from facade.kernel.console import say
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.http_request import send_request
from facade.kernel.manifest import AuditEntry
from facade.kernel.printable import printable
from facade.kernel.runtime.accounts import RunningAccount
from facade.kernel.runtime.flow import Alerts
from facade.kernel.runtime.health_issues import ORIGIN
from facade.kernel.runtime.readers import Bus
from facade.kernel.runtime.worker_process import Site, run_worker
from facade.kernel.severities import WARNING
from facade.sdp.durations import parse_duration
from facade.tools.audit import sources

_log = logging.getLogger(__name__)

LOGIN: Final = "SDP_OLOG_LOGIN"
TOPICS: Final = ("page-acts", "alert-actions")
"""Topics with comments: about anything, and about alarms."""
_COMMENT, _ALARM = "comment", "alarm"
"""Kinds of acts; an action about an alarm may have a comment."""
PROPERTY: Final = "sdpcomment"
"""Name of the property with the id of a comment: small letters alone, by which each version of Olog finds it."""
_PATIENCE: Final = 10.0
"""Longest wait for a whole answer of the Olog [s]."""
_LARGEST: Final = 1_000_000
"""Largest answer [bytes]."""
_PAUSES: Final = (2.0, 300.0)
"""First and longest pause after a failure [s]; each is twice the one before."""
_MOST_READ, _WAIT = 1000, 1.0
"""Most records read at once, and the longest wait for them [s]."""
NOT_POSTED: Final = "commentsNotPosted"
_LONGEST_TITLE: Final = 200
_LONGEST_TEXT: Final = 500
_TEXT_EACH: Final = 60.0
"""Least time between two texts of the alert [s]."""
_RETRY: Final = 5.0
"""Pause after a failure of the bus [s]."""


class Comment(NamedTuple):
    """A comment, and its id, by which it is found again."""

    id: str
    entry: AuditEntry

    @property
    def title(self) -> str:
        """Return the title of its entry."""
        act = "" if self.entry.kind == _COMMENT else f"{self.entry.act}: "
        return printable(f"{act}{self.entry.target}")[:_LONGEST_TITLE]


class Olog:
    """An Olog, as its REST interface documents it.

    Parameters
    ----------
    address
        Such as ``https://olog.example.org/Olog``.
    login
        User and password, with a colon between; empty: none.
    """

    def __init__(self, address: str, login: str, logbooks: Sequence[str], tags: Sequence[str], clock: Clock) -> None:
        try:
            url = urlsplit(address)
            is_usable = url.scheme in ("http", "https") and url.hostname and url.username is None and url.port != 0
        except ValueError:  # of its port, or of an address of IPv6
            is_usable = False
        if not is_usable:
            what = "expected an address such as https://olog.example.org/Olog, without a login"
            raise ConfigError(f"{what}, got {without_secrets(address)!r:.200}")
        if not logbooks:
            raise ConfigError("--logbook: expected at least one, got none")
        self._url, self._clock = f"{url.scheme}://{url.netloc}{quote(url.path.rstrip('/'))}", clock
        self._login, self._user = login, login.partition(":")[0] or "sdp-facade"
        self._groups = {"logbooks": _named(logbooks), "tags": _named(tags)}

    def has(self, comment: Comment) -> bool:
        """Return whether there is an entry of a comment.

        Raises
        ------
        OSError
            The Olog does not answer, refuses the question, or answers another one.
        """
        query = urlencode({"properties": f"{PROPERTY}.id.{comment.id}", "size": 1})
        found = self._ask("GET", f"/logs/search?{query}")
        logs = found.get("logs") if isinstance(found, dict) else None
        if not isinstance(logs, list):
            raise OSError(f"expected a list of entries, got {found!r:.200}")
        if logs and comment.id not in json.dumps(logs):  # an Olog ignores parameters that it does not support
            raise OSError(f"expected an entry with the property {PROPERTY}.id, which was asked for, got another one")
        return bool(logs)

    def post(self, comment: Comment) -> None:
        """Make the entry of a comment; errors as of `has`."""
        one = comment.entry
        person, time = printable(one.operator), utc_seconds(one.time)
        about = {"id": comment.id, "person": person, "about": printable(one.target), "time": time}
        attributes = [{"name": name, "value": value, "state": "Active"} for name, value in about.items()]
        property_ = {"name": PROPERTY, "owner": self._user, "state": "Active", "attributes": attributes}
        self._ask(
            "PUT",
            "/logs",
            {
                "owner": self._user,
                "title": comment.title,
                "description": f"{printable(one.said)}\n\n{person or 'somebody without a name'} at {time}",
                "level": "Info",
                **self._groups,
                "properties": [property_],
                "events": [{"name": "comment", "instant": to_ms(one.time)}],
            },
        )

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Accept": "application/json", "Content-Type": "application/json", "X-Olog-Client-Info": "sdp-facade"}
        if self._login:
            headers["Authorization"] = f"Basic {base64.b64encode(self._login.encode()).decode()}"
        content = None if body is None else json.dumps(body).encode()
        try:
            status, reason, said = send_request(
                *(method, self._url + path, content, headers), within=_PATIENCE, largest=_LARGEST, clock=self._clock
            )
            if not 200 <= status < 300:
                told = said[:300].decode("utf-8", "replace")
                raise OSError(f"expected a status of 200 to 299, got {status} {reason}: {told}")
            return json.loads(said)
        except (ValueError, RecursionError) as error:
            raise OSError(f"expected an answer in JSON, got {type(error).__name__}: {error}") from error


class CommentPoster:
    """Reads comments and posts each that the Olog has not.

    Parameters
    ----------
    deployment
        Prefix of the topics: comments of two deployments have different ids.
    since
        Earlier comments are left out.
    alerts
        Raises the alert about comments that are not posted.
    """

    accounts: Mapping[str, RunningAccount] = {}

    def __init__(self, bus: Bus, olog: Olog, deployment: str, since: Time, alerts: Alerts, clock: Clock) -> None:
        self._olog, self._deployment, self._since, self._clock = olog, deployment, since, clock
        self._alerts = alerts
        self._entry_of = {topic: of for topic, of in sources().items() if topic in TOPICS}
        self._reader = bus.open_reader(dict.fromkeys(TOPICS), {})
        self.waiting: deque[Comment] = deque()
        self._pause, self._next = 0.0, float("-inf")
        self._error = ""
        self._told: str | None = None
        """Text of the alert; empty: it is not raised; None: unknown."""
        self._text_at = float("-inf")

    def step(self) -> None:
        """Read new comments, and post the one that waits longest."""
        try:
            self._step()
        except BusError as error:
            _log.warning("comments wait retry=%g s reason=%s", _RETRY, error)
            self._clock.sleep(_RETRY)

    def _step(self) -> None:
        is_due = bool(self.waiting) and self._clock.monotonic() >= self._next
        for record in self._reader.take(_MOST_READ, 0.0 if is_due else _WAIT):
            if (comment := self._comment(record)) is not None and comment not in self.waiting:
                self.waiting.append(comment)
        if self.waiting and self._clock.monotonic() >= self._next:
            self._post(self.waiting[0])
        self._report()

    def finish(self) -> None:
        """Stop reading."""
        self._reader.close()

    def _comment(self, record: Record) -> Comment | None:
        entry = self._entry_of[record.topic](record)
        if entry is None or entry.time < self._since or entry.kind not in (_COMMENT, _ALARM) or not entry.said:
            return None
        return Comment(hashlib.sha256(json.dumps((self._deployment, *entry)).encode()).hexdigest()[:32], entry)

    def _post(self, comment: Comment) -> None:
        try:
            if not self._olog.has(comment):
                self._olog.post(comment)
                _log.info("posted comment=%s about=%s", comment.id, comment.title)
        except OSError as error:
            self._pause = min(max(2 * self._pause, _PAUSES[0]), _PAUSES[1])
            self._next = self._clock.monotonic() + self._pause
            self.waiting.rotate(-1)  # one that the Olog refuses holds up no other
            what = "comment=%s waiting=%d retry=%g s reason=%s"
            self._error = printable(f"{error}")
            _log.warning(f"not posted {what}", comment.id, len(self.waiting), self._pause, self._error)
        else:
            self._pause = 0.0
            self.waiting.popleft()

    def _report(self) -> None:
        """Raise the alert after a failure, keep its text true, and clear it when no comment waits, also unread."""
        if not self.waiting:
            self._error = ""
        text = f"comments that wait: {len(self.waiting)}; {self._error}"[:_LONGEST_TEXT] if self._error else ""
        now = self._clock.monotonic()
        is_told = text == self._told or (bool(text and self._told) and now < self._text_at)
        if is_told or (not text and (self.waiting or not all(map(self._reader.caught_up, TOPICS)))):
            return
        if text:
            self._alerts.raise_alert(NOT_POSTED, WARNING, text)
        else:
            self._alerts.clear(NOT_POSTED, "each comment was posted")
        self._told, self._text_at = text, now + _TEXT_EACH


def _named(names: Sequence[str]) -> list[dict[str, str]]:
    return [{"name": one} for one in names]


def olog(
    address: Annotated[str, typer.Argument(help="Address of the Olog, such as https://olog.example.org/Olog.")],
    logbook: Annotated[list[str], typer.Option(help="Logbook of the entries, which the Olog has; may be repeated.")],
    tag: Annotated[
        list[str] | None, typer.Option(help="Tag of the entries, which the Olog has; may be repeated.")
    ] = None,
    login: Annotated[
        Path | None,
        typer.Option(
            envvar=f"{LOGIN}_FILE", help=f"File with USER:PASSWORD of the Olog; {LOGIN} may have the text itself."
        ),
    ] = None,
    oldest: Annotated[
        str, typer.Option(metavar="DURATION", help="Age of the oldest comments that are posted, such as 12h or 7d.")
    ] = "7d",
) -> None:
    """Post operators' comments to an Olog, each once: one process of a site.

    Comments of the last days that the Olog does not have yet are posted at the start.

    Example: sdp-facade olog https://olog.example.org/Olog --logbook Operations --login olog.txt
    """
    clock, settings = SystemClock(), load_client_settings()
    if settings.replay:
        raise ConfigError("olog: expected the bus of a running site, got a replay, whose comments were posted long ago")
    try:
        text = os.environ.get(LOGIN, "") if login is None else login.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--login {login}: expected a file with USER:PASSWORD, got {error}") from error
    to = Olog(address, text.strip(), logbook, tag or (), clock)
    begin = clock.now_us() - as_duration(parse_duration(oldest, "--oldest"))

    def make(site: Site) -> CommentPoster:
        bus = KafkaBus(site.connection, client=site.name)
        say(f"comments go to {without_secrets(address)}, logbook {', '.join(logbook)}")
        alerts = site.alerts(f"{ORIGIN}/olog", bus.writer())
        return CommentPoster(bus, to, site.settings.prefix, begin, alerts, site.clock)

    run_worker("olog", "0", make)

"""Certificates that end soon: those of the brokers, of this process, and others that the settings name.

Once an hour, a thread of its own reads the files and asks each server for its certificate. No certificate is verified
here, as this must also work after its end: the clients of the bus verify.
"""

import logging
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

from facade.kernel.clock import DAY, Clock, Time, as_time, utc_seconds
from facade.kernel.config import Settings
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import Fault, FaultKey
from facade.kernel.runtime.health_issues import ORIGIN
from facade.kernel.runtime.steps import run_steps
from facade.kernel.severities import ALARM, WARNING

_ENDS, _SOURCE = "certificateEnds", f"{ORIGIN}/certificate/"
_SOON, _VERY_SOON = 30 * DAY, 7 * DAY
_EACH, _LOOK = 3600.0, 5.0
"""Time between two reads of a certificate, and between two checks for certificates to read [s]."""
_PATIENCE = 5.0
"""Longest wait for an answer of a server [s]."""
_VALIDITY = re.compile(
    rb"\x30[\x1e\x20\x22](?:\x17\x0d\d{12}Z|\x18\x0f\d{14}Z)(?:\x17\x0d(?P<short>\d{12}Z)|\x18\x0f(?P<long>\d{14}Z))"
)
"""The validity in a certificate: two times, each in one of two forms (RFC 5280, 4.1.2.5)."""
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

_log = logging.getLogger(__name__)


class Certificates:
    """Finds certificates that end soon. They raise an alarm, and leave the healthState as it is: all works still.

    Parameters
    ----------
    brokers
        Returns the known brokers, as host:port.
    """

    def __init__(self, settings: Settings, brokers: Callable[[], frozenset[str]], clock: Clock) -> None:
        properties = settings.kafka
        self._is_encrypted = properties.get("security.protocol", "").lower().endswith("ssl")
        self._authority = properties.get("ssl.ca.location", "")
        files = (self._authority, properties.get("ssl.certificate.location", ""))
        self._named = {one.strip() for one in (*files, *settings.certificates.split(","))} - {""}
        self._brokers, self._clock = brokers, clock
        self._ends: dict[str, Time] = {}
        """End of each certificate that could be read, by its file or server."""
        self._due: dict[str, float] = {}

    def find(self, now: Time) -> dict[FaultKey, Fault]:
        """Return the certificates that end within 30 days."""
        return {
            _key(place): Fault(
                f"the certificate of {place} {'ends' if ends > now else 'ended'} at {utc_seconds(ends)}",
                ALARM if ends - now < _VERY_SOON else WARNING,
            )
            for place, ends in self._ends.copy().items()
            if ends - now < _SOON
        }

    def judges(self, key: FaultKey) -> bool:
        """Return whether a certificate was read, or is no longer in use; otherwise its alarm stays."""
        is_complete = not self._is_encrypted or bool(self._brokers())
        return is_complete and key not in map(_key, self._places() - self._ends.keys())

    def run(self, stop: Event) -> None:
        """Read certificates when they are due, until `stop` is set."""
        run_steps(self.step, stop, "reading certificates", each=_LOOK)

    def step(self) -> None:
        """Read the certificates that were not read for an hour."""
        now, places = self._clock.monotonic(), self._places()
        for place in sorted(places):
            if now >= self._due.get(place, now):
                self._due[place] = now + _EACH
                try:
                    self._ends[place] = self._read(place)
                except (OSError, ValueError) as error:
                    _log.warning("certificate of %s cannot be read: its end is not watched: %s", place, error)
        # A broker that is away may only restart: its end is kept until it would be read again.
        for place in [one for one, due in self._due.items() if one not in places and now >= due]:
            del self._due[place]
            self._ends.pop(place, None)

    def _places(self) -> set[str]:
        return self._named | (self._brokers() if self._is_encrypted else set())

    def _read(self, place: str) -> Time:
        """Return when the certificate of a file or server ends; OSError or ValueError: it cannot be read."""
        host, _, port = place.rpartition(":")
        if port.isdigit():
            return _not_after(ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=_PATIENCE))
        found = [_not_after(one) for one in _PEM.findall(Path(place).read_text(encoding="ascii", errors="replace"))]
        if not found:
            raise ValueError("expected certificates in PEM, got none")
        # A chain ends with its first certificate. Of several authorities, as while one replaces another, one is enough.
        return max(found) if place == self._authority else min(found)


def _key(place: str) -> FaultKey:
    return _ENDS, _SOURCE + place.strip("/")


def _not_after(pem: str) -> Time:
    found = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(pem))
    if found is None:
        raise ValueError("expected a certificate with a validity")
    short, full = found["short"], found["long"]
    # Two digits of a year are of 1950 to 2049.
    text = full.decode() if full else f"{'19' if short >= b'5' else '20'}{short.decode()}"
    moment = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    return as_time(moment.timestamp())


def watch(server: Server, brokers: Callable[[], frozenset[str]]) -> None:
    """Let a device server watch certificates, and raise alarms about them."""
    found = Certificates(server.settings, brokers, server.clock)
    server.threads.append(found.run)
    server.report(found.find, lambda key: key[0] == _ENDS and key[1].startswith(_SOURCE), judges=found.judges)

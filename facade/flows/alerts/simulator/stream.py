"""The alerts of a simulated SDP, sent at a steady rate or in bursts, with bad records among them.

The account has the number of alerts of each source, and the last state of each alarm. Same seed, same stream.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from facade.flows.alerts.messages import ALERTS, PACKETS, Alert, encode
from facade.flows.alerts.packets import PacketCodec, PacketContent
from facade.kernel.clock import NEVER, Time
from facade.kernel.errors import ConfigError
from facade.kernel.severities import SEVERITIES, Severity
from facade.simulate.pacing import Bursts, Pacer
from facade.simulate.sender import Shape, StreamReport

DETECTED = "transientDetected"
"""The condition of a night."""
_STRANGE = ("simulatedStranger", "simulatedVisitor", "simulatedGuest")
"""Conditions that are not in any ICD."""
_CUTOUTS = ("cutoutDifference", "cutoutTemplate")
_POOL = 4_000_000
"""Size of the random bytes from which images are cut [bytes]."""
_MOST_WAITING, _MOST_WAITING_BYTES = 50_000, 64_000_000
"""Unconfirmed alerts at which the stream waits."""
_CHUNK, _CHUNK_BYTES = 500, 8_000_000
"""Most alerts, and bytes, between two looks at the clock."""

BAD_ALERTS: dict[str, tuple[bytes, str]] = {
    "not JSON": (b'{"schema": "alert/1", ', "not-json"),
    "no version": (b'{"condition": "x"}', "version"),
    "later version": (b'{"schema": "alert/2", "what": "else"}', "version"),
    "no severity": (b'{"schema": "alert/1", "condition": "x", "source": "y", "state": "ACTIVE"}', "schema"),
    "empty": (b"", "empty"),
    "oversized": (b'"' + b"x" * 70_000 + b'"', "too-large"),
}
"""Bad records by name, each with the reason of its dead letter."""


def bad_packets(good: bytes) -> dict[str, tuple[bytes, str]]:
    """Return bad packets by name, each with the reason of its dead letter."""
    return {
        "not Avro": (b'{"schema": "alert/1"}', "not-avro"),
        "other schema": (good[:2] + bytes(8) + good[10:], "unknown-schema"),
        "broken off": (good[:-1], "not-avro"),
        "empty": (b"", "empty"),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertMixture:
    """Mixture of alerts; shares are of all alerts, from 0 to 1."""

    seed: int = 1
    sources: int = 10
    conditions: tuple[str, ...]
    chatter: bool = False
    """Every other alert is about one alarm, which is raised and cleared again and again."""
    flood: bool = False
    """Nothing clears but the alarm that chatters: one alarm after the other becomes active."""
    unknown: float = 0.0
    """Share of alerts with conditions that are not in the ICD."""
    garbage: float = 0.0
    """Share of alerts followed by a bad record."""
    packet_size: int = 0
    """Size of packets with two images, as in a night of LSST's [bytes]; 0: alerts without packets."""

    def __post_init__(self) -> None:
        for name in ("unknown", "garbage"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: expected a share from 0 to 1, got {getattr(self, name)}")
        if self.sources < 1 or not self.conditions:
            raise ConfigError(f"expected sources and conditions, got {self.sources} and {self.conditions}")
        if not 0 <= self.packet_size < _POOL:
            raise ConfigError(f"packet size: expected 0 to {_POOL} bytes, got {self.packet_size}")


class SourceAccount(msgspec.Struct):
    """Account of the alerts of one source."""

    count: int = 0
    last_sequence: int = 0


@dataclass(slots=True)
class AlertAccount:
    """An exact account of the alerts of a stream."""

    alerts: int = 0
    """Alerts, without the bad records."""
    sources: dict[str, SourceAccount] = field(default_factory=dict)
    alarms: dict[str, str] = field(default_factory=dict)
    """ACTIVE or CLEARED by condition@source."""
    garbage: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[str] = field(default_factory=Counter)
    """Their expected dead letters, by reason."""


class AlertReport(StreamReport, frozen=True, kw_only=True):
    """An exact account of one run; see `AlertAccount`."""

    schema: str = "simulate-alerts/1"
    seed: int
    alerts: int
    garbage: dict[str, int]
    dead_letters: dict[str, int]
    sources: dict[str, SourceAccount]
    alarms: dict[str, str]


@dataclass(slots=True)
class _Alarm:
    condition: str
    source: str
    active: bool = False
    severity: Severity = "INFO"
    raised_at: Time = NEVER


class AlertStream:
    """Generates alerts, or packets.

    Parameters
    ----------
    codec
        Writes the packets.
    """

    def __init__(self, scenario: AlertMixture, codec: PacketCodec | None = None) -> None:
        if scenario.packet_size and codec is None:
            raise ConfigError("packets: expected a codec, got none")
        self.scenario = scenario
        self.account = AlertAccount()
        self.topic = PACKETS if scenario.packet_size else ALERTS
        self._codec = codec
        self._dice = random.Random(scenario.seed)  # noqa: S311 - a simulation must be repeatable
        prefix = "lsst/detector" if scenario.packet_size else "simulated"
        self._sources = [f"{prefix}-{number:03d}" for number in range(scenario.sources)]
        self._chattering = (scenario.conditions[0], self._sources[0])
        self._alarms: dict[tuple[str, str], _Alarm] = {}
        self._pool = self._dice.randbytes(_POOL) if scenario.packet_size else b""
        self._turns: Counter[str] = Counter()

    @property
    def given(self) -> int:
        """Return the number of generated alerts, without the bad records."""
        return self.account.alerts

    def take(self, count: int, now_us: Time) -> tuple[list[bytes], list[bytes | None]]:
        """Return keys and values of the next alerts, with the bad records after some of them."""
        keys: list[bytes] = []
        values: list[bytes | None] = []
        for _ in range(count):
            alert = self._next(now_us)
            value = self._value(alert)
            keys.append(self._key(alert))
            values.append(value)
            if self.scenario.garbage and self._dice.random() < self.scenario.garbage:
                keys.append(self._key(alert))
                values.append(self._bad(value))
        return keys, values

    def _next(self, now_us: Time) -> Alert:
        alarm = self._choose()
        if self.scenario.packet_size:
            self._raise(alarm, now_us)  # each detection is an alarm of its own
        elif not alarm.active:
            self._raise(alarm, now_us)
        elif self.scenario.flood and not self._chatters(alarm):
            pass  # still active
        elif self._dice.random() < 0.75 or self._chatters(alarm):
            alarm.active = False
        else:
            alarm.severity = SEVERITIES[min(SEVERITIES.index(alarm.severity) + 1, len(SEVERITIES) - 1)]
        return self._say(alarm)

    def _choose(self) -> _Alarm:
        scenario, turn = self.scenario, self.account.alerts
        conditions = scenario.conditions
        if scenario.chatter and turn % 2 == 0:
            return self._alarm(*self._chattering)
        if scenario.unknown and self._dice.random() < scenario.unknown:
            return self._alarm(self._dice.choice(_STRANGE), self._dice.choice(self._sources))
        if scenario.flood:
            turn = self._turn("flood")
            return self._alarm(
                conditions[turn % len(conditions)], self._sources[turn // len(conditions) % len(self._sources)]
            )
        return self._alarm(self._dice.choice(conditions), self._dice.choice(self._sources))

    def _alarm(self, condition: str, source: str) -> _Alarm:
        return self._alarms.setdefault((condition, source), _Alarm(condition, source))

    def _chatters(self, alarm: _Alarm) -> bool:
        return self.scenario.chatter and (alarm.condition, alarm.source) == self._chattering

    def _raise(self, alarm: _Alarm, now_us: Time) -> None:
        alarm.active, alarm.raised_at = True, now_us
        alarm.severity = self._dice.choice(SEVERITIES)

    def _say(self, alarm: _Alarm) -> Alert:
        source = self.account.sources.setdefault(alarm.source, SourceAccount())
        source.count += 1
        source.last_sequence += 1
        self.account.alerts += 1
        alert = Alert(
            condition=alarm.condition,
            source=alarm.source,
            severity=alarm.severity,
            state="ACTIVE" if alarm.active else "CLEARED",
            text=f"simulated: expected nothing, found {source.count} of {alarm.condition}",
            raised_at=alarm.raised_at,
            sequence=source.last_sequence,
            values={"found": float(source.count)},
        )
        self.account.alarms[f"{alarm.condition}@{alarm.source}"] = alert.state
        return alert

    def _key(self, alert: Alert) -> bytes:
        return (alert.source if self.scenario.packet_size else alert.condition).encode()

    def _value(self, alert: Alert) -> bytes:
        if self._codec is None:
            return encode(alert)
        size = max(self.scenario.packet_size // len(_CUTOUTS), 1)
        begin = self._dice.randrange(len(self._pool) - size + 1)
        images = [
            PacketContent(name, "application/fits", self._pool[begin + number : begin + number + size])
            for number, name in enumerate(_CUTOUTS)
        ]
        return self._codec.encode(alert, images)

    def _bad(self, good: bytes) -> bytes:
        kinds = bad_packets(good) if self.scenario.packet_size else BAD_ALERTS
        kind = list(kinds)[self._turn("garbage") % len(kinds)]
        value, reason = kinds[kind]
        self.account.garbage[kind] += 1
        self.account.dead_letters[reason] += 1
        return value

    def _turn(self, what: str) -> int:
        self._turns[what] += 1
        return self._turns[what] - 1


def alert_shape(stream: AlertStream, *, rate: float = 1.0, bursts: tuple[int, float] | None = None) -> Shape:
    """Return how alerts are sent.

    Parameters
    ----------
    rate
        Steady alerts [1/s], unless there are bursts.
    bursts
        Alerts of one burst, and the time to the next [s].
    """
    size = stream.scenario.packet_size
    chunk = max(_CHUNK_BYTES // size, 1) if size else _CHUNK
    waiting = max(_MOST_WAITING_BYTES // size, 1) if size else _MOST_WAITING
    pace = partial(Pacer, rate) if bursts is None else partial(Bursts, *bursts, chunk=chunk)
    return Shape(pace=pace, most_waiting=waiting, chunk=chunk)


def alert_report(stream: AlertStream, common: dict[str, Any]) -> AlertReport:
    """Return the report of a stream so far; `common`: the fields that all reports have."""
    account = stream.account
    return AlertReport(
        **common,
        seed=stream.scenario.seed,
        alerts=account.alerts,
        garbage=dict(account.garbage),
        dead_letters=dict(account.dead_letters),
        sources=dict(account.sources),
        alarms=dict(account.alarms),
    )


def read_alert_report(path: Path) -> AlertReport:
    """Read the report of a run."""
    return msgspec.json.decode(path.read_bytes(), type=AlertReport)

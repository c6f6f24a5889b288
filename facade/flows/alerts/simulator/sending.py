"""Plays sources of alerts: sends at a steady rate or in bursts, and says exactly what it has sent."""

from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from facade.flows.alerts.simulator.stream import AlertStream, SourceAccount
from facade.simulate.pacing import Bursts, Pacer
from facade.simulate.sender import Outlet, StreamReport, StreamSender

VERSION = "simulate-alerts/1"
_MOST_WAITING, _MOST_WAITING_BYTES = 50_000, 64_000_000
"""With so much unconfirmed the stream waits."""
_CHUNK, _CHUNK_BYTES = 500, 8_000_000
"""Most alerts between two looks at the clock."""


class AlertReport(StreamReport, frozen=True, kw_only=True):
    """An exact account of what one run sent."""

    schema: str = VERSION
    seed: int
    alerts: int
    """Alerts among what was queued; the rest is garbage."""
    garbage: dict[str, int]
    """Bad records by kind."""
    dead_letters: dict[str, int]
    """What must become of them, by reason."""
    sources: dict[str, SourceAccount]
    alarms: dict[str, str]
    """ACTIVE or CLEARED by condition@source."""


class AlertSimulator(StreamSender[AlertReport]):
    """Sends one stream; the other parameters are those of `facade.simulate.sender.StreamSender`.

    Parameters
    ----------
    rate
        Steady alerts [1/s], unless there are bursts.
    bursts
        Alerts of one burst, and the time to the next [s].
    """

    def __init__(
        self,
        stream: AlertStream,
        outlet: Outlet,
        *,
        rate: float = 1.0,
        bursts: tuple[int, float] | None = None,
        **frame: Any,
    ) -> None:
        self._stream = stream
        size = stream.scenario.packet_size
        chunk = max(_CHUNK_BYTES // size, 1) if size else _CHUNK
        waiting = max(_MOST_WAITING_BYTES // size, 1) if size else _MOST_WAITING
        pace = partial(Pacer, rate) if bursts is None else partial(Bursts, *bursts, chunk=chunk)
        super().__init__(stream, outlet, pace=pace, most_waiting=waiting, chunk=chunk, **frame)

    def report(self, *, stopped_by: str = "", finished: bool = False) -> AlertReport:
        """Say how things are."""
        account = self._stream.account
        return AlertReport(
            **self._common(stopped_by=stopped_by, finished=finished),
            seed=self._stream.scenario.seed,
            alerts=account.alerts,
            garbage=dict(account.garbage),
            dead_letters=dict(account.dead_letters),
            sources=dict(account.sources),
            alarms=dict(account.alarms),
        )


def read_alert_report(path: Path) -> AlertReport:
    """Read the report of a run."""
    return msgspec.json.decode(path.read_bytes(), type=AlertReport)

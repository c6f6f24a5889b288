"""Plays the senders of any windowed topic: sends at a steady rate, and says exactly what it has sent."""

from functools import partial
from typing import Any

from facade.flows.telemetry.simulator.records import GroupAccount, RecordStream
from facade.simulate.pacing import Pacer
from facade.simulate.sender import Outlet, StreamReport, StreamSender

VERSION = "simulate-telemetry/1"
_MOST_WAITING = 50_000
"""With so many records unconfirmed the stream waits."""


class TelemetryReport(StreamReport, frozen=True, kw_only=True):
    """An exact account of what one run sent."""

    schema: str = VERSION
    rate: float
    groups: dict[str, GroupAccount]


class TelemetrySimulator(StreamSender[TelemetryReport]):
    """Sends one stream; the other parameters are those of `facade.simulate.sender.StreamSender`."""

    def __init__(self, stream: RecordStream, rate: float, outlet: Outlet, **frame: Any) -> None:
        self._stream, self._rate = stream, rate
        super().__init__(stream, outlet, pace=partial(Pacer, rate), most_waiting=_MOST_WAITING, **frame)

    def report(self, *, stopped_by: str = "", finished: bool = False) -> TelemetryReport:
        """Say how things are."""
        return TelemetryReport(
            **self._common(stopped_by=stopped_by, finished=finished),
            rate=self._rate,
            groups={str(group): account for group, account in self._stream.accounts.items()},
        )

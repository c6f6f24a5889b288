"""What a device server with commands does all the time: it keeps its lease and ends what is overdue."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from facade.bus.port import Record
from facade.clock import Clock
from facade.flows.commands.lease import INTERVAL, TERM, Lease
from facade.flows.commands.messages import HeartbeatMessage, ack_record, heartbeat_record
from facade.flows.commands.tracker import Tracker

_GOODBYE = 1.0
"""Longest wait for the last heartbeat to leave [s]."""


class Post(Protocol):
    """Writes records without waiting."""

    def post(self, record: Record) -> None:
        """Queue a record; a failure is counted and logged, not raised."""

    def close(self, timeout: float) -> None:
        """Wait for what is queued, at most `timeout` [s]."""


class PeriodicTask:
    """Called by the event loop in each cycle; see `facade.runtime.event_loop`.

    Parameters
    ----------
    caught_up
        Whether what stood on the bus at the start has been read: before that nothing can be overdue.
    """

    def __init__(
        self,
        *,
        component: str,
        incarnation: str,
        devices: Sequence[str],
        version: str,
        post: Post,
        lease: Lease,
        tracker: Tracker,
        caught_up: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._heartbeat = HeartbeatMessage(
            component=component,
            incarnation=incarnation,
            devices=list(devices),
            time=0,
            interval=INTERVAL,
            role="server",
            version=version,
        )
        self._post = post
        self._lease = lease
        self._tracker = tracker
        self._caught_up = caught_up
        self._clock = clock
        self._next = float("-inf")

    def perform(self) -> None:
        """Send what is due."""
        monotonic = self._clock.monotonic()
        if monotonic >= self._next:
            self._next = monotonic + INTERVAL
            self._beat(stopping=False)
        # Who has not heard its own heartbeats come back for a while has not heard either what controllers say.
        if self._caught_up() and self._lease.held_for(monotonic) >= TERM:
            for ack in self._tracker.due(round(self._clock.now() * 1e6), monotonic, self._heartbeat.component):
                self._post.post(ack_record(ack))

    def end(self) -> None:
        """Give the lease back, so that the next start need not wait for it to lapse."""
        self._lease.release()
        self._beat(stopping=True)
        self._post.close(_GOODBYE)

    def _beat(self, *, stopping: bool) -> None:
        now_us = round(self._clock.now() * 1e6)
        heartbeat = msgspec.structs.replace(self._heartbeat, time=now_us, stopping=stopping)
        self._lease.sent(heartbeat, self._clock.monotonic())
        self._post.post(heartbeat_record(heartbeat))

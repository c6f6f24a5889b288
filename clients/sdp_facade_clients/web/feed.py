"""Follows Tango attributes for all browsers at once, as a numbered sequence of frames.

Theory of operation. There is one Tango subscription for each attribute, and one encoding of each change, for any number
of browsers. Tango's threads only mark an attribute as changed. The event loop collects all marks a few times a second,
and encodes the newest values as one frame with the next number. Between two frames only the newest value of an
attribute counts. Alerts are never merged, and do not wait: each entry of the log of SdpAlerts is in exactly one frame,
in order, which is sent at once.

The newest frames are kept. A browser that was away sends its last number, and gets the rest; one that was away for too
long, or is new, gets a snapshot of everything. A slow stream therefore costs no memory. A frame is sent at least once a
second, also without news: a browser without one knows that the server or the connection is gone.
"""

import asyncio
import math
import re
import secrets
import threading
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final, Protocol

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from facade.flows.alerts.follower import FollowedAlert
from facade.kernel.clock import Clock, as_seconds
from facade.kernel.numbers import json_value
from facade.kernel.reading import Quality
from sdp_facade_clients.events import EventRecord
from sdp_facade_clients.web.doors import is_foreign

PERIOD: Final = 0.25
"""Shortest time between two frames without alerts [s]."""
_STREAMS_PER_SECOND: Final = 4000.0
"""Events sent to all browsers together in a second: more browsers get fewer frames."""
SIGN_OF_LIFE: Final = 1.0
"""Longest time between two frames [s]."""
KEPT_FRAMES: Final = 600
"""Frames kept for browsers that were away: a minute of the fastest ones."""
KEPT_BYTES: Final = 32_000_000
"""Most memory of these frames [bytes]: those with spectra of many subarrays would need 200 MB."""
HOUR: Final = 3600.0
SPANS: Final = (HOUR, 12 * HOUR)
"""Times that trends go back [s], each with as many points."""
TREND_BYTES: Final = 64_000_000
"""Upper bound of the memory of all trends [bytes]; with many of them, points are further apart than a second."""
_POINT: Final = 16
"""Size of a time and a value [bytes]."""
KEPT_ALERTS: Final = 500
"""Entries of the alert log in a snapshot."""
_RECONNECT_MS: Final = 500
"""After which a browser tries again when the stream has broken [ms]."""

Points = tuple[list[float], list[float | None]]
"""Times [Unix s] and values of a scalar; None is a gap."""


class Recorder(Protocol):
    """The newest value of each attribute; see `sdp_facade_clients.events.EventRecorder`."""

    def record(self, device: str, attribute: str) -> EventRecord:
        """Return the record of an attribute."""


class ServerPulse(Protocol):
    """Silent devices; see `sdp_facade_clients.events.EventPulse`."""

    @property
    def away(self) -> str:
        """Return why the Tango database does not answer; empty: it does."""

    def silent(self) -> Mapping[str, float]:
        """Return the devices whose server does not answer, with the time of its last answer [Unix s]."""


class Trend:
    """Values of one scalar during the last `span` [s], `spacing` of the span's hours apart; an invalid one is a gap."""

    def __init__(self, spacing: float = 1.0, span: float = HOUR) -> None:
        self._hours, self._span = span / HOUR, span
        self.spacing = spacing * self._hours
        self._times, self._values = array("d"), array("d")

    def add(self, time: float, value: float) -> None:
        """Add a value, or replace the last one if that is closer than the spacing."""
        if time < self.last:  # the clock was set back
            begin = bisect_right(self._times, time)
            del self._times[begin:], self._values[begin:]
        if self._times and time - self._times[-1] < self.spacing and math.isnan(value) == math.isnan(self._values[-1]):
            self._values[-1] = value
            return
        self._times.append(time)
        self._values.append(value)
        most = int(self._span / self.spacing)
        if len(self._times) > 2 * most:
            del self._times[:-most], self._values[:-most]

    def thin(self, spacing: float) -> None:
        """Keep points so far apart in an hour, and accordingly in a longer span [s]."""
        self.spacing = spacing * self._hours

    @property
    def last(self) -> float:
        """Return the time of the newest point [Unix s]; 0 before the first."""
        return self._times[-1] if self._times else 0.0

    def points(self, since: float) -> Points:
        """Return the points from a time on; the first one is the value at that time."""
        begin = max(bisect_right(self._times, since) - 1, 0)
        times = [max(time, since) for time in self._times[begin:]]
        return times, [None if math.isnan(one) else one for one in self._values[begin:]]


class Frame(msgspec.Struct, frozen=True):
    """One numbered event of the stream, the same for every browser."""

    number: int
    text: bytes
    """An event of an event stream (HTML); its id is the boot of this server and the number."""


class Feed:
    """Turns marks of changed attributes into frames; see the theory of operation of this module."""

    def __init__(self, recorder: Recorder, pulse: ServerPulse, clock: Clock) -> None:
        self._recorder, self._pulse, self._clock = recorder, pulse, clock
        self._lock = threading.Lock()
        self._marked: set[tuple[str, str]] = set()
        self._new_alerts: list[FollowedAlert] = []
        self._shown: dict[str, dict[str, list[Any]]] = {}
        self._silent: Mapping[str, float] = {}
        self._away = ""
        self._alerts: deque[FollowedAlert] = deque(maxlen=KEPT_ALERTS)
        self._trends: dict[tuple[str, str], dict[float, Trend]] = {}
        """By attribute, then by span."""
        self._frames: deque[Frame] = deque()
        self._kept = 0
        """Memory of these [bytes]."""
        self._boot = secrets.token_hex(4)
        """Distinguishes the numbers of this server from those of an earlier one."""
        self._number = 0
        self._snapshot: Frame | None = None
        self._wake, self._urgent = asyncio.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: dict[str, int] = {}
        """Number of the newest frame by device; empty name: alerts."""
        self._streams = 0
        self._news = asyncio.Event()

    # Called from any thread.

    def mark(self, device: str, attribute: str) -> None:
        """Mark an attribute as changed."""
        with self._lock:
            self._marked.add((device, attribute))
        self._rouse(self._wake)

    def take_alert(self, entry: FollowedAlert) -> None:
        """Add the next entry of the alert log."""
        with self._lock:
            self._new_alerts.append(entry)
        self._rouse(self._wake)
        self._rouse(self._urgent)

    def forget(self, device: str, attributes: Iterable[str]) -> None:
        """Drop attributes that are no longer followed; browsers learn that they have no value."""
        with self._lock:
            for attribute in attributes:
                self._marked.add((device, attribute))
                self._trends.pop((device, attribute), None)

    def alerts(self) -> list[FollowedAlert]:
        """Return the newest entries of the alert log, the oldest first."""
        with self._lock:
            return [*self._alerts, *self._new_alerts]

    def changed(self, device: str) -> int:
        """Return the number of the newest frame with a value of a device or an alert."""
        return max(self._changed.get(device, 0), self._changed.get("", 0))

    def trend(self, device: str, attribute: str, span: float = HOUR) -> Points:
        """Return the last time of a scalar, one of `SPANS` long."""
        with self._lock:
            found = self._trends.get((device, attribute))
            if found is None:
                return [], []
            now = as_seconds(self._clock.now_us())
            times, values = found[span].points(now - span)
            if values and device not in self._silent:  # without an event the value has not changed
                times.append(now)
                values.append(values[-1])
            return times, values

    @property
    def silent(self) -> Mapping[str, float]:
        """Return the devices whose server does not answer, with the time of its last answer [Unix s]."""
        return self._silent

    def _rouse(self, event: asyncio.Event) -> None:
        if self._loop is not None and not event.is_set():
            with suppress(RuntimeError):  # the server ends
                self._loop.call_soon_threadsafe(event.set)

    # In the event loop.

    async def run(self) -> None:
        """Make frames until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), SIGN_OF_LIFE)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), max(PERIOD, self._streams / _STREAMS_PER_SECOND))
            self._wake.clear()
            self._urgent.clear()
            self.step()

    def step(self) -> None:
        """Make one frame of all changes, and pass it to every stream."""
        with self._lock:
            marked, self._marked = self._marked, set()
            alerts, self._new_alerts = self._new_alerts, []
            values: dict[str, dict[str, list[Any]]] = {}
            for device, attribute in marked:
                value = self._value(device, attribute)
                values.setdefault(device, {})[attribute] = value
                if value == _FORGOTTEN:
                    self._shown.get(device, {}).pop(attribute, None)
                else:
                    self._shown.setdefault(device, {})[attribute] = value
                self._trace(device, attribute, value)
            self._alerts.extend(alerts)
            before = self._silent, self._away
            self._silent, self._away = dict(self._pulse.silent()), self._pulse.away
        self._number += 1
        self._changed |= dict.fromkeys((*values, *([""] if alerts else ())), self._number)
        content = {"time": as_seconds(self._clock.now_us()), "values": values, "alerts": msgspec.to_builtins(alerts)}
        if before != (self._silent, self._away):
            content |= {"silent": self._silent, "away": self._away}
        self._frames.append(self._frame("news", content))
        self._kept += len(self._frames[-1].text)
        while len(self._frames) > KEPT_FRAMES or (self._kept > KEPT_BYTES and len(self._frames) > 1):
            self._kept -= len(self._frames.popleft().text)
        self._snapshot = None
        self._news.set()
        self._news = asyncio.Event()

    async def stream(self, seen: str = "") -> AsyncGenerator[bytes, None]:
        """Yield the frames after a browser's last id, or a snapshot first if they are gone."""
        boot, _, number = seen.partition("-")
        last = int(number) if boot == self._boot and re.fullmatch(r"[0-9]{1,18}", number) else -1
        self._streams += 1
        try:
            while True:
                news = self._news
                if last < (self._frames[0].number - 1 if self._frames else 0):
                    snapshot = self.snapshot()
                    last = snapshot.number
                    yield snapshot.text
                    continue  # frames may have gone meanwhile
                if last < self._number:  # one at a time: a browser that is stuck keeps no other frame
                    frame = self._frames[last - self._number]
                    last = frame.number
                    yield frame.text
                else:
                    await news.wait()
        finally:
            self._streams -= 1

    def snapshot(self) -> Frame:
        """Return all shown values, encoded once for all browsers that ask before the next frame."""
        if self._snapshot is None:
            with self._lock:
                content = {
                    "time": as_seconds(self._clock.now_us()),
                    "values": self._shown,
                    "silent": self._silent,
                    "away": self._away,
                    "alerts": msgspec.to_builtins(list(self._alerts)),
                }
                self._snapshot = self._frame("snapshot", content)
        return self._snapshot

    def _frame(self, kind: str, content: Mapping[str, Any]) -> Frame:
        head = f"id: {self._boot}-{self._number}\nevent: {kind}\ndata: ".encode()
        return Frame(self._number, head + _encode(content) + b"\n\n")

    def _value(self, device: str, attribute: str) -> list[Any]:
        """Return value, quality, time of the data [Unix s], and the error of a failing subscription."""
        record = self._recorder.record(device, attribute).judged()
        newest = record.newest
        error = record.last_error if record.failing else ""
        if newest is None:
            return [*_FORGOTTEN[:-1], error]
        return [json_value(newest.value), newest.quality.value, newest.time, error]

    def _trace(self, device: str, attribute: str, value: list[Any]) -> None:
        number = value[0]
        found = self._trends.get((device, attribute))
        if not isinstance(number, int | float):
            if found is None:
                return
            number = math.nan  # JSON has no NaN
        if found is None:
            found = self._trends[device, attribute] = {span: Trend(span=span) for span in SPANS}
            spacing = max(1.0, HOUR * 2 * _POINT * len(SPANS) * len(self._trends) / TREND_BYTES)
            for one in self._trends.values():
                for trend in one.values():
                    trend.thin(spacing)
        now = as_seconds(self._clock.now_us())
        for trend in found.values():
            if value[1] == Quality.INVALID.value:
                trend.add(now, math.nan)
            else:
                # A count of late records changes without a newer data time. The first value may be hours old. After a
                # time in the future, by a wrong clock, nothing would be added until then.
                trend.add(min(value[2], now) if 0 < trend.last < value[2] else now, float(number))


_encode = msgspec.json.Encoder().encode
_FORGOTTEN: Final = [None, Quality.INVALID.value, 0.0, ""]
"""What is said of an attribute without a value: in one frame, and in no snapshot, as a browser takes it for unknown."""


class Events:
    """Answers a browser with the stream of frames, from the one on that it names.

    It stands before the routes, and each stream is one task: what a browser costs counts, as there may be thousands.
    """

    def __init__(self, app: ASGIApp, *, feed: Feed) -> None:
        self._app, self._feed = app, feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a browser, or leave the request to the routes."""
        if scope["type"] != "http" or scope["path"] != "/events":
            await self._app(scope, receive, send)
            return
        given = {name.decode(): text.decode("latin-1") for name, text in scope["headers"]}
        if is_foreign(given.get("sec-fetch-site", "")):
            await Response(status_code=403)(scope, receive, send)
            return
        head = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        head.append((b"x-accel-buffering", b"no"))
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send(_part(b"retry: %d\n\n" % _RECONNECT_MS))
        async with aclosing(self._feed.stream(given.get("last-event-id", ""))) as frames:
            async for text in frames:
                await send(_part(text))
                if _has_gone(receive):
                    return


def _part(content: bytes) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": True}


def _has_gone(receive: Receive) -> bool:
    """Return whether a browser has gone, without waiting for it."""
    asked: Any = receive()
    try:
        asked.send(None)
    except StopIteration as answer:
        return bool(answer.value["type"] == "http.disconnect")
    asked.close()
    return False

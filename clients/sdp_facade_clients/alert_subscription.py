"""A client of SdpAlerts that misses no alert, for leaf nodes, archivers and operators' screens.

Two threads: one keeps the subscription and reads the newest number at intervals, the other puts entries in order,
requests missing ones, and calls back. ZMQ's thread only fills a queue.
"""

import logging
import queue
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import tango

from facade.flows.alerts.filter import AlertFilter
from facade.flows.alerts.follower import FollowedAlert, Follower, Page

_log = logging.getLogger(__name__)

_LONGEST_END = 3.5
"""Longest wait of `close` for each thread [s]: Tango gives up an ordinary call after 3 s."""
_QUEUED = 10_000
"""Events queued for a slow callback; further ones are fetched later."""
_POLL, _AWAY = 1.0, 0.5
"""Time between two reads of the newest number, and between two tries while the device is away [s]."""
_IDLE = 0.3
"""Time without an event after which a higher newest number proves the loss of the last event [s]."""
_NEWEST = 2**62
"""Higher than any number: the answer is empty, but has the newest number."""
_GONE = re.compile(r"sequence: expected at least (\d+)")
"""Error of the device for entries that it no longer has, with the first number that is complete."""


class AlertSubscription:
    """Calls back once for each alert and each action, in the order of their numbers, until it is closed.

    Parameters
    ----------
    device_name
        Name of the device, such as ``tango://host:10000/mid-sdp/alerts/0``.
    on_entry
        Called with each entry, in a thread of its own. The device keeps the newest 100,000 entries for a slow one.
    start
        Number of the last entry that is already known; 0 for all, None for new ones only.
    recent
        Without a start: how many of the entries before are given as well, the newest ones.
    on_lost
        Called with a text about entries that can no longer be delivered, selected or not. By default it is logged.
    only
        Selects entries, in the client; by default all. Numbers, gaps and `place` are those of all entries.
    """

    def __init__(
        self,
        device_name: str,
        on_entry: Callable[[FollowedAlert], None],
        *,
        start: int | None = None,
        recent: int = 0,
        on_lost: Callable[[str], None] = _log.error,
        only: AlertFilter | None = None,
    ) -> None:
        self._device, self._on_entry, self._on_lost = device_name, on_entry, on_lost
        self._recent = recent
        self._only = only or AlertFilter()
        self.place = start
        """Number of the newest entry that was handled: the `start` after a restart; None if unknown."""
        self.follower: Follower | None = None if start is None else Follower(start)
        """The entries so far; None until the newest number is known."""
        self.overflowed = self.renewed = 0
        """Events dropped from a full queue, and the number of subscriptions made."""
        self.last_error = ""
        """Reason of the last call without an answer."""
        self._events: queue.Queue[str] = queue.Queue(_QUEUED)
        self._newest: int | None = None
        """The last value read, until it has been compared."""
        self._closed, self._renew = threading.Event(), threading.Event()
        self._calling = threading.RLock()
        """Held during a callback, which may call `close`."""
        self._proxy: Any = None
        self._threads = [threading.Thread(target=body, daemon=True) for body in (self._listen, self._work)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the subscription. No callback runs after `close` returns, unless a callback itself called it.

        A call to Tango that is under way may outlast it: while the Tango database hangs, one takes 17 s.
        """
        self._closed.set()
        self._renew.set()
        with self._calling:  # a callback under way ends, and no further one begins
            pass
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_LONGEST_END)

    def _listen(self) -> None:
        with tango.EnsureOmniThread():
            proxy, subscription = None, None
            while not self._closed.is_set():
                try:
                    # A failed proxy waits before it tries again, so a new one is made.
                    proxy = proxy or tango.DeviceProxy(self._device)
                    if self._renew.is_set():
                        self._renew.clear()
                        subscription = self._unsubscribe(proxy, subscription)
                    if subscription is None:
                        subscription = proxy.subscribe_event("lastAlert", tango.EventType.CHANGE_EVENT, self._on_event)
                        self.renewed += 1
                        if self.follower is not None:
                            self.follower.doubt()
                    self._newest = proxy.read_attribute("alertSequence").value  # None while the device knows no alerts
                    self._renew.wait(_POLL)
                except tango.DevFailed as failed:
                    self.last_error = failed.args[0].desc
                    proxy, subscription = None, self._unsubscribe(proxy, subscription)
                    self._closed.wait(_AWAY)
            self._unsubscribe(proxy, subscription)

    @staticmethod
    def _unsubscribe(proxy: Any, subscription: int | None) -> None:
        if subscription is not None:
            with suppress(tango.DevFailed):  # the server may be gone
                proxy.unsubscribe_event(subscription)

    def _on_event(self, event: Any) -> None:
        if event.err or event.attr_value.value is None:
            return
        try:
            self._events.put_nowait(event.attr_value.value)
        except queue.Full:
            self.overflowed += 1

    def _work(self) -> None:
        with tango.EnsureOmniThread():
            while not self._closed.is_set():
                if self.follower is None:
                    if text := self._ask(_NEWEST):
                        page = msgspec.json.decode(text, type=Page)
                        self.place = max(page.newest - self._recent, 0)
                        self.follower = Follower(self.place, numbering=page.numbering)
                        self.follower.announce(page.newest)
                    continue
                try:
                    self._give(self.follower, self.follower.take(self._events.get(timeout=_IDLE)))
                except queue.Empty:
                    self._compare(self.follower)
                while not self._closed.is_set() and (asked := self.follower.missing()) is not None:
                    try:
                        self._fill(self.follower, asked)
                    except Exception:  # a bug must not end the thread silently
                        _log.exception("what followed alert %d could not be fetched", asked)
                        self._closed.wait(_AWAY)

    def _compare(self, follower: Follower) -> None:
        """Check whether the last event was lost: no later event shows the gap."""
        newest, self._newest = self._newest, None
        if newest is not None:
            follower.announce(newest)
            if newest > follower.seen:
                self._renew.set()  # alerts come without events

    def _fill(self, follower: Follower, asked: int) -> None:
        anew = follower.made_anew
        if text := self._ask(asked):
            self._give(follower, follower.add_page(asked, text))
        if follower.made_anew != anew:
            with self._events.mutex:
                self._events.queue.clear()  # they belong to the former log
            self._tell_lost(f"the log of the alerts is a new one: {asked} had been seen, its numbers begin at 1")

    def _ask(self, sequence: int) -> str:
        """Call GetAlertsSince; return an empty text, after a pause, if the device is away or still reading."""
        try:
            self._proxy = self._proxy or tango.DeviceProxy(self._device)
            return str(self._proxy.command_inout("GetAlertsSince", sequence))
        except tango.DevFailed as failed:
            self._proxy, self.last_error = None, failed.args[0].desc
            if (gone := _GONE.search(failed.args[0].desc)) and self.follower is not None:
                last = int(gone[1])
                self._tell_lost(
                    f"{sequence + 1} to {last} are no longer in the memory of the device, only on the topic"
                )
                self._give(self.follower, self.follower.skip(last))
            else:
                self._closed.wait(_AWAY)
            return ""

    def _tell_lost(self, text: str) -> None:
        with self._calling:
            if not self._closed.is_set():
                self._on_lost(text)

    def _give(self, follower: Follower, entries: list[FollowedAlert]) -> None:
        for entry in entries:
            with self._calling:
                if self._closed.is_set():
                    return
                try:
                    if self._only.wants(entry):
                        self._on_entry(entry)
                except Exception:
                    _log.exception("callback failed for alert %d", entry.sequence)
                self.place = entry.sequence
        with self._calling:
            if not self._closed.is_set():
                self.place = follower.seen  # after the last entry in case of a gap; 0 after a new log

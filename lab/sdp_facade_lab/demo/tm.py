"""TM in the demo: it commands subarrays as a telescope manager does, in a process of its own."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import tango

from facade.kernel.clock import Clock
from facade.kernel.errors import FacadeError, InfraError
from sdp_facade_lab.demo.plan import (
    AFTER,
    BEFORE,
    OBSERVATION,
    OFF,
    ON,
    SWITCHED_ON,
    TRANSITIONAL,
    UNKNOWN,
    Given,
    JournalWriter,
    PlannedCommand,
    place,
    remedy,
)
from sdp_facade_lab.roles import RoleContext

ATTRIBUTES = ("obsState", "State", "longRunningCommandResult")
"""Of a subarray; SDP as a whole has no obsState."""
_ANSWERS = ("API_CommandFailed", "API_CommandNotAllowed")
"""Reasons of a device that answers: surely nothing was sent."""
_LATER = "was not sent: "
"""In the text of an answer that is another one soon: just started, or the lease of a killed server runs."""
_PAUSE = 0.25
"""Time until a call is repeated [s]."""
_LOOK = 0.5
"""Silence after which TM looks whether the device server is still there [s]."""
_RENEWED = 10
"""Looks in silence after which TM subscribes again, as an event may have been lost; it then gets the present values."""
LONGEST = 60.0
"""Longest wait for anything on a machine that is fast enough [s]; the facade itself gives up on a command before."""
_TRIES = 5
"""Of one step."""
_HELD_BACK = 300.0
"""Longest wait until a command that is held back may be given [s]: as long as a restart may take, and more."""
_ON_BUT = "ALARM"
"""State of SDP as a whole while it is on, and something has failed: much is killed in a demo."""


_subscribing = threading.Lock()
"""Tango makes its event consumer with the first subscription, without a lock: two at once would make two."""


class Commanded:
    """One subarray as TM commands it, or SDP as a whole.

    Parameters
    ----------
    longest
        Longest wait for anything [s].
    """

    def __init__(
        self,
        tango_host: str,
        device: str,
        journal: JournalWriter,
        clock: Clock,
        attributes: Sequence[str] = ATTRIBUTES,
        longest: float = LONGEST,
    ) -> None:
        self._name = f"tango://{tango_host}/{device}"
        self._device, self._number = device, int(device.rsplit("/", 1)[-1])
        self._journal, self._clock, self._attributes, self._longest = journal, clock, attributes, longest
        self._events: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._seen: dict[str, Any] = {}
        self._labels: list[str] = []
        """Of obsState."""
        self._given: dict[str, Given] = {}
        """By id."""
        self._path: list[str] = []
        """Of the command given last."""
        self._count = 0
        self._proxy: Any = None
        self._subscriptions: list[int] = []

    def go_through(self, steps: Sequence[PlannedCommand], seconds: float, held_back: Mapping[str, str]) -> None:
        """Go through all steps, and where one fails, back to where the subarray is then.

        Parameters
        ----------
        seconds
            How long a scan lasts [s].
        held_back
            Commands that are not given before a file exists, with its path.
        """
        self._connect()
        self._demand(lambda: self._shown == steps[0].begins, f"{steps[0].begins} before {steps[0].command}")
        at, tries = 0, 0
        while at < len(steps):
            if file := held_back.get(steps[at].command):
                self._follow(Path(file).exists, _HELD_BACK)
            if self._take(steps[at]):
                self._follow(lambda: False, seconds if steps[at].stays else 0.0)
                at, tries = at + 1, 0
                continue
            tries += 1
            if (way_out := remedy(self._shown, steps[at])) is not None:
                self._take(way_out)
            found = place(self._shown, steps, at)
            if found is None or tries == _TRIES:
                raise InfraError(f"{self._device}: {steps[at].command} failed {tries} times; obsState is {self._shown}")
            at = found

    def _take(self, step: PlannedCommand) -> bool:
        """Return a command and wait for its end; tell whether the subarray is where it leads to."""
        given = self._give(step)
        if given.id:
            self._demand(lambda: self._shown == step.ends or self._failed(given), f"the end of {step.command}")
        self._demand(lambda: self._shown not in TRANSITIONAL, "a state that lasts")
        if self._shown != step.ends:
            return False
        given.reached = self._clock.now()
        self._journal.note()
        return True

    def _give(self, step: PlannedCommand) -> Given:
        """Call until the facade has taken the command, or has refused it: then it has no id."""
        self._count += 1
        day = datetime.fromtimestamp(self._clock.now(), UTC).strftime("%Y%m%d")
        given = Given(device=self._device, name=step.command, called=self._clock.now(), path=[self._shown])
        argument = []
        if step.argument is not None:
            given.transaction_id = f"txn-demo-{day}-{self._number:02d}{self._count:04d}"
            document = step.argument(self._number, self._count, day)
            argument = [json.dumps({**document, "transaction_id": given.transaction_id})]
        self._path = given.path
        self._journal.note(given)
        while self._call(given, argument):
            self._clock.sleep(_PAUSE)
        if given.id:
            self._given[given.id] = given
        self._journal.note()
        return given

    def _call(self, given: Given, argument: Sequence[str]) -> bool:
        given.calls += 1
        begin = self._clock.monotonic()
        try:
            _, (given.id,) = self._proxy.command_inout(given.name, *argument)
        except tango.DevFailed as failed:
            error = failed.args[0]
            given.refusals.append(f"{error.reason}: {error.desc}")
            if error.reason in _ANSWERS:
                return _LATER in error.desc
            self._connect()
            if not argument:  # no transaction_id says that it is the same command: ask whether it was taken
                given.id = self._unheard_of(given.name)
            return not given.id
        given.took = self._clock.monotonic() - begin
        return False

    def _unheard_of(self, name: str) -> str:
        """Return the id of a command that was taken, and whose id was never heard."""
        newest = json.loads(self._proxy.GetCommandHistory(1))
        return next((one["id"] for one in newest if one["name"] == name and one["id"] not in self._given), "")

    # What events tell.

    @property
    def _shown(self) -> str:
        state = str(self._seen["State"])
        if "obsState" not in self._attributes:
            return ON if state == _ON_BUT else state
        return state if state in (OFF, UNKNOWN) else self._labels[self._seen["obsState"]]

    def _failed(self, given: Given) -> bool:
        return given.heard is not None and given.heard[0] != 0

    def _demand(self, condition: Callable[[], bool], what: str) -> None:
        if not self._follow(condition, self._longest):
            raise InfraError(f"{self._device}: expected {what} within {self._longest:g} s, got {self._shown}")

    def _follow(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Take events until a condition holds; False: it did not in time."""
        end, looks = self._clock.monotonic() + seconds, 0
        while not condition():
            left = end - self._clock.monotonic()
            if left <= 0:
                return False
            try:
                self._take_event(*self._events.get(timeout=min(left, _LOOK)))
                looks = 0
            except Empty:
                looks += 1
                self._look(renew=looks % _RENEWED == 0)
        return True

    def _take_event(self, attribute: str, value: Any) -> None:
        self._seen[attribute] = value
        if attribute == "longRunningCommandResult":
            if value and (given := self._given.get(value[0])) is not None:
                given.heard = json.loads(value[1])
        elif len(self._seen) == len(self._attributes) and self._path[-1:] != [self._shown]:
            self._path.append(self._shown)

    def _look(self, *, renew: bool) -> None:
        """Nothing has come for a while: that is well while the device is there, and for some seconds."""
        try:
            self._proxy.ping()
        except tango.DevFailed:
            renew = True
        if renew:
            self._connect()

    # The connection.

    def _connect(self) -> None:
        """Subscribe to a device server, as soon as there is one that knows the state."""
        end = self._clock.monotonic() + self._longest
        while not self._subscribe():
            if self._clock.monotonic() > end:
                raise InfraError(f"{self._device}: expected it to answer within {self._longest:g} s, got nothing")
            self._clock.sleep(_PAUSE)
        while len(self._seen) < len(self._attributes) or not self._events.empty():
            try:
                self._take_event(*self._events.get(timeout=self._longest))
            except Empty as error:
                expected = ", ".join(self._attributes)
                raise InfraError(f"{self._device}: expected first events of {expected}, got nothing") from error

    def _subscribe(self) -> bool:
        # Tango itself would find a new server only after up to ten seconds.
        while self._subscriptions:
            with suppress(tango.DevFailed):
                self._proxy.unsubscribe_event(self._subscriptions.pop())
        try:
            self._proxy = tango.DeviceProxy(self._name)
            if self._proxy.state() == tango.DevState.UNKNOWN:
                return False
            if "obsState" in self._attributes:
                self._labels = list(self._proxy.get_attribute_config("obsState").enum_labels)
            for attribute in self._attributes:
                on_event = partial(self._on_event, attribute)  # the event itself has the name in lower case
                with _subscribing:
                    number = self._proxy.subscribe_event(attribute, tango.EventType.CHANGE_EVENT, on_event)
                self._subscriptions.append(number)
        except tango.DevFailed:
            return False
        return True

    def _on_event(self, attribute: str, event: Any) -> None:
        """Take an event, on Tango's own thread, and the first value on ours."""
        if not event.err:
            value = event.attr_value
            self._events.put((attribute, tuple(value.value or ()) if value.dim_x > 1 else value.value))


_APART = 1.0
"""Time between the starts of two subarrays [s]."""


def observe(
    context: RoleContext,
    *,
    journal: str,
    seconds: float,
    devices: list[str],
    held_back: dict[str, str],
    sdp: str = "",
    longest: float = LONGEST,
) -> None:
    """Observe with all subarrays at the same time; commands are held back with the first one only.

    Parameters
    ----------
    sdp
        Device of SDP as a whole, which is switched on before and off after it; empty: each subarray is.
    longest
        Longest wait of TM for anything [s].
    """
    clock, written = context.clock, JournalWriter(Path(journal))

    def go_through(
        device: str, steps: Sequence[PlannedCommand], held_back: Mapping[str, str], attributes: Sequence[str]
    ) -> None:
        with tango.EnsureOmniThread():
            try:
                commanded = Commanded(context.tango_host, device, written, clock, attributes, longest)
                commanded.go_through(steps, seconds, held_back)
            except FacadeError as error:
                written.note(error=str(error))
            except tango.DevFailed as failed:
                written.note(error=f"{device}: {failed.args[0].reason}: {failed.args[0].desc}")

    def switch(steps: Sequence[PlannedCommand]) -> None:
        if sdp:
            go_through(sdp, steps, {}, ATTRIBUTES[1:])

    def observe_with(device: str) -> None:
        steps = SWITCHED_ON if sdp else OBSERVATION
        go_through(device, steps, held_back if device == devices[0] else {}, ATTRIBUTES)

    switch(BEFORE)
    threads = [threading.Thread(target=observe_with, args=(device,), name=device) for device in devices]
    for thread in threads:
        thread.start()
        clock.sleep(_APART)
    for thread in threads:
        thread.join()
    switch(AFTER)
    written.note(finished=True)

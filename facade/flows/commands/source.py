"""Publishes states of devices, for programs other than controllers."""

import re
from typing import Any

from facade.kernel.bus.kafka.opening import CONFIRMED_WITHIN, OwnBus
from facade.kernel.bus.port import Writer
from facade.kernel.clock import NEVER, Clock, SystemClock
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.instances import pattern_of
from facade.kernel.outcome import RecordRejected
from facade.sdp.device_state import DeviceStates, StateMessage, as_text, decode_state, state_record


class StateSource(OwnBus):
    """Publishes states, which Tango attributes show. Several threads may use it; it stores nothing.

    In the handler of a controller use `Call.report` instead.

    Parameters
    ----------
    origin
        Name of the program.
    writer
        Writes the records; by default the writer of an own bus, see `OwnBus`.
    clock
        Clock of the times of states; by default the system's.
    icd
        The interface; by default the shipped one.

    Examples
    --------
    >>> with StateSource("receive-0007") as states:
    ...     states.publish("mid-sdp/subarray/01", "errorMessages", ["receive/0007: disk full"])
    """

    def __init__(
        self, origin: str, writer: Writer | None = None, clock: Clock | None = None, *, icd: Icd | None = None
    ) -> None:
        self._writer = self._open(origin) if writer is None else writer
        self._origin, self._clock, self._icd = origin, clock or SystemClock(), icd or load()

    def publish(self, device: str, attribute: str, value: Any) -> None:
        """Publish the state of one attribute, and wait until all in-sync replicas have it.

        Parameters
        ----------
        device
            Name of the Tango device.
        attribute
            Name of a reported attribute of the ICD.
        value
            A text, a label, a number, None, a list or a dict.

        Raises
        ------
        ValueError
            The ICD has no such reported attribute, or does not allow the value. Nothing was sent.
        BusError
            The bus has not confirmed the state. Call again.
        """
        text = as_text(value)
        now_us = self._clock.now_us()
        message = StateMessage(device=device, attribute=attribute, value=text, time=now_us, origin=self._origin)
        record = state_record(message)
        shown = DeviceStates(self._icd, {device: self._class_of(device)})
        for read in (decode_state(record.value), shown.take(message, NEVER)):
            if isinstance(read, RecordRejected):
                raise ValueError(f"{device}/{attribute}: {read.path}: {read.detail}")
        self._writer.send_durably(record, CONFIRMED_WITHIN)

    def _class_of(self, device: str) -> str:
        for name, one in self._icd.commanded.items():
            if re.fullmatch(pattern_of(one.device), device):
                return name
        known = ", ".join(one.device for one in self._icd.commanded.values())
        raise ValueError(f"device: expected one of {known}, got {device!r:.110}")

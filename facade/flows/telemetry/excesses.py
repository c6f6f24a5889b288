"""Devices with windowed values beyond their alarm limits, which their device server reports to SdpMaster.

An excess lasts for some seconds, like the figures of nodes on SdpMaster (`nodeFigures`). So healthState has the reason
for each figure beyond its limit on the page. A shorter excess raises no alarm, because its condition has a
delay.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from facade.flows.telemetry.plan import RECENT
from facade.flows.telemetry.view import TelemetryColumn
from facade.kernel.clock import Clock, as_seconds
from facade.kernel.icd.topic_model import Limits
from facade.kernel.reading import QUALITIES, Quality
from facade.kernel.runtime.columns import Array
from facade.sdp.messages import DeviceComplaint

_ALARM = QUALITIES.index(Quality.ALARM)


@dataclass(frozen=True, slots=True)
class _Watched:
    column: TelemetryColumn
    what: str
    until: Array
    """Monotonic time up to which each device has an excess [s]."""


class Excesses:
    """The attributes of some columns that have been beyond an alarm limit within the last seconds."""

    def __init__(self, columns: Iterable[TelemetryColumn], clock: Clock) -> None:
        self._clock = clock
        self._watched = [
            _Watched(one, f"{one.attribute} ({limit})", np.zeros(len(one.devices)))
            for one in columns
            if one.limits is not None and (limit := _in_words(one.limits))
        ]

    def complaints(self) -> Iterator[DeviceComplaint]:
        """Return a complaint for each device with an excess."""
        now, found = self._clock.monotonic(), dict[str, list[str]]()
        for one in self._watched:
            one.until[one.column.arrays().qualities == _ALARM] = now + as_seconds(RECENT)
            for at in np.flatnonzero(one.until > now).tolist():
                found.setdefault(one.column.devices[at], []).append(one.what)
        for device, what in sorted(found.items()):
            text = f"alarm limits were reached within {as_seconds(RECENT):g} s: {', '.join(what)}"
            # SdpMaster has the same text where it knows the place of the device, with an alarm.
            yield DeviceComplaint(device, text, reasons=[f"{device}: {text}"])


def _in_words(limits: Limits) -> str:
    words = {"up to": limits.min_alarm, "from": limits.max_alarm}
    return " or ".join(f"{word} {limit:g}" for word, limit in words.items() if limit is not None)

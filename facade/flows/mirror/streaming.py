"""Mirrored values in the forms of ESS, beside JSON: flatbuffers f144 for a value and al00 for an alarm.

The library `ess-streaming-data-types` encodes them; programs of ESS and ISIS read them with the same library.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from facade.flows.mirror.messages import CONNECTED, TelescopeAttribute
from facade.kernel.bus.port import Record
from facade.kernel.config import Settings
from facade.kernel.errors import ConfigError

STREAMING = "telescope.streaming"
F144, AL00 = FORMS = ("f144", "al00")
"""Forms of a value, and of an alarm."""
_TYPES: Mapping[str, str] = {
    "DevDouble": "float64",
    "DevFloat": "float32",
    "DevLong64": "int64",
    "DevULong64": "uint64",
    "DevLong": "int32",
    "DevULong": "uint32",
    "DevShort": "int16",
    "DevUShort": "uint16",
    "DevUChar": "uint8",
    "DevEnum": "int16",
    "DevBoolean": "uint8",
}
"""NumPy types allowed in f144, by Tango's types."""
_SEVERITIES: Mapping[str, str] = {"VALID": "OK", "CHANGING": "OK", "WARNING": "MINOR", "ALARM": "MAJOR"}
"""Severities of al00, by Tango's qualities; others are INVALID."""

Forms = Callable[[TelescopeAttribute], Iterable[Record]]


def forms_of(settings: Settings) -> Forms:
    """Return the function that makes further records of an attribute, by the settings."""
    chosen = {name.strip() for name in settings.mirror_forms.split(",")} - {""}
    if odd := sorted(chosen - {*FORMS}):
        raise ConfigError(f"mirror_forms (SDP_MIRROR_FORMS): expected some of {', '.join(FORMS)}, got {odd[0]!r:.80}")
    return Streaming(chosen).records if chosen else lambda _: ()


class Streaming:
    """Makes records of the chosen forms."""

    def __init__(self, chosen: set[str]) -> None:
        try:
            from streaming_data_types import alarm_al00, logdata_f144
        except ImportError as error:
            what = "needs ess-streaming-data-types, which is missing: pip install 'sdp-tango-facade[streaming]'"
            raise ConfigError(f"mirror_forms (SDP_MIRROR_FORMS): {what}") from error
        self._chosen = chosen
        self._f144: Callable[..., bytes] = logdata_f144.serialise_f144
        self._al00: Callable[..., bytes] = alarm_al00.serialise_al00
        self._severity: Any = alarm_al00.Severity
        self._alarms: dict[str, tuple[str, str, int]] = {}
        """Severity, text and number of the newest alarm of each attribute."""

    def records(self, message: TelescopeAttribute) -> Iterator[Record]:
        """Return the value, if f144 allows it, and the alarm, if it has changed or nothing else has."""
        key, time = message.name.encode(), int(message.time) * 1000
        if F144 in self._chosen and (value := number_of(message)) is not None:
            yield Record(topic=STREAMING, key=key, value=self._f144(message.name, value, time))
        if AL00 in self._chosen:
            is_good = message.connection == CONNECTED
            severity = _SEVERITIES.get(message.quality, "INVALID") if is_good else "INVALID"
            text = message.error or (message.quality if is_good else message.connection)
            before = self._alarms.get(message.name)
            self._alarms[message.name] = severity, text, message.number
            if before is None or before[:2] != (severity, text) or before[2] == message.number:
                yield Record(
                    topic=STREAMING, key=key, value=self._al00(message.name, time, self._severity[severity], text)
                )


def number_of(message: TelescopeAttribute) -> Any:
    """Return a value for f144, a NumPy number or spectrum; None: it is a text, an image, or missing."""
    kind = _TYPES.get(message.type)
    if kind is None or message.value is None or message.connection != CONNECTED:
        return None
    # NumPy parses NaN and Infinity, too.
    found = np.asarray(message.value, dtype=float if kind.startswith("float") else None).astype(kind)
    return found if found.ndim <= 1 else None

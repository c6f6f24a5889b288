"""The base of views of the newest records of a topic that is read completely at the start."""

from abc import abstractmethod
from collections.abc import Iterator

from facade.kernel.clock import SECOND, Time
from facade.kernel.printable import printable
from facade.kernel.reading import Reading, Value, judge
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import DeviceView, Gate

_PERIOD = SECOND // 5
"""Time between two updates."""


class NewestView(DeviceView):
    """Shows connection, version, State and Status; subclasses add readings; see `facade.kernel.runtime.flow.View`.

    Parameters
    ----------
    topics
        Topics whose records from before the start must have been read.
    """

    what: str
    """Content of the topic, for Status."""

    def __init__(self, device: str, server: Server, *topics: str) -> None:
        super().__init__(device, Gate(_PERIOD))
        self._server, self._topics = server, topics
        self._health, self._class = server.bus.health, server.icd.classes[server.classes[device]]
        self._attributes = {one.name: one for one in self._class.attributes}

    def _readings(self, now: Time) -> Iterator[tuple[str, Reading]]:
        values: dict[str, Value] = {"connected": self._health.connected, "versionId": self._server.version}
        error = self._health.last_error or "none yet"
        if is_known := self._server.has_read(*self._topics):
            values |= self._look(now)
            state, lines = self._judge(now)
            lines = [f"The device is in {state} state.", *lines]
            if not self._health.connected:
                lines.append(f"No Kafka broker reachable; last error: {error}.")
        else:
            state, lines = "UNKNOWN", [f"The {self.what} were not read from the bus yet; last error: {error}."]
        values |= {"State": state, "Status": "\n".join(map(printable, lines))}
        yield from self._show(values, now, is_known=is_known)

    @abstractmethod
    def _look(self, now: Time) -> dict[str, Value]:
        """Update from the topic; return the changed values."""

    @abstractmethod
    def _judge(self, now: Time) -> tuple[str, list[str]]:
        """Return State, and further lines of Status."""

    def _show(self, values: dict[str, Value], now: Time, *, is_known: bool) -> Iterator[tuple[str, Reading]]:
        """Return the readings of all attributes, of the given values and of others."""
        for name, value in values.items():
            attribute = self._attributes.get(name)
            if attribute is not None and attribute.length and isinstance(value, tuple):
                value = value[: attribute.length]
            limits = attribute.limits if attribute is not None else None
            yield name, self._changes.reading(name, value, now, judge(value, limits))

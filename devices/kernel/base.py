"""The base of all device classes: attributes from the ICD, read from memory and pushed by the event loop."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import tango
from tango.server import Device, DeviceMeta

from devices.kernel.mapping import TangoReading, is_plain, tango_attribute, tango_lines, to_tango, unknown
from facade.kernel.clock import Clock, SystemClock
from facade.kernel.errors import IcdError
from facade.kernel.icd.model import Attribute, DeviceClass, Icd
from facade.kernel.icd.topic_model import Limits
from facade.kernel.reading import Quality, Reading
from facade.kernel.runtime.columns import Cell, ReadingColumn
from facade.kernel.runtime.composition import Server

_log = logging.getLogger(__name__)

ADDED_LATER = "was added to the Tango database after the server process began; end the process and start it to serve it"
"""Text about a device that came with RestartServer."""
_RESTART = 10.0
"""Longest time that Tango takes to restore the subscriptions once it has made the last device of a restart [s]; it
forgets subscriptions of clients that have been silent for ten minutes."""


class _Left(NamedTuple):
    """State that a deleted device leaves to its successor."""

    level: int
    """Level of Tango's logger of the device."""
    followed: tuple[str, ...]
    """Attributes with subscriptions; Tango restores these for the successor at the end of a restart."""


class FacadeDevice(Device):
    """A device that shows the readings of the event loop; reads never wait for the bus."""

    icd: ClassVar[Icd]
    entries: ClassVar[dict[str, Attribute]]
    clock: ClassVar[Clock] = SystemClock()
    present: ClassVar[dict[str, "FacadeDevice"]] = {}
    """All devices of this server that Tango has not deleted, by name in lower case; `at_hand` guards it."""
    changes: ClassVar[int] = 0
    """Number of changes of `present`."""
    begun_at: ClassVar[float] = 0.0
    """When the newest device began: one of many, in a restart of the server [monotonic s]."""
    at_hand: ClassVar[threading.Condition] = threading.Condition()
    pushing: ClassVar["FacadeDevice | None"] = None
    """The device whose event is being sent: Tango may delete it only afterwards."""
    left: ClassVar[dict[str, "_Left"]] = {}
    """State left by each deleted device to its successor, by name."""
    service: ClassVar[Server | None] = None
    """None until the server is up."""
    begin_anew: ClassVar[Callable[[str, Callable[[], bool]], Mapping[str, Reading | Cell]] | None] = None
    """Returns the readings of a device, and sends all as events once the given function allows it."""
    before_end: ClassVar[Callable[[], None] | None] = None
    """Called when the server is asked to end, before Tango deletes its devices."""

    @classmethod
    def tango_commands(cls, entry: DeviceClass) -> dict[str, Any]:
        """Make the Tango commands of a device class of the ICD, by name.

        Raises
        ------
        IcdError
            The class supports no commands, but the ICD has some for it.
        """
        if entry.commands or entry.queries:
            raise IcdError(f"{entry.name}.toml: commands: expected none, as {cls.__name__} in devices/ takes none")
        return {}

    def init_device(self) -> None:
        """Prepare for pushing; an Init keeps all values."""
        super().init_device()
        if not hasattr(self, "_shown"):
            now = self.clock.now_us()
            self._shown: dict[str, TangoReading | Reading | Cell] = {
                name: unknown(entry, now) for name, entry in self.entries.items()
            }
            """Readings for clients; plain numbers get Tango's form at their first read, and those of columns are made
            then."""
            self._began = now
            self._attributes: dict[str, tango.Attribute] = {}
            self._made: dict[str, tuple[Reading, TangoReading]] = {}
            """The last shown or pushed reading, and its form in Tango."""
            self.set_state(tango.DevState.UNKNOWN)
            self.set_status("No data from the bus yet.")
            self._alarmed: dict[str, object] = dict.fromkeys(self.entries, Quality.INVALID) | {"State": "UNKNOWN"}
            """Quality of each attribute, and the State, at their last alarm events, or as they were read before."""
            self._pushed: set[str] = set()
            """Attributes with events."""
            self._ready = 0
            """Number of data-ready events."""
        for name, entry in self.entries.items():
            if not entry.is_pushed:
                self.set_data_ready_event(name, True)
        for name in (*(name for name, entry in self.entries.items() if entry.is_pushed), "State", "Status"):
            # Pushed by code and already sampled: Tango must not filter a second time.
            self.set_change_event(name, True, False)
            self.set_archive_event(name, True, False)
            if name != "Status":
                self.set_alarm_event(name, True, False)
        self._begin(self.get_name().lower())

    def _begin(self, name: str) -> None:
        """Show the readings of the former device of this name: Tango makes another object of it in a restart."""
        if (left := self.left.pop(name, None)) is not None:
            self.get_logger().set_level(left.level)  # otherwise it is silent
        followed = () if left is None else left.followed

        def may_tell() -> bool:
            with self.at_hand:
                is_over = self.clock.monotonic() > FacadeDevice.begun_at + _RESTART
                if is_over or self.present.get(name) is not self:
                    return True
                return all(map(self._is_followed, followed))

        with self.at_hand:
            self.present[name], FacadeDevice.begun_at = self, self.clock.monotonic()
            FacadeDevice.changes += 1
            if self.service is None or FacadeDevice.begin_anew is None:
                return
            if name in self.service.classes:
                for attribute, reading in FacadeDevice.begin_anew(name, may_tell).items():
                    self.show(attribute, reading)
                return
        _log.critical("device=%s %s", name, ADDED_LATER)
        self.set_state(tango.DevState.FAULT)
        self.set_status(f"This device {ADDED_LATER}.")

    def delete_device(self) -> None:
        """Unregister the device. Tango also calls this on Init, followed by `init_device`."""
        name = self.get_name().lower()
        # Init holds the device monitor, for which a push under way may wait.
        with tango.AutoTangoAllowThreads(self), self.at_hand:
            self.at_hand.wait_for(lambda: FacadeDevice.pushing is not self)
            if self.present.get(name) is self:
                del self.present[name]
                FacadeDevice.changes += 1
                followed = filter(self._is_followed, (*self.entries, "State", "Status"))
                self.left[name] = _Left(self.get_logger().get_level(), tuple(followed))
        super().delete_device()

    def signal_handler(self, signo: int) -> None:
        """Handle a signal that ends the server."""
        if FacadeDevice.before_end is not None:
            FacadeDevice.before_end()

    def dev_state(self) -> tango.DevState:
        """Return the state set by the event loop, without a check of any attribute."""
        return self.get_state()

    def dev_status(self) -> str:
        """Return the status set by the event loop."""
        return str(self.get_status())

    def show(self, name: str, reading: Reading | Cell) -> bool:
        """Make a reading the one that clients read; return whether any client has a subscription to the attribute.

        A client subscribes first and reads then: it reads this value, or gets it as an event.
        """
        if isinstance(reading, Cell):
            self._shown[name] = reading
            return self._is_followed(name)
        if name == "State":
            self.set_state(getattr(tango.DevState, str(reading.value)))
        elif name == "Status":
            self.set_status(tango_lines(str(reading.value)))
        else:
            self._shown[name] = reading if is_plain(self.entries[name]) else self._in_tango(name, reading)
        if self._is_followed(name):
            return True
        self._alarmed[name] = _alarm(name, reading)
        return False

    def push(self, name: str, reading: Reading) -> None:
        """Push change and archive events; for an image, push a data-ready event instead.

        An alarm event follows if the quality or the State has changed. A push of an attribute without a subscription
        since the start of the server does nothing: Tango would make its events only to drop them. A later subscriber
        gets the shown value, which is never older.
        """
        if name in self.entries and not self.entries[name].is_pushed:
            self._ready += 1
            self.push_data_ready_event(name, self._ready)
            return
        alarm = _alarm(name, reading)
        news = name != "Status" and self._alarmed[name] != alarm
        if self._is_followed(name):
            # Tango takes the value of these two from the device itself.
            event = () if name in ("State", "Status") else self._in_tango(name, reading)
            self.push_change_event(name, *event)
            self.push_archive_event(name, *event)
            if news:
                self.push_alarm_event(name, *event)
        self._pushed.add(name)
        if news:
            self._alarmed[name] = alarm

    def _is_followed(self, name: str) -> bool:
        """Return whether any client has subscribed to an attribute since the start of the device."""
        if name in self.entries and not self.entries[name].is_pushed:
            return True  # an image has data-ready events, whose subscribers Tango does not report
        return bool(self.attribute(name).use_zmq_event())

    def attribute(self, name: str) -> tango.Attribute:
        """Return Tango's own object of an attribute, which lives as long as the device."""
        found = self._attributes.get(name)
        if found is None:
            found = self._attributes[name] = self.get_device_attr().get_attr_by_name(name)
        return found

    def _in_tango(self, name: str, reading: Reading) -> TangoReading:
        """Return a reading in Tango's form, made once for reads and events."""
        made = self._made.get(name)
        if made is None or made[0] is not reading:
            made = self._made[name] = (reading, to_tango(self.icd, self.entries[name], reading))
        return made[1]

    def withdraw(self, name: str) -> None:
        """Show an attribute as unknown, as its value cannot be shown."""
        if name in self.entries:
            self._shown[name] = unknown(self.entries[name], self.clock.now_us())

    def read_shown(self, name: str) -> TangoReading:
        """Return the reading of an attribute."""
        shown = self._shown[name]
        if isinstance(shown, Cell):
            reading = shown.reading()
            if reading is None:
                return unknown(self.entries[name], self._began)
            if name not in self._pushed:  # what a new subscriber knows
                self._alarmed[name] = reading.quality
            return self._in_tango(name, reading)
        return self._in_tango(name, shown) if isinstance(shown, Reading) else shown


def set_limits(device: str, attribute: Attribute) -> Limits | None:
    """Return the limits of an attribute as they are set in Tango, from the ICD or by an operator."""
    with FacadeDevice.at_hand:
        present = FacadeDevice.present.get(device.lower())
        if present is None:
            return attribute.limits
        found = present.get_device_attr().get_attr_by_name(attribute.name).get_properties()
    numbers = {name: _number(getattr(found, name)) for name in Limits.__struct_fields__}
    return Limits(**numbers)


def _number(text: object) -> float | None:
    """Return a limit; None: "Not specified"."""
    try:
        return float(str(text))
    except ValueError:
        return None


class TangoSink:
    """Passes readings to the devices of this server; see `facade.kernel.runtime.publisher.EventSink`."""

    def __init__(self) -> None:
        self._follows: dict[ReadingColumn, tuple[int, list[Callable[[], bool]]]] = {}
        """Functions that return whether the attribute of each device is followed, and `FacadeDevice.changes` then."""

    def show_column(self, column: ReadingColumn) -> list[bool]:
        """Let clients read a column; return for each device whether any client has a subscription to the attribute.

        This is asked for each attribute of each device and window, so it is one call into Tango without any look-up.
        """
        with FacadeDevice.at_hand:  # no device is deleted meanwhile
            changes, found = self._follows.get(column, (-1, []))
            if changes != FacadeDevice.changes:
                found = [self._follow(Cell(column, at), device) for at, device in enumerate(column.devices)]
                self._follows[column] = FacadeDevice.changes, found
            return [is_followed() for is_followed in found]

    @staticmethod
    def _follow(cell: Cell, device: str) -> Callable[[], bool]:
        present = FacadeDevice.present.get(device.lower())
        if present is None:
            return bool
        present.show(cell.column.attribute, cell)
        follows: Callable[[], bool] = present.attribute(cell.column.attribute).use_zmq_event
        return follows

    def show(self, device: str, attribute: str, reading: Reading) -> bool:
        """Make a reading the one that clients read; return whether any client has a subscription to the attribute."""
        with FacadeDevice.at_hand:
            present = FacadeDevice.present.get(device.lower())
            return present is not None and present.show(attribute, reading)

    def push(self, device: str, attribute: str, reading: Reading) -> bool:
        """Push change and archive events; return False if Tango refused."""
        with FacadeDevice.at_hand:
            # The lock is released before Tango is called: the call may wait for a device monitor that a Tango thread
            # holds.
            present = FacadeDevice.pushing = FacadeDevice.present.get(device.lower())
        if present is None:
            return True  # there is no subscriber; a new one gets all values
        try:
            return self._push(present, device, attribute, reading)
        finally:
            with FacadeDevice.at_hand:
                FacadeDevice.pushing = None
                FacadeDevice.at_hand.notify_all()

    def _push(self, present: FacadeDevice, device: str, attribute: str, reading: Reading) -> bool:
        try:
            present.push(attribute, reading)
        except tango.DevFailed as failed:
            # Caused by a call that holds the device monitor for seconds, for example.
            _log.warning("event not sent device=%s attribute=%s: %s", device, attribute, failed.args[0].desc)
            return False
        except Exception:  # any error of PyTango about it
            # A value that Tango cannot represent must not hold up other attributes.
            _log.exception("event cannot be sent device=%s attribute=%s reading=%s", device, attribute, reading)
            present.withdraw(attribute)
        return True


def _alarm(name: str, reading: Reading) -> object:
    """Return the value whose change leads to an alarm event: the quality, or the State."""
    return reading.value if name == "State" else reading.quality


def device_class(icd: Icd, name: str, base: type[FacadeDevice]) -> type[FacadeDevice]:
    """Make the Tango class of a device class of the ICD; `base` has its handlers.

    Raises
    ------
    IcdError
        A handler has no entry in the ICD, or an entry that needs one has none.
    """
    entry = icd.classes.get(name)
    if entry is None:
        raise IcdError(f"device class {name} is not in the ICD; expected schemas/icd/{name}.toml")
    _check_handlers(entry, base)
    namespace: dict[str, Any] = {
        "__doc__": entry.description,
        "icd": icd,
        "entries": {attribute.name: attribute for attribute in entry.attributes},
    }
    for attribute in entry.attributes:
        namespace[attribute.name] = tango_attribute(icd, attribute)
        namespace[f"read_{attribute.name}"] = _reader(attribute.name)
    namespace |= base.tango_commands(entry)
    made: type[FacadeDevice] = DeviceMeta(entry.name, (base,), namespace)
    return made


def _check_handlers(entry: DeviceClass, base: type[FacadeDevice]) -> None:
    wanted = {f"write_{attribute.name}" for attribute in entry.attributes if attribute.access == "READ_WRITE"}
    wanted |= {f"query_{query.name}" for query in entry.queries}
    own = (one for one in base.__mro__ if issubclass(one, FacadeDevice))
    found = {name for one in own for name in vars(one) if name.startswith(("write_", "query_"))}
    if wanted != found:
        missing, extra = sorted(wanted - found), sorted(found - wanted)
        raise IcdError(f"{entry.name}.toml: handlers in devices/: missing {missing}, without an entry {extra}")


def _reader(name: str) -> Callable[[FacadeDevice], TangoReading]:
    def read(self: FacadeDevice) -> TangoReading:
        return self.read_shown(name)

    read.__name__ = f"read_{name}"
    return read

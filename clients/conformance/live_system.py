"""The running system as the kit sees it: answers of the Tango database, of devices and of brokers, asked once each."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import tango
from msgspec.structs import replace

from clients.conformance.checks import CheckOptions, Mismatch
from clients.conformance.events import AttributeTrace, observe
from clients.events import open_database
from facade.bus.dead_letters import TOPIC as DEAD_LETTERS
from facade.bus.dead_letters import original
from facade.bus.kafka.admin import FoundTopic, inspect_topics, newest_records
from facade.bus.kafka.connection import Connection
from facade.bus.port import Record
from facade.clock import Clock, wait_until
from facade.config import Settings
from facade.errors import ConfigError, InfraError
from facade.icd.model import DeviceClass, Icd, instance_role
from facade.instances import number_of

CLOCKS: Final = 1.0
"""Allowed difference of two clocks: here, at the device, at the source of the data [s]."""
_SAMPLE, _HISTORY = 20, 2000
"""Newest records per partition: those that are checked, and those among which the kit looks for its own."""
_SET_ASIDE_WITHIN = 5.0
"""Longest wait for the dead letter of an invalid record [s]."""


class LiveSystem:
    """Asks the system, and remembers the answers that cannot change during a run.

    Raises
    ------
    InfraError
        The Tango database does not answer.
    """

    def __init__(self, icd: Icd, options: CheckOptions, settings: Settings, clock: Clock) -> None:
        self.absent = [name for name, one in icd.classes.items() if instance_role(one.instance) in settings.left_out]
        """Device classes that the deployment does not run (setting `without`)."""
        classes = {name: one for name, one in icd.classes.items() if name not in self.absent}
        self.icd, self.options, self.clock = replace(icd, classes=classes), options, clock
        self.connection = Connection(settings, clock=clock)
        self._answers: dict[tuple[str, str], Any] = {}
        self._failed: dict[str, tango.DevFailed] = {}
        try:
            self.database = open_database(options.tango_host)
            self.devices: Mapping[str, list[str]] = {
                name: in_order(self.database.get_device_name("*", name), options) for name in classes
            }
        except tango.DevFailed as failed:
            what = f"the Tango database at {options.tango_host!r} does not answer: {failed.args[0].desc}"
            raise InfraError(what) from failed

    def _once(self, device: str, question: str, ask: Callable[[], Any]) -> Any:
        if (device, question) not in self._answers:
            self._answers[device, question] = ask()
        return self._answers[device, question]

    def proxy(self, device: str) -> Any:
        """Return a proxy of a device."""
        return self._once(device, "", lambda: tango.DeviceProxy(f"tango://{self.options.tango_host}/{device}"))

    def is_silent(self, device: str) -> bool:
        """Return whether a device gives no answer, not even its State."""

        def ask() -> bool:
            try:
                self.proxy(device).state()
            except tango.DevFailed:
                return True
            return False

        return bool(self._once(device, "silent", ask))

    def _list(self, device: str, question: str, ask: Callable[[Any], Any]) -> Any:
        """Ask a device for a list; after one failure it is not asked again, as thousands of checks would wait."""
        if device in self._failed:
            raise self._failed[device]
        try:
            return self._once(device, question, lambda: ask(self.proxy(device)))
        except tango.DevFailed as failed:
            self._failed[device] = failed
            raise

    def configs(self, device: str) -> dict[str, Any]:
        """Return Tango's configuration of each attribute of a device."""
        found: dict[str, Any] = self._list(
            device, "configs", lambda proxy: {one.name: one for one in proxy.attribute_list_query_ex()}
        )
        return found

    def config(self, device: str, attribute: str) -> Any:
        """Return Tango's configuration of an attribute; a missing one is a mismatch."""
        return _found(self.configs(device), "an attribute", attribute)

    def commands(self, device: str) -> dict[str, Any]:
        """Return Tango's description of each command of a device."""
        found: dict[str, Any] = self._list(
            device, "commands", lambda proxy: {one.cmd_name: one for one in proxy.command_list_query()}
        )
        return found

    def command(self, device: str, name: str) -> Any:
        """Return Tango's description of a command; a missing one is a mismatch."""
        return _found(self.commands(device), "a command", name)

    def polled(self, device: str) -> set[str]:
        """Return the attributes that Tango polls, in lower case."""
        found = "\n".join(self._list(device, "polled", lambda proxy: proxy.polling_status()))
        return {name.lower() for name in re.findall(r"Polled attribute name = (\S+)", found)}

    def examined(self, device_class: DeviceClass) -> list[str]:
        """Return the devices of a class that are compared entry by entry."""
        found = self.devices[device_class.name]
        return found if self.options.thorough else found[:1]

    @cached_property
    def traces(self) -> Mapping[tuple[str, str], AttributeTrace]:
        """Return the reads and events of all examined attributes in one window of time, by device and attribute."""
        wanted = {}
        for device_class in self.icd.classes.values():
            for device in self.examined(device_class):
                known: Collection[str] = ()
                with suppress(tango.DevFailed):  # the checks of the device say so
                    known = self.configs(device)
                wanted[device] = [entry for entry in device_class.attributes if entry.name in known]
        return observe(self.proxy, wanted, self.options.window, self.clock)

    @cached_property
    def topics(self) -> Mapping[str, FoundTopic]:
        """Return the topics of the ICD that the brokers have."""
        return inspect_topics(self.connection, self.icd.topics)

    @property
    def commanded_class(self) -> DeviceClass:
        """Return the class of the device that is commanded.

        Raises
        ------
        ConfigError
            No class that takes commands has such a device.
        """
        device = self.options.subarray
        commanded = [one for one in self.icd.classes.values() if one.commands and one.family == "subarray"]
        for one in commanded:
            if number_of(one, device) is not None:
                return one
        known = [name for one in commanded for name in self.devices[one.name]]
        raise ConfigError(f"--subarray: expected one of {', '.join(known) or 'none in the database'}, got {device}")

    def messages(self, topic: str) -> list[tuple[Record, dict[str, Any]]]:
        """Return the newest records of a topic that are JSON objects, each with its content."""
        found = []
        for record in newest_records(self.connection, topic, _HISTORY):
            with suppress(ValueError):
                message = read_json(record.value or b"")
                if isinstance(message, dict):
                    found.append((record, message))
        return found

    def dead_letters(self, topic: str, offsets: Collection[tuple[int, int]]) -> frozenset[tuple[int, int]]:
        """Return those of some records (partition and offset) that have a dead letter, now or within some seconds."""
        found: set[tuple[int, int]] = set()

        def all_there() -> bool:
            for letter in newest_records(self.connection, DEAD_LETTERS, _HISTORY) if offsets else ():
                with suppress(ValueError):  # a malformed dead letter
                    about = original(letter)
                    found.update([(about.partition, about.offset)] if about.topic == topic else [])
            return found.issuperset(offsets)

        wait_until(self.clock, all_there, _SET_ASIDE_WITHIN, 0.2)
        return frozenset(found.intersection(offsets))

    def sample(self, topic: str) -> list[Record]:
        """Return the newest records of a topic, for its checks."""
        return list(self._once(topic, "sample", lambda: newest_records(self.connection, topic, _SAMPLE)))


def _found(known: Mapping[str, Any], what: str, name: str) -> Any:
    if name not in known:
        raise Mismatch(f"{what} {name}", "none of this name")
    return known[name]


def read_json(text: bytes | str) -> Any:
    """Read JSON of unknown origin; ValueError, too, if it is nested too deep to be read."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def in_order(devices: Iterable[str], options: CheckOptions) -> list[str]:
    """Sort device names, the commanded one first: the first of a family is compared closely."""
    names = sorted(device.lower() for device in devices)
    return sorted(names, key=lambda name: not (options.active and name == options.subarray))

"""The system under test as the kit knows it: what the Tango database names, and what brokers answer."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

import tango
from msgspec.structs import replace

from clients.conformance.observation import Observation, observe
from clients.conformance.options import SAMPLE, Options
from clients.conformance.verdicts import Mismatch
from clients.events import open_database
from facade.bus.dead_letters import TOPIC as DEAD_LETTERS
from facade.bus.dead_letters import original
from facade.bus.kafka.admin import FoundTopic, inspect_topics, newest_records
from facade.bus.kafka.connection import Connection
from facade.bus.port import Record
from facade.clock import Clock, wait_until
from facade.config import Settings
from facade.errors import ConfigError, InfraError
from facade.icd.check_roles import instance_role
from facade.icd.model import Attribute, DeviceClass, Icd
from facade.instances import number_of

_HISTORY = 2000
"""Newest records per partition in which those of the kit's own commands are looked for."""
_SET_ASIDE_WITHIN = 5.0
"""A record that cannot be used has its dead letter after so long [s]."""
_POLLED = re.compile(r"Polled attribute name = (\S+)")

Place = tuple[int, int]
"""Partition and offset."""


class System:
    """Asks the system, and remembers what cannot change meanwhile.

    Raises
    ------
    InfraError
        The Tango database does not answer.
    """

    def __init__(self, icd: Icd, options: Options, settings: Settings, clock: Clock) -> None:
        self.absent = [name for name, one in icd.classes.items() if instance_role(one.instance) in settings.left_out]
        """Device classes that the deployment does not run, as its setting `without` says."""
        classes = {name: one for name, one in icd.classes.items() if name not in self.absent}
        self.icd, self.options, self.clock = replace(icd, classes=classes), options, clock
        self.connection = Connection(settings, clock=clock)
        self._proxies: dict[str, Any] = {}
        self._configs: dict[str, dict[str, Any]] = {}
        self._commands: dict[str, dict[str, Any]] = {}
        self._polled: dict[str, frozenset[str]] = {}
        self._silent: dict[str, tango.DevFailed] = {}
        self._answering: dict[str, bool] = {}
        self._samples: dict[str, list[Record]] = {}
        try:
            self.database = open_database(options.tango_host)
            self.devices: Mapping[str, list[str]] = {
                name: in_order(self.database.get_device_name("*", name), options) for name in classes
            }
        except tango.DevFailed as failed:
            what = f"the Tango database at {options.tango_host!r} does not answer: {failed.args[0].desc}"
            raise InfraError(what) from failed

    def require(self) -> None:
        """Demand that there is a system to look at.

        Raises
        ------
        BusError
            The brokers do not answer.
        """
        _ = self.topics

    def proxy(self, device: str) -> Any:
        """Return a proxy of a device."""
        if device not in self._proxies:
            self._proxies[device] = tango.DeviceProxy(f"tango://{self.options.tango_host}/{device}")
        return self._proxies[device]

    def _ask(self, device: str, question: Callable[[Any], Any]) -> Any:
        """Ask a device; one that has failed once is not asked again, so that thousands of checks need not wait."""
        if device in self._silent:
            raise self._silent[device]
        try:
            return question(self.proxy(device))
        except tango.DevFailed as failed:
            self._silent[device] = failed
            raise

    def is_silent(self, device: str) -> bool:
        """Return whether a device does not answer even when it is asked for its State, which is done once."""
        if device not in self._answering:
            try:
                self.proxy(device).state()
                self._answering[device] = True
            except tango.DevFailed:
                self._answering[device] = False
        return not self._answering[device]

    def configs(self, device: str) -> dict[str, Any]:
        """Return the configuration of all attributes of a device, by name."""
        if device not in self._configs:
            found = self._ask(device, lambda proxy: proxy.attribute_list_query_ex())
            self._configs[device] = {config.name: config for config in found}
        return self._configs[device]

    def config(self, device: str, attribute: str) -> Any:
        """Return the configuration of an attribute; one that is missing is a mismatch."""
        found = self.configs(device).get(attribute)
        if found is None:
            raise Mismatch(f"an attribute {attribute}", "none of this name")
        return found

    def commands(self, device: str) -> dict[str, Any]:
        """Return what Tango says of all commands of a device, by name."""
        if device not in self._commands:
            self._commands[device] = {
                one.cmd_name: one for one in self._ask(device, lambda proxy: proxy.command_list_query())
            }
        return self._commands[device]

    def command(self, device: str, name: str) -> Any:
        """Return what Tango says of a command; one that is missing is a mismatch."""
        found = self.commands(device).get(name)
        if found is None:
            raise Mismatch(f"a command {name}", "none of this name")
        return found

    def polled(self, device: str) -> frozenset[str]:
        """Return the attributes that Tango polls, in lower case."""
        if device not in self._polled:
            found = _POLLED.findall("\n".join(self._ask(device, lambda proxy: proxy.polling_status())))
            self._polled[device] = frozenset(name.lower() for name in found)
        return self._polled[device]

    def examined(self, device_class: DeviceClass) -> list[str]:
        """Return the devices of a class of which everything is checked."""
        found = self.devices[device_class.name]
        return found if self.options.thorough else found[:1]

    @cached_property
    def observation(self) -> Observation:
        """Return what came of all examined attributes in one window."""
        wanted: dict[str, list[Attribute]] = {}
        for device_class in self.icd.classes.values():
            for device in self.examined(device_class):
                wanted[device] = [
                    entry for entry in device_class.attributes if entry.name in self._known_attributes(device)
                ]
        return observe(self.proxy, wanted, self.options.window, self.clock)

    def _known_attributes(self, device: str) -> frozenset[str]:
        try:
            return frozenset(self.configs(device))
        except tango.DevFailed:  # the checks of the device say so
            return frozenset()

    @cached_property
    def topics(self) -> Mapping[str, FoundTopic]:
        """Return the topics of the ICD that are there."""
        return inspect_topics(self.connection, self.icd.topics)

    @property
    def walked_class(self) -> DeviceClass:
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
        """Return the newest records of a topic with what they say, those that are no JSON object left out."""
        found = []
        for record in newest_records(self.connection, topic, _HISTORY):
            with suppress(ValueError):
                message = read_json(record.value or b"")
                if isinstance(message, dict):
                    found.append((record, message))
        return found

    def set_aside(self, topic: str, places: Collection[Place]) -> frozenset[Place]:
        """Return those of some places of a topic of which there are dead letters, or will be within some seconds."""
        found: set[Place] = set()

        def all_there() -> bool:
            for letter in newest_records(self.connection, DEAD_LETTERS, _HISTORY) if places else ():
                with suppress(ValueError):  # of a letter that is none
                    about = original(letter)
                    found.update([(about.partition, about.offset)] if about.topic == topic else [])
            return found.issuperset(places)

        wait_until(self.clock, all_there, _SET_ASIDE_WITHIN, 0.2)
        return frozenset(found.intersection(places))

    def sample(self, topic: str) -> list[Record]:
        """Return the newest records of a topic."""
        if topic not in self._samples:
            self._samples[topic] = newest_records(self.connection, topic, SAMPLE)
        return self._samples[topic]


def read_json(text: bytes | str) -> Any:
    """Read what somebody has written.

    Raises
    ------
    ValueError
        It is no JSON, or nested too deep to be read.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def in_order(devices: Iterable[str], options: Options) -> list[str]:
    """Return device names in their order, but the one that is commanded first, as the first is looked at closely."""
    names = sorted(device.lower() for device in devices)
    return sorted(names, key=lambda name: not (options.active and name == options.subarray))

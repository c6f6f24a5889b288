"""Checks of commands and queries: names, states, effects and times."""

import re
from collections.abc import Iterator, Sequence

from facade.icd.checks import Checks, Mistakes, commands, entries
from facade.icd.finding import IcdFinding
from facade.icd.model import Attribute, CommandDefinition, DeviceClass, Executor, Icd, Query

TANGO_STATES = (
    "ON",
    "OFF",
    "CLOSE",
    "OPEN",
    "INSERT",
    "EXTRACT",
    "MOVING",
    "STANDBY",
    "FAULT",
    "INIT",
    "RUNNING",
    "ALARM",
    "DISABLE",
    "UNKNOWN",
)
"""Values of Tango's State."""

MOST_ENCODED = 100_000_000
"""Bytes that a call may give: Tango carries 256 MB in one message, and the server keeps a copy for each caller."""

_CAMEL_CASE = re.compile(r"[A-Z][A-Za-z0-9]*")
_TANGOS_OWN = frozenset({"state", "status", "init"})
_OBS_STATE, _COMMANDED = "obsState", "commandedObsState"
_TIMES = ("start_within", "deadline", "ceiling")
_TOPICS = {"commands": "command", "command-acks": "command-ack", "heartbeats": "heartbeat"}
"""What the command path needs: topic and message."""

of_entry, of_command, of_query, of_any_command = (
    Checks(entries("commands", "queries")),
    Checks(entries("commands")),
    Checks(entries("queries")),
    Checks(commands),
)
"""The last ones also hold for commands of executors; the others are about devices."""


@of_entry.rule
def command_names_are_camel_case(icd: Icd, owner: DeviceClass, entry: CommandDefinition | Query) -> Mistakes:
    """Require SKA's form of command names."""
    if not _CAMEL_CASE.fullmatch(entry.name):
        yield "name", f"expected UpperCamelCase, got {entry.name!r}"


def command_names_are_free(icd: Icd) -> Iterator[IcdFinding]:
    """Require names that nothing else has: no other command or query, no attribute, not Tango itself."""
    for owner in icd.classes.values():
        taken = dict.fromkeys(_TANGOS_OWN, "Tango")
        taken.update((attribute.name.casefold(), "an attribute") for attribute in owner.attributes)
        named: tuple[CommandDefinition | Query, ...] = (*owner.commands, *owner.queries)
        for entry in named:
            by = taken.setdefault(entry.name.casefold(), "")
            if by:
                kind = "commands" if isinstance(entry, CommandDefinition) else "queries"
                what = f"expected a name of its own, got {entry.name!r}, which {by} has"
                yield IcdFinding(f"{owner.name}.toml", f"{kind}[{entry.name}].name", what)
            taken[entry.name.casefold()] = by or "another command"


@of_entry.rule
def command_texts_are_complete(icd: Icd, owner: DeviceClass, entry: CommandDefinition | Query) -> Mistakes:
    """Require descriptions that end with a full stop, of results too; of an argument if there is one."""
    for key, text in _texts(entry):
        if not text.strip().endswith("."):
            yield key, f"expected text that ends with a full stop, got {text!r}"


@of_query.rule
def queries_describe_arguments(icd: Icd, owner: DeviceClass, query: Query) -> Mistakes:
    """Refuse the description of an argument that is not there."""
    if query.argument == "DevVoid" and query.argument_description:
        yield "argument_description", f"expected none without an argument, got {query.argument_description!r}"


@of_query.rule
def encoded_results_are_bounded(icd: Icd, owner: DeviceClass, query: Query) -> Mistakes:
    """Require a bound of results that are bytes, and none of other results."""
    if query.result == "DevEncoded" and not 1 <= query.max_bytes <= MOST_ENCODED:
        yield "max_bytes", f"expected 1 to {MOST_ENCODED}, got {query.max_bytes}"
    elif query.result != "DevEncoded" and query.max_bytes:
        yield "max_bytes", f"expected none, because the result is {query.result}, got {query.max_bytes}"


@of_any_command.rule
def command_arguments_exist(icd: Icd, owner: DeviceClass | Executor, command: CommandDefinition) -> Mistakes:
    """Require a family of schemas for an argument."""
    if command.argument is not None and command.argument not in icd.arguments:
        yield "argument", f"expected one of {sorted(icd.arguments)}, got {command.argument!r}"


@of_command.rule
def command_states_exist(icd: Icd, owner: DeviceClass, command: CommandDefinition) -> Mistakes:
    """Require Tango's states, at least one, each once; and obsStates where the class has that attribute."""
    if not command.state:
        yield "state", "expected at least one state, got none"
    yield from _labels("state", command.state, TANGO_STATES)
    yield from _labels("obs_state", command.obs_state, _obs_states(icd, owner))


@of_command.rule
def command_reports_exist(icd: Icd, owner: DeviceClass, command: CommandDefinition) -> Mistakes:
    """Require that controllers report the attribute that shows what a command does."""
    obs_state = _attribute(owner, _OBS_STATE)
    if command.reports == _OBS_STATE and (obs_state is None or not obs_state.reported):
        yield "reports", f"expected 'State', because controllers do not report {_OBS_STATE}, got {command.reports!r}"


@of_command.rule
def command_targets_exist(icd: Icd, owner: DeviceClass, command: CommandDefinition) -> Mistakes:
    """Require values of the reported attribute; a transitional one is not where it ends."""
    labels = _obs_states(icd, owner) if command.reports == _OBS_STATE else TANGO_STATES
    if not command.targets:
        yield "targets", "expected at least one value, got none"
    yield from _labels("targets", command.targets, labels)
    if command.transitional is not None:
        yield from _labels("transitional", (command.transitional,), labels)
        if command.transitional in command.targets:
            yield "transitional", f"expected a value that is not one of the targets, got {command.transitional!r}"


@of_command.rule
def commanded_states_exist(icd: Icd, owner: DeviceClass, command: CommandDefinition) -> Mistakes:
    """Require a value of obsState, and an attribute that shows it."""
    if command.commanded is not None:
        yield from _labels("commanded", (command.commanded,), _obs_states(icd, owner))
        if _attribute(owner, _COMMANDED) is None:
            yield "commanded", f"expected none, because the class has no {_COMMANDED}, got {command.commanded!r}"


@of_any_command.rule
def command_times_are_ordered(icd: Icd, owner: DeviceClass | Executor, command: CommandDefinition) -> Mistakes:
    """Require 0 < start_within <= deadline <= ceiling."""
    lower, least = "0", 0.0
    for key in _TIMES:
        value: float = getattr(command, key)
        if not (value >= least and value > 0):
            yield key, f"expected number > 0 and >= {lower}, got {value:g}"
        lower, least = f"{key} = {value:g}", value


@of_command.rule
def transitions_can_be_left(icd: Icd, owner: DeviceClass, command: CommandDefinition) -> Mistakes:
    """Require a command that overtakes in every transitional state: a controller that hangs must not hold a device."""
    label = command.transitional
    if label is None or command.overtakes:
        return
    ways_out = [other for other in owner.commands if other.overtakes and set(other.state) & set(command.state)]
    if not any(not other.obs_state or label in other.obs_state for other in ways_out):
        yield "transitional", f"expected a state in which some command that overtakes is allowed, got {label!r}"


@of_any_command.rule
def overtaking_commands_are_repeatable(icd: Icd, owner: DeviceClass | Executor, command: CommandDefinition) -> Mistakes:
    """Require that a command that overtakes may be executed twice: after a crash its effect is not known."""
    if command.overtakes and not command.repeatable:
        yield "repeatable", "expected true, because the command overtakes, got false"


def command_topics_exist(icd: Icd) -> Iterator[IcdFinding]:
    """Require the topics of the command path, judged by the broker's clock, where a class has commands."""
    if not any(owner.commands for owner in icd.commanded.values()):
        return
    for name, message in _TOPICS.items():
        topic = icd.topics.get(name)
        if topic is None:
            yield _topic(name, "", "expected such a topic, because there are commands, got none")
        elif topic.message != message:
            yield _topic(name, ".message", f"expected {message!r}, got {topic.message!r}")
        elif topic.timestamp != "LogAppendTime":
            yield _topic(name, ".timestamp", f"expected 'LogAppendTime', got {topic.timestamp!r}")


def acks_outlive_commands(icd: Icd) -> Iterator[IcdFinding]:
    """Require that acknowledgements are kept as long as the commands: one without its outcome would be done again."""
    commands, acks = icd.topics.get("commands"), icd.topics.get("command-acks")
    if commands is None or acks is None or commands.retention is None or acks.retention is None:
        return
    if acks.retention < commands.retention:
        what = f"expected number >= that of commands = {commands.retention:g}, got {acks.retention:g}"
        yield _topic("command-acks", ".retention", what)


def executors_are_complete(icd: Icd) -> Iterator[IcdFinding]:
    """Require of executors what rules about devices do not say: names, texts, commands, and no states."""
    devices = {one.device.casefold(): name for name, one in icd.classes.items()}
    for name, one in icd.executors.items():
        where = f"executors[{name}]"
        if name in icd.classes or not _CAMEL_CASE.fullmatch(name):
            yield IcdFinding("executors.toml", where, f"expected UpperCamelCase that no class has, got {name!r}")
        if not one.description.strip().endswith("."):
            what = f"expected text that ends with a full stop, got {one.description!r}"
            yield IcdFinding("executors.toml", f"{where}.description", what)
        if owner := devices.setdefault(one.device.casefold(), ""):
            what = f"expected a name of its own, got {one.device!r} of {owner}"
            yield IcdFinding("executors.toml", f"{where}.device", what)
        devices[one.device.casefold()] = name
        if not one.commands:
            yield IcdFinding("executors.toml", f"{where}.commands", "expected at least one, got none")
        yield from _of_executor(where, one)


def _of_executor(where: str, one: Executor) -> Iterator[IcdFinding]:
    names: set[str] = set()
    for command in one.commands:
        place = f"{where}.commands[{command.name}]"
        if not _CAMEL_CASE.fullmatch(command.name) or command.name in names:
            yield IcdFinding("executors.toml", f"{place}.name", f"expected UpperCamelCase, once, got {command.name!r}")
        names.add(command.name)
        for key, text in _texts(command):
            if not text.strip().endswith("."):
                what = f"expected text that ends with a full stop, got {text!r}"
                yield IcdFinding("executors.toml", f"{place}.{key}", what)
        for key in ("state", "obs_state", "targets", "transitional", "commanded"):
            if given := getattr(command, key):
                what = f"expected none, because an executor has no states, got {given!r}"
                yield IcdFinding("executors.toml", f"{place}.{key}", what)


CHECKS = (
    *of_entry,
    *of_query,
    *of_command,
    *of_any_command,
    executors_are_complete,
    command_names_are_free,
    command_topics_exist,
    acks_outlive_commands,
)


def _texts(entry: CommandDefinition | Query) -> Iterator[tuple[str, str]]:
    yield "description", entry.description
    if isinstance(entry, Query):
        yield "result_description", entry.result_description
        if entry.argument != "DevVoid":
            yield "argument_description", entry.argument_description


def _attribute(owner: DeviceClass, name: str) -> Attribute | None:
    return next((attribute for attribute in owner.attributes if attribute.name == name), None)


def _obs_states(icd: Icd, owner: DeviceClass) -> Sequence[str]:
    attribute = _attribute(owner, _OBS_STATE)
    return () if attribute is None else icd.enums.get(attribute.enum or "", ())


def _labels(key: str, given: Sequence[str], known: Sequence[str]) -> Mistakes:
    for label in given:
        if label not in known:
            yield key, f"expected one of {list(known)}, got {label!r}"
    if len(set(given)) < len(given):
        yield key, f"expected each value once, got {list(given)}"


def _topic(name: str, key: str, what: str) -> IcdFinding:
    return IcdFinding("topics.toml", f"topics[{name}]{key}", what)

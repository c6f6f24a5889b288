"""Rules of device classes, executors, their commands and queries, enumerations, the version and alarm conditions."""

import math
import re
from collections.abc import Iterator, Sequence
from string import Formatter
from typing import Any

import msgspec

from facade.icd.checks import SENTENCE, IcdFinding, Row, entries, findings, is_sentence
from facade.icd.model import Attribute, CommandDefinition, Condition, DeviceClass, Executor, Icd, Query

TANGO_STATES = tuple("ON OFF CLOSE OPEN INSERT EXTRACT MOVING STANDBY FAULT INIT RUNNING ALARM DISABLE UNKNOWN".split())
"""Values of Tango's State."""
MOST_ENCODED = 100_000_000
"""Bytes that a call may give: Tango carries 256 MB in one message, and the server keeps a copy for each caller."""
_UPPER_CAMEL_CASE = re.compile(r"[A-Z][A-Za-z0-9]*")
_CONDITION_NAME = re.compile(r"[a-z][A-Za-z0-9]{0,99}")
_NAME_PART = re.compile(r"[A-Za-z0-9_.-]+")
_TANGOS_OWN = ("state", "status", "init")
_OBS_STATE, _COMMANDED = "obsState", "commandedObsState"
_COMMAND_TOPICS = {"commands": "command", "command-acks": "command-ack", "heartbeats": "heartbeat"}
"""Topics of the command path, and their messages."""


def check_classes(icd: Icd) -> Iterator[IcdFinding]:
    """Give the findings."""
    version = re.fullmatch(r"\d+\.\d+\.\d+", icd.version)
    yield from findings("icd.toml", "", [("version_is_semantic", "version", version, "MAJOR.MINOR.PATCH", icd.version)])
    for name, labels in icd.enums.items():
        is_right = labels and all(labels) and len(set(labels)) == len(labels)
        row = ("enums_have_labels", "", is_right, "different labels that are not empty", labels)
        yield from findings("enums.toml", f"enums[{name}]", [row])
    seen: dict[str, str] = {}
    for name, one in icd.commanded.items():
        owner = seen.setdefault(one.device.casefold(), one.name if isinstance(one, DeviceClass) else name)
        if isinstance(one, DeviceClass):
            yield from findings(f"{one.name}.toml", "", _of_class(one, owner))
        else:
            yield from findings("executors.toml", f"executors[{name}]", _of_executor(icd, name, one, owner))
    for name, condition in icd.conditions.items():
        yield from findings("conditions.toml", f"conditions[{name}]", _of_condition(icd, name, condition))
    yield from _check_commands(icd)
    tables = [
        *((f"{name}.toml", "", one) for name, one in icd.classes.items()),
        *(("executors.toml", f"executors[{name}]", one) for name, one in icd.executors.items()),
        *(("topics.toml", f"topics[{name}]", one) for name, one in icd.topics.items()),
    ]
    for file, place, table in tables:
        rows = [
            ("numbers_are_finite", key, math.isfinite(value), "a finite number", value)
            for key, value in _numbers(table)
        ]
        yield from findings(file, place, rows)


def _of_class(one: DeviceClass, owner: str) -> Iterator[Row]:
    yield "class_texts_are_complete", "name", _UPPER_CAMEL_CASE.fullmatch(one.name), "UpperCamelCase", one.name
    yield "class_texts_are_complete", "description", is_sentence(one.description), SENTENCE, one.description
    yield "device_patterns_are_names", "device", *_pattern(one.device, _number(one.device), 3)
    yield "instance_patterns_are_names", "instance", *_pattern(one.instance, "rack", 1)
    what = f"a name of its own, not the one of {owner}"
    yield "device_patterns_are_unique", "device", owner == one.name, what, one.device


def _of_executor(icd: Icd, name: str, one: Executor, owner: str) -> Iterator[Row]:
    rule = "executors_are_complete"
    is_new = _UPPER_CAMEL_CASE.fullmatch(name) and name not in icd.classes
    yield rule, "", is_new, "UpperCamelCase that no class has", name
    yield rule, "description", is_sentence(one.description), SENTENCE, one.description
    yield rule, "device", owner == name, f"a name of its own, not the one of {owner}", one.device
    yield rule, "commands", one.commands, "at least one", one.commands
    yield "executor_patterns_are_names", "device", *_pattern(one.device, _number(one.device), 3)
    names: set[str] = set()
    for command in one.commands:
        place = f"commands[{command.name}]"
        is_free = _UPPER_CAMEL_CASE.fullmatch(command.name) and command.name not in names
        yield rule, f"{place}.name", is_free, "UpperCamelCase, once", command.name
        names.add(command.name)
        yield rule, f"{place}.description", is_sentence(command.description), SENTENCE, command.description
        for key in ("state", "obs_state", "targets", "transitional", "commanded"):
            given = getattr(command, key)
            yield rule, f"{place}.{key}", not given, "none, because an executor has no states", given


def _of_condition(icd: Icd, name: str, one: Condition) -> Iterator[Row]:
    rule = "condition_texts_are_complete"
    yield rule, "", _CONDITION_NAME.fullmatch(name), "lowerCamelCase, at most 100 letters", name
    yield rule, "label", one.label.strip(), "text", one.label
    yield rule, "causes", one.causes, "at least one cause", one.causes
    texts = {key: getattr(one, key) for key in ("description", "check", "response", "ends")}
    for key, text in {**texts, **{f"causes[{at}]": text for at, text in enumerate(one.causes)}}.items():
        yield rule, key, is_sentence(text), SENTENCE, text
    for key in ("on_delay", "off_delay", "re_alarm"):
        value = getattr(one, key)
        yield "condition_delays_are_possible", key, 0 <= value <= 3600, "0 to 3600", value
    growth = one.re_alarm_growth
    is_growth = not growth or growth > 1
    yield (
        "condition_growths_are_more_than_once",
        "re_alarm_growth",
        is_growth,
        "a factor above 1, or 0 for none",
        growth,
    )
    for other in one.suppressed_by:
        known = f"one of {sorted(icd.conditions)}"
        yield "suppressors_exist", "suppressed_by", other in icd.conditions, known, other
        is_free = name not in _suppressors(icd, other)
        yield "suppressors_exist", "suppressed_by", is_free, "one that does not depend on this one", other


def _suppressors(icd: Icd, name: str) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one not in found and one in icd.conditions:
            found.add(one)
            waiting += icd.conditions[one].suppressed_by
    return found


def _number(pattern: str) -> str:
    return "subarray" if "{subarray" in pattern else "node"


def _pattern(pattern: str, placeholder: str, parts: int) -> tuple[bool, str, str]:
    """Judge a pattern of names; its parts have ``/`` between."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(pattern) if name is not None]
        example = pattern.format(**{placeholder: 1})
    except (ValueError, KeyError, IndexError, AttributeError):
        names, example = ["?"], ""
    found = example.split("/")
    is_right = set(names) <= {placeholder} and len(found) == parts and all(map(_NAME_PART.fullmatch, found))
    what = f"{parts} part(s) of letters, digits and _.- with / between, and no placeholder but {{{placeholder}}}"
    return is_right, f"{what} with an integer format", pattern


def _numbers(table: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    for key in table.__struct_fields__:
        value = getattr(table, key)
        if isinstance(value, float):
            yield f"{prefix}{key}", value
        elif isinstance(value, msgspec.Struct):
            yield from _numbers(value, f"{prefix}{key}.")
        elif key in ("attributes", "commands"):
            for entry in value:
                yield from _numbers(entry, f"{prefix}{key}[{entry.name}].")


# --- Commands and queries ---


def _check_commands(icd: Icd) -> Iterator[IcdFinding]:
    taken = {(name, own): "Tango" for name in icd.classes for own in _TANGOS_OWN}
    taken |= {(owner.name, one.name.casefold()): "an attribute" for _, _, owner, one in entries(icd, "attributes")}
    for file, place, owner, entry in entries(icd, "commands", "queries"):
        by = taken.setdefault((owner.name, entry.name.casefold()), "")
        row = ("command_names_are_free", "name", not by, f"a name of its own, as {by} has this one", entry.name)
        yield from findings(file, place, [row])
        taken[owner.name, entry.name.casefold()] = by or "another command"
        yield from findings(file, place, _of_entry(entry))
        rows = _of_query(entry) if isinstance(entry, Query) else _of_command(icd, owner, entry)
        yield from findings(file, place, rows)
        if isinstance(entry, CommandDefinition):
            yield from findings(file, place, _of_any_command(icd, entry))
    for name, executor in icd.executors.items():
        for command in executor.commands:
            place = f"executors[{name}].commands[{command.name}]"
            yield from findings("executors.toml", place, _of_any_command(icd, command))
    if any(owner.commands for owner in icd.commanded.values()):
        yield from findings("topics.toml", "", _of_command_topics(icd))


def _of_entry(entry: CommandDefinition | Query) -> Iterator[Row]:
    is_name = _UPPER_CAMEL_CASE.fullmatch(entry.name)
    yield "command_names_are_camel_case", "name", is_name, "UpperCamelCase", entry.name
    texts = {"description": entry.description}
    if isinstance(entry, Query):
        texts["result_description"] = entry.result_description
        if entry.argument != "DevVoid":
            texts["argument_description"] = entry.argument_description
    for key, text in texts.items():
        yield "command_texts_are_complete", key, is_sentence(text), SENTENCE, text


def _of_query(query: Query) -> Iterator[Row]:
    text, size, is_encoded = query.argument_description, query.max_bytes, query.result == "DevEncoded"
    is_right = query.argument != "DevVoid" or not text
    yield "queries_describe_arguments", "argument_description", is_right, "none without an argument", text
    is_right = 1 <= size <= MOST_ENCODED if is_encoded else not size
    what = f"1 to {MOST_ENCODED}" if is_encoded else f"none, because the result is {query.result}"
    yield "encoded_results_are_bounded", "max_bytes", is_right, what, size


def _of_any_command(icd: Icd, command: CommandDefinition) -> Iterator[Row]:
    is_known = command.argument is None or command.argument in icd.arguments
    yield "command_arguments_exist", "argument", is_known, f"one of {sorted(icd.arguments)}", command.argument
    lower, least = "0", 0.0
    for key in ("start_within", "deadline", "ceiling"):
        value: float = getattr(command, key)
        is_right = value >= least and value > 0
        yield "command_times_are_ordered", key, is_right, f"number > 0 and >= {lower}", value
        lower, least = f"{key} = {value:g}", value
    # After a crash the effect of a command that overtakes is not known.
    is_right = command.repeatable or not command.overtakes
    yield "overtaking_commands_are_repeatable", "repeatable", is_right, "true, because the command overtakes", False


def _of_command(icd: Icd, owner: DeviceClass, command: CommandDefinition) -> Iterator[Row]:
    attributes: dict[str, Attribute] = {one.name: one for one in owner.attributes}
    obs_state = attributes.get(_OBS_STATE)
    obs_states = () if obs_state is None else icd.enums.get(obs_state.enum or "", ())
    yield "command_states_exist", "state", command.state, "at least one state", ()
    yield from _labels("command_states_exist", "state", command.state, TANGO_STATES)
    yield from _labels("command_states_exist", "obs_state", command.obs_state, obs_states)
    is_right = command.reports != _OBS_STATE or (obs_state is not None and obs_state.reported)
    what = f"'State', because controllers do not report {_OBS_STATE}"
    yield "command_reports_exist", "reports", is_right, what, command.reports
    rule, labels = "command_targets_exist", obs_states if command.reports == _OBS_STATE else TANGO_STATES
    yield rule, "targets", command.targets, "at least one value", ()
    yield from _labels(rule, "targets", command.targets, labels)
    if (label := command.transitional) is not None:
        yield from _labels(rule, "transitional", (label,), labels)
        yield rule, "transitional", label not in command.targets, "a value that is not one of the targets", label
    if command.commanded is not None:
        yield from _labels("commanded_states_exist", "commanded", (command.commanded,), obs_states)
        what = f"none, because the class has no {_COMMANDED}"
        yield "commanded_states_exist", "commanded", _COMMANDED in attributes, what, command.commanded
    # A controller that hangs must not hold a device.
    ways_out = [other for other in owner.commands if other.overtakes and set(other.state) & set(command.state)]
    can_be_left = any(not other.obs_state or label in other.obs_state for other in ways_out)
    is_right = label is None or command.overtakes or can_be_left
    what = "a state in which some command that overtakes is allowed"
    yield "transitions_can_be_left", "transitional", is_right, what, label


def _labels(rule: str, key: str, given: Sequence[str], known: Sequence[str]) -> Iterator[Row]:
    for label in given:
        yield rule, key, label in known, f"one of {list(known)}", label
    yield rule, key, len(set(given)) == len(given), "each value once", given


def _of_command_topics(icd: Icd) -> Iterator[Row]:
    for name, message in _COMMAND_TOPICS.items():
        rule, place, topic = "command_topics_exist", f"topics[{name}]", icd.topics.get(name)
        yield rule, place, topic, "such a topic, because there are commands", None
        if topic is not None:
            yield rule, f"{place}.message", topic.message == message, repr(message), topic.message
            is_right = topic.message != message or topic.timestamp == "LogAppendTime"
            yield rule, f"{place}.timestamp", is_right, "'LogAppendTime'", topic.timestamp
    commands, acks = (icd.topics.get(name) for name in ("commands", "command-acks"))
    if commands is not None and acks is not None and None not in (commands.retention, acks.retention):
        # A command without its outcome would be executed again.
        is_right = (acks.retention or 0) >= (commands.retention or 0)
        what = f"number >= that of commands = {commands.retention:g}"
        yield "acks_outlive_commands", "topics[command-acks].retention", is_right, what, acks.retention

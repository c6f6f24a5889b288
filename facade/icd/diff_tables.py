"""What a change of each field of the interface means: a rule for every field of every struct of `facade.icd.model`.

The question behind each line is who, having kept to the old interface, no longer gets along with the new one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from facade.icd.diff_rules import (
    CLIENTS,
    CONSUMERS,
    CONTROLLERS,
    ENGINEERS,
    OPERATORS,
    PRODUCERS,
    Change,
    Rule,
    adds,
    breaks,
    changed,
    ignored,
    measured,
    members,
    switched,
    text,
)
from facade.icd.model import Window

CLASS: Mapping[str, Rule] = {
    "name": ignored,  # a class is known by it: another name is another class
    "description": text,
    "device": changed(breaks(CLIENTS), note=", so the devices have other names"),
    "instance": changed(adds(ENGINEERS), note=", so the registration has to be loaded again"),
    "sampling": changed(adds(CLIENTS)),
    "stale_after": changed(adds(CLIENTS)),
    "attributes": ignored,  # compared one by one, as are the next two
    "commands": ignored,
    "queries": ignored,
    "conditions": ignored,  # has become attributes when the interface was read, as have the next
    "accounts": ignored,
}


def _access(old: str, new: str) -> Iterator[Change]:
    yield from switched(on=adds(CLIENTS), off=breaks(CLIENTS))(old != "READ", new != "READ")


ATTRIBUTE: Mapping[str, Rule] = {
    "name": ignored,
    "type": changed(breaks(CLIENTS)),
    "label": text,
    "description": text,
    "source": changed(breaks(CLIENTS), note=", so it says something else"),
    "account": changed(breaks(CLIENTS), note=", so it says something else"),
    "unit": changed(breaks(CLIENTS)),
    "format": text,
    "access": _access,
    "enum": changed(breaks(CLIENTS)),
    "length": measured(less=breaks(CLIENTS), more=adds(CLIENTS), none=0),
    "height": measured(less=breaks(CLIENTS), more=adds(CLIENTS), none=0),
    "each": ignored,  # has become several attributes when the interface was read
    "expert": text,
    "sampling": changed(adds(CLIENTS)),
    "stale_after": changed(adds(CLIENTS)),
    "limits": changed(adds(CLIENTS, OPERATORS)),
    "reported": switched(on=breaks(CONTROLLERS), off=adds(CONTROLLERS)),
    "initial": changed(adds(CLIENTS)),
}

COMMAND: Mapping[str, Rule] = {
    "name": ignored,
    "description": text,
    "argument": changed(breaks(CLIENTS, CONTROLLERS)),
    "state": members(removed=breaks(CLIENTS), added=adds(CLIENTS, CONTROLLERS)),
    "obs_state": members(removed=breaks(CLIENTS), added=adds(CLIENTS, CONTROLLERS), empty_is_any=True),
    "reports": changed(breaks(CLIENTS, CONTROLLERS)),
    "transitional": changed(breaks(CLIENTS)),
    "targets": changed(breaks(CLIENTS, CONTROLLERS)),
    "commanded": changed(breaks(CLIENTS)),
    "repeatable": switched(on=breaks(CONTROLLERS), off=adds(CONTROLLERS)),
    "start_within": measured(less=breaks(CONTROLLERS), more=adds(CLIENTS)),
    "deadline": measured(less=breaks(CONTROLLERS), more=adds(CLIENTS)),
    "ceiling": measured(less=breaks(CONTROLLERS), more=adds(CLIENTS)),
    "overtakes": changed(breaks(CLIENTS, CONTROLLERS)),
}

QUERY: Mapping[str, Rule] = {
    "name": ignored,
    "description": text,
    "argument": changed(breaks(CLIENTS)),
    "argument_description": text,
    "result": changed(breaks(CLIENTS)),
    "result_description": text,
    "max_bytes": measured(less=breaks(CLIENTS), more=adds(CLIENTS), none=0),
}

CONDITION: Mapping[str, Rule] = {
    "label": text,
    "description": text,
    "response": text,
    "priority": changed(adds(OPERATORS)),
    "latching": changed(adds(OPERATORS)),
    "on_delay": changed(adds(OPERATORS)),
    "off_delay": changed(adds(OPERATORS)),
    "suppressed_by": changed(adds(OPERATORS)),
}

WINDOW: Mapping[str, Rule] = {
    "length": changed(breaks(CLIENTS), note=", so windowed attributes say something else"),
    "lateness": measured(less=breaks(PRODUCERS), more=adds(CLIENTS)),
    "ahead": measured(less=breaks(PRODUCERS), more=adds(CLIENTS)),
    "hold": changed(adds(CLIENTS)),
    "time": changed(breaks(PRODUCERS)),
    "group": changed(breaks(PRODUCERS)),
    "sequence": changed(breaks(PRODUCERS)),
    "epoch": changed(breaks(PRODUCERS)),
    "quantile_error": measured(less=adds(CLIENTS), more=breaks(CLIENTS)),
}


def _window(old: Window | None, new: Window | None) -> Iterator[Change]:
    if old is None or new is None:
        yield from changed(breaks(PRODUCERS, CLIENTS))(old and "windows", new and "windows")
        return
    for name, rule in WINDOW.items():
        for change in rule(getattr(old, name), getattr(new, name)):
            yield replace(change, what=f"{name}: {change.what}")


ROLE: Mapping[str, Rule] = {
    "description": text,
    "side": changed(adds(ENGINEERS)),
}

TOPIC: Mapping[str, Rule] = {
    "description": text,
    "message": changed(breaks(PRODUCERS, CONSUMERS)),
    "also": members(removed=breaks(PRODUCERS, CONSUMERS), added=adds(CONSUMERS)),
    "key": changed(breaks(PRODUCERS, CONSUMERS)),
    "writers": members(removed=breaks(PRODUCERS), added=adds(PRODUCERS, ENGINEERS)),
    "readers": members(removed=breaks(CONSUMERS), added=adds(CONSUMERS, ENGINEERS)),
    "partitions": changed(breaks(PRODUCERS, CONSUMERS), note=", so keys move and lose their order"),
    "partitions_may_grow": switched(on=adds(CONSUMERS, ENGINEERS), off=breaks(ENGINEERS)),
    "cleanup": changed(breaks(PRODUCERS, CONSUMERS)),
    "retention": measured(less=breaks(CONSUMERS), more=adds(CONSUMERS)),
    "timestamp": changed(breaks(CONSUMERS)),
    "max_bytes": measured(less=breaks(PRODUCERS), more=adds(CONSUMERS)),
    "qos": changed(adds(PRODUCERS, CONSUMERS)),
    "window": _window,
    "account": ignored,  # has become attributes when the interface was read
    "config": changed(adds(ENGINEERS)),
}


def enum_labels(old: tuple[str, ...], new: tuple[str, ...]) -> Iterator[Change]:
    """Judge the labels of an enum: their positions are the values, so only what is put at the end moves nothing."""
    if new[: len(old)] != old:
        moved = [f"{value} {label}" for value, label in enumerate(old) if new[value : value + 1] != (label,)]
        yield breaks(CLIENTS).of(f"no longer what they were: {', '.join(moved)}")
    elif more := new[len(old) :]:
        yield adds(CLIENTS).of(f"also {', '.join(more)}")

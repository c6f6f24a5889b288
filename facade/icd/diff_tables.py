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
    Meaning,
    Rule,
    adds,
    breaks,
    changed,
    ignored,
    measured,
    members,
    text,
)
from facade.icd.topic_model import Window


def _each(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


def _bounded(*, less: Meaning, more: Meaning) -> Rule:
    """Judge a number of which none is 0, or what is either so or not."""
    return measured(less=less, more=more, none=0)


CLASS: Mapping[str, Rule] = {
    # A class is known by its name; attributes, commands and queries are compared one by one, and templates have become
    # attributes when the interface was read.
    **_each("name attributes commands queries conditions accounts", ignored),
    "description": text,
    "device": changed(breaks(CLIENTS), note=", so the devices have other names"),
    "instance": changed(adds(ENGINEERS), note=", so the registration has to be loaded again"),
    **_each("sampling stale_after state_source complains", changed(adds(CLIENTS))),
}


def _access(old: str, new: str) -> Iterator[Change]:
    yield from _bounded(less=breaks(CLIENTS), more=adds(CLIENTS))(old != "READ", new != "READ")


ATTRIBUTE: Mapping[str, Rule] = {
    **_each("name each", ignored),
    **_each("type unit enum", changed(breaks(CLIENTS))),
    **_each("source account", changed(breaks(CLIENTS), note=", so it says something else")),
    **_each("label description format expert", text),
    "access": _access,
    **_each("length height", _bounded(less=breaks(CLIENTS), more=adds(CLIENTS))),
    **_each("sampling stale_after initial", changed(adds(CLIENTS))),
    "limits": changed(adds(CLIENTS, OPERATORS)),
    "reported": _bounded(less=adds(CONTROLLERS), more=breaks(CONTROLLERS)),
}

COMMAND: Mapping[str, Rule] = {
    "name": ignored,
    "description": text,
    **_each("argument reports targets overtakes", changed(breaks(CLIENTS, CONTROLLERS))),
    "state": members(removed=breaks(CLIENTS), added=adds(CLIENTS, CONTROLLERS)),
    "obs_state": members(removed=breaks(CLIENTS), added=adds(CLIENTS, CONTROLLERS), empty_is_any=True),
    **_each("transitional commanded", changed(breaks(CLIENTS))),
    "repeatable": _bounded(less=adds(CONTROLLERS), more=breaks(CONTROLLERS)),
    **_each("start_within deadline ceiling", measured(less=breaks(CONTROLLERS), more=adds(CLIENTS))),
}

EXECUTOR: Mapping[str, Rule] = {"description": text, "device": changed(breaks(CONTROLLERS))}

QUERY: Mapping[str, Rule] = {
    "name": ignored,
    **_each("description argument_description result_description", text),
    **_each("argument result", changed(breaks(CLIENTS))),
    "max_bytes": _bounded(less=breaks(CLIENTS), more=adds(CLIENTS)),
}

CONDITION: Mapping[str, Rule] = {
    **_each("label description causes check response ends", text),
    **_each("priority latching on_delay off_delay re_alarm re_alarm_growth suppressed_by", changed(adds(OPERATORS))),
}

WINDOW: Mapping[str, Rule] = {
    "summary": changed(breaks(CONSUMERS)),
    "length": changed(breaks(CLIENTS), note=", so windowed attributes say something else"),
    **_each("lateness ahead", measured(less=breaks(PRODUCERS), more=adds(CLIENTS))),
    "disorder": changed(adds(CLIENTS)),
    **_each("time group groups sequence epoch", changed(breaks(PRODUCERS))),
    "most_groups": measured(less=breaks(PRODUCERS), more=adds(PRODUCERS)),
    "all_expected": changed(adds(CLIENTS)),
    "quantile_error": measured(less=adds(CLIENTS), more=breaks(CLIENTS)),
}


def _window(old: Window | None, new: Window | None) -> Iterator[Change]:
    if old is None or new is None:
        yield from changed(breaks(PRODUCERS, CLIENTS))(old and "windows", new and "windows")
        return
    for name, rule in WINDOW.items():
        for change in rule(getattr(old, name), getattr(new, name)):
            yield replace(change, what=f"{name}: {change.what}")


ROLE: Mapping[str, Rule] = {"description": text, "side": changed(adds(ENGINEERS))}

TOPIC: Mapping[str, Rule] = {
    "description": text,
    **_each("message key cleanup", changed(breaks(PRODUCERS, CONSUMERS))),
    "also": members(removed=breaks(PRODUCERS, CONSUMERS), added=adds(CONSUMERS)),
    "encodings": members(removed=breaks(PRODUCERS), added=breaks(CONSUMERS)),
    "writers": members(removed=breaks(PRODUCERS), added=adds(PRODUCERS, ENGINEERS)),
    **_each("operations bytes traits", text),
    "header": changed(breaks(PRODUCERS, CONSUMERS)),
    "readers": members(removed=breaks(CONSUMERS), added=adds(CONSUMERS, ENGINEERS)),
    "partitions": changed(breaks(PRODUCERS, CONSUMERS), note=", so keys move and lose their order"),
    "partitions_may_grow": _bounded(less=breaks(ENGINEERS), more=adds(CONSUMERS, ENGINEERS)),
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
        yield breaks(CLIENTS)(f"no longer what they were: {', '.join(moved)}")
    elif more := new[len(old) :]:
        yield adds(CLIENTS)(f"also {', '.join(more)}")

"""Which attributes are to be mirrored: by the rules, and by the resources that subarrays hold."""

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import groupby

from facade.bus.port import Record
from facade.codec.plausible import wrong_key
from facade.flows.mirror.messages import RULES, MirrorRule, decode_rule, device_of, is_name
from facade.outcome import TOMBSTONE, USED, Outcome
from facade.runtime.device_state import StateMessage
from facade.runtime.flow import Flow

RECEPTOR = "{receptor}"
"""Stands in a pattern for each receptor whose resources are held."""
RESOURCES, POINTING = "resources", "pointingAttributes"
"""What controllers report of a subarray: its resources, and the attributes that say where it points."""
_SHORTEST = 0.1
"""Shortest time between two reads [s]."""
PERIOD = 1.0
"""Time between two reads where no rule says it [s]."""
MOST_FOUND = 20_000
"""Attributes that a pattern may choose."""


class Choice(Flow):
    """A flow: the rules, and beside them what is reported of subarrays; another thread asks what follows from them.

    Parameters
    ----------
    is_own
        Whether a device is one of the facade's, which are never mirrored.
    """

    topic = RULES

    def __init__(self, is_own: Callable[[str], bool]) -> None:
        self.is_own = is_own
        self.crowded: dict[str, str] = {}
        """Patterns that fit too many attributes, and what is said of them."""
        self.rules: dict[str, MirrorRule] = {}
        """By name."""
        self._receptors: dict[str, frozenset[str]] = {}
        self._pointing: dict[str, frozenset[str]] = {}
        """By the device of the subarray."""
        self.version = 0
        """Changes with whatever may change the choice."""

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Take a rule; see `facade.runtime.flow.Flow`."""
        key = (record.key or b"").decode("utf-8", "replace")
        if record.value is None:
            self.rules.pop(key, None)
            self.version += 1
            return TOMBSTONE
        rule = decode_rule(record.value)
        if not isinstance(rule, MirrorRule):
            return rule
        if why := wrong_key(record.key, rule.rule, "$.rule"):
            return why
        self.rules[key] = rule
        self.version += 1
        return USED

    def take(self, message: StateMessage) -> None:
        """Take what was reported of a device."""
        if message.attribute == RESOURCES:
            resources = _parsed(message.value)
            found = resources.get("receptors") if isinstance(resources, dict) else None
            held, of = self._receptors, _texts(found)
        elif message.attribute == POINTING:
            held, of = self._pointing, _texts(_parsed(message.value))
        else:
            return
        if held.get(message.device, frozenset()) != of:
            held[message.device] = of
            self.version += 1

    def patterns(self) -> Iterator[tuple[str, float]]:
        """Return what is chosen, names and patterns of names in lower case, each with the time between two reads."""
        receptors = sorted(frozenset().union(*list(self._receptors.values())))
        for rule in list(self.rules.values()):
            for pattern in map(str.lower, rule.patterns):
                each = receptors if RECEPTOR in pattern else [""]
                yield from (
                    (pattern.replace(RECEPTOR, receptor), max(rule.period or PERIOD, _SHORTEST)) for receptor in each
                )
        yield from ((name, PERIOD) for names in list(self._pointing.values()) for name in sorted(names))

    def refusal(self, pattern: str) -> str:
        """Return why a pattern or a name chooses nothing; empty: it may."""
        if not is_name(pattern):
            return "expected domain/family/member/attribute"
        return "the facade's own devices are not mirrored" if self.is_own(device_of(pattern)) else ""

    def wanted(self, known: Iterable[str], mirrored: Container[str] = ()) -> dict[str, float]:
        """Return the names of what is to be mirrored, with the shortest time between two reads that is wanted [s].

        Parameters
        ----------
        known
            Names that have been found by searches, now or before.
        mirrored
            What is mirrored now, which stays so where a pattern fits too many attributes.
        """
        found: dict[str, float] = {}
        crowded: dict[str, str] = {}
        known = sorted(known)
        of_device = {device: list(names) for device, names in groupby(known, device_of)}
        for pattern, period in self.patterns():
            names: Iterable[str] = [pattern]
            if "*" in pattern:
                # Patterns for each receptor are many, and each has one device.
                near = known if "*" in device_of(pattern) else of_device.get(device_of(pattern), [])
                names = fitting = list(filter(matcher(pattern), near))
                if len(fitting) > MOST_FOUND:
                    what = f"expected at most {MOST_FOUND} attributes, found {len(fitting)}"
                    crowded[pattern] = f"{what}; say more in the pattern"
                    names = [name for name in fitting if name in mirrored]
            for name in names:
                if not self.refusal(name):
                    found[name] = min(period, found.get(name, period))
        self.crowded = crowded
        return found


def matcher(pattern: str) -> Callable[[str], object]:
    """Return what tells whether a name fits a pattern; ``*`` stands for any characters but a slash."""
    return re.compile("[^/]*".join(map(re.escape, pattern.split("*")))).fullmatch


def _parsed(text: str) -> object:
    """Return what a reported text has in JSON; what has none is as good as nothing."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _texts(value: object) -> frozenset[str]:
    items = value if isinstance(value, list) else []
    return frozenset(item.lower() for item in items if isinstance(item, str))

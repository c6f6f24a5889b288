"""The choice of attributes to mirror: by rules, by the resources of subarrays, and by searches for the patterns.

A Tango database knows the devices, and each device its attributes.
"""

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import groupby

from facade.flows.mirror.device import pause_after
from facade.flows.mirror.messages import ENDED, RULES, MirrorRule, decode_rule, device_of, is_name
from facade.flows.mirror.source import DeviceSearch, DeviceSource, SearchResult
from facade.kernel.bus.port import Record
from facade.kernel.codec.plausible import wrong_key
from facade.kernel.outcome import USED, Outcome, Unused
from facade.kernel.runtime.projection import Projection
from facade.sdp.device_state import StateMessage

RECEPTOR = "{receptor}"
"""Placeholder in a pattern for each receptor with held resources."""
RESOURCES, POINTING = "resources", "pointingAttributes"
"""Attributes reported by controllers: the resources of a subarray, and the attributes with its pointing."""
_SHORTEST = 0.1
"""Shortest time between two reads [s]."""
PERIOD = 1.0
"""Default of the time between two reads [s]."""
MOST_FOUND = 20_000
SEARCH_AGAIN = 30.0
"""Time between two searches for a pattern [s]; shorter after a failure of the database."""
_ASKED_WITHIN = 10.0
"""Time over which the devices of a search are asked for their attributes again [s]."""


class Choice(Projection[MirrorRule]):
    """A flow: the rules and the reports about subarrays; another thread asks for the choice."""

    topic = RULES

    def __init__(self, is_own: Callable[[str], bool]) -> None:
        self.is_own = is_own
        self.crowded: dict[str, str] = {}
        """Patterns that fit too many attributes, with a text about each."""
        self.rules: dict[str, MirrorRule] = {}
        self._receptors: dict[str, frozenset[str]] = {}
        self._pointing: dict[str, frozenset[str]] = {}
        """By the device of the subarray."""
        self.version = 0
        """Changes whenever the choice may change."""

    def _read(self, record: Record) -> MirrorRule | Unused:
        rule = decode_rule(record.value)
        return rule if isinstance(rule, Unused) else wrong_key(record.key, rule.rule, "$.rule") or rule

    def _take(self, rule: MirrorRule, record: Record) -> Outcome:
        self.rules[rule.rule] = rule
        self.version += 1
        return USED

    def _remove(self, key: str) -> None:
        self.rules.pop(key, None)
        self.version += 1

    def take(self, message: StateMessage) -> None:
        """Process a report about a device."""
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
        """Return the names and patterns chosen, in lower case, each with the time between two reads [s]."""
        receptors = sorted(frozenset().union(*list(self._receptors.values())))
        for rule in list(self.rules.values()):
            for pattern in map(str.lower, rule.patterns):
                each = receptors if RECEPTOR in pattern else [""]
                yield from (
                    (pattern.replace(RECEPTOR, receptor), max(rule.period or PERIOD, _SHORTEST)) for receptor in each
                )
        yield from ((name, PERIOD) for names in list(self._pointing.values()) for name in sorted(names))

    def refusal(self, pattern: str) -> str:
        """Return the reason why a pattern or a name chooses nothing; empty: it is allowed."""
        if not is_name(pattern):
            return "expected domain/family/member/attribute"
        return "the facade's own devices are not mirrored" if self.is_own(device_of(pattern)) else ""

    def wanted(self, known: Iterable[str], mirrored: Container[str] = ()) -> dict[str, float]:
        """Return the names of the attributes to mirror, with the shortest requested time between two reads [s].

        Parameters
        ----------
        known
            Names found by searches, now or before.
        mirrored
            Attributes mirrored now; they stay if a pattern fits too many attributes.
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
    """Return a function that matches a name with a pattern; ``*`` stands for any characters except a slash."""
    return re.compile("[^/]*".join(map(re.escape, pattern.split("*")))).fullmatch


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _texts(value: object) -> frozenset[str]:
    items = value if isinstance(value, list) else []
    return frozenset(item.lower() for item in items if isinstance(item, str))


class _Database:
    """A Tango database. It gets one request at a time, so that a hanging one holds one thread."""

    is_asked = False
    failures = 0
    trouble = ""


class Searches:
    """The searches for devices and attributes, and their results."""

    def __init__(self, source: DeviceSource, is_own: Callable[[str], bool]) -> None:
        self._source, self._is_own = source, is_own
        self._patterns: dict[str, str] = {}
        """Patterns of attributes, each with the pattern of its devices."""
        self._refused: dict[str, str] = {}
        self._due: dict[str, float] = {}
        """Time of the next search for devices [monotonic s], by pattern."""
        self._databases: dict[str, _Database] = {}
        """By host and port; empty: Tango's default."""
        self._found: dict[str, SearchResult] = {}
        """The last results, by pattern of devices, the newest at the end."""
        self._names: dict[str, frozenset[str]] = {}
        """The attributes of each device that has answered."""
        self._silent: dict[str, str] = {}
        """Reasons why devices have not answered."""

    def want(self, patterns: Iterable[str], refused: Mapping[str, str], now: float) -> None:
        """Search for these patterns from now on [monotonic s], and for no others.

        `refused`: reasons why some of them choose nothing; they are not searched for.
        """
        self._refused = dict(refused)
        self._patterns = {one: device_of(one) for one in sorted(patterns) if "*" in one and one not in refused}
        self._due = {one: self._due.get(one, now) for one in dict.fromkeys(self._patterns.values())}
        self._found = {one: found for one, found in self._found.items() if one in self._due}

    def begin(self, now: float) -> None:
        """Begin the searches that are due [monotonic s], one at a time for each database, the longest wait first."""
        for pattern in sorted((one for one, due in self._due.items() if due <= now), key=self._due.__getitem__):
            database = self._databases.setdefault(_host(pattern), _Database())
            if not database.is_asked:
                database.is_asked, self._due[pattern] = True, float("inf")
                self._source.begin(DeviceSearch(pattern))

    def take(self, found: SearchResult, now: float) -> Iterator[tuple[str, float]]:
        """Process a search result, and return devices to ask for their attributes, each with a time [monotonic s].

        A new device is asked at once, the others one after the other.
        """
        database = self._databases[_host(found.pattern)]
        database.is_asked = False
        database.failures = database.failures + 1 if found.trouble else 0
        database.trouble = found.trouble
        if found.pattern not in self._due:
            return
        self._due[found.pattern] = now + (pause_after(database.failures) if found.trouble else SEARCH_AGAIN)
        if found.trouble:
            return
        self._found.pop(found.pattern, None)
        self._found[found.pattern] = found
        fits = matcher(found.pattern)
        for known in (self._names, self._silent):
            for device in [one for one in known if fits(one) and one not in found.defined]:
                del known[device]
        asked = [one for one in sorted(found.exported) if not self._is_own(one)]
        for number, device in enumerate(asked):
            yield device, now + (number * _ASKED_WITHIN / len(asked) if device in self._names else 0.0)

    def answer(self, device: str, names: frozenset[str] | None, why: str = "") -> bool:
        """Store the names of a device's attributes; None: it could not be asked. Return whether they have changed."""
        if names is None:
            self._silent[device] = why
            return False
        self._silent.pop(device, None)
        is_new = self._names.get(device) != names
        self._names[device] = names
        return is_new

    def wants(self, device: str) -> bool:
        """Return whether a pattern may choose attributes of a device."""
        return any(device in found.exported for found in self._found.values())

    def known(self, before: Iterable[tuple[str, str]]) -> set[str]:
        """Return the names of attributes that patterns may choose.

        Parameters
        ----------
        before
            Names of attributes that are or were mirrored, each with its last connection. They stay known until a device
            or database reports them as gone; ended ones only if their device exists.
        """
        known = {name for names in self._names.values() for name in names}
        exists: dict[str, bool | None] = {}
        for name, connection in before:
            device = device_of(name)
            if device in self._names:
                continue
            if device not in exists:
                exists[device] = self._exists(device)
            if exists[device] or (exists[device] is None and connection != ENDED):
                known.add(name)
        return known

    def _exists(self, device: str) -> bool | None:
        for pattern, found in reversed(self._found.items()):
            if matcher(pattern)(device):
                return device in found.defined
        return None

    def is_other(self, found: SearchResult) -> bool:
        """Return whether a search has found other devices than the previous one."""
        before = self._found.get(found.pattern)
        return not found.trouble and (before is None or before.defined != found.defined)

    @property
    def troubles(self) -> dict[str, str]:
        """Return the reasons why patterns choose nothing, or not everything; from any thread."""
        troubles = dict(self._refused)
        silent, databases = dict(self._silent), dict(self._databases)
        for pattern, devices in list(self._patterns.items()):
            database, found = databases.get(_host(devices)), self._found.get(devices)
            if database is not None and database.trouble:
                troubles[pattern] = database.trouble
            elif found is not None and (away := sorted(silent.keys() & found.exported)):
                more = f"; and {len(away) - 1} more" if len(away) > 1 else ""
                troubles[pattern] = f"{away[0]} could not be asked: {silent[away[0]]}{more}"
        return troubles


def _host(pattern: str) -> str:
    return pattern.partition("://")[2].partition("/")[0]

"""Searches for the attributes that patterns choose: a Tango database names devices, and each device its attributes."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from facade.flows.mirror.choice import matcher
from facade.flows.mirror.device import pause_after
from facade.flows.mirror.messages import ENDED, device_of
from facade.flows.mirror.source import Found, Search, Source

SEARCH_AGAIN = 30.0
"""Time between two searches for what a pattern chooses [s]; sooner, where the database could not be asked."""
_ASKED_WITHIN = 10.0
"""Time in which the devices of a search are asked for their attributes again [s]."""


class _Database:
    """A Tango database, which is asked for one thing at a time: one that hangs holds one thread."""

    is_asked = False
    failures = 0
    """Searches that failed, one after the other."""
    trouble = ""


class Searches:
    """What is searched for, when, and what was found.

    Parameters
    ----------
    is_own
        Whether a device is one of the facade's, which is not asked.
    """

    def __init__(self, source: Source, is_own: Callable[[str], bool]) -> None:
        self._source, self._is_own = source, is_own
        self._patterns: dict[str, str] = {}
        """Patterns of attributes, each with the pattern of its devices."""
        self._refused: dict[str, str] = {}
        self._due: dict[str, float] = {}
        """When devices are searched for next [monotonic s], by pattern."""
        self._databases: dict[str, _Database] = {}
        """By host and port; empty: the one that Tango is told of."""
        self._found: dict[str, Found] = {}
        """What was found last, by pattern of devices, the newest at the end."""
        self._names: dict[str, frozenset[str]] = {}
        """The attributes of each device that has named them."""
        self._silent: dict[str, str] = {}
        """Why devices have not named theirs."""

    def want(self, patterns: Iterable[str], refused: Mapping[str, str], now: float) -> None:
        """Search for these patterns from now on [monotonic s], and for no others.

        Parameters
        ----------
        refused
            Why some of them choose nothing; they are not searched for.
        """
        self._refused = dict(refused)
        self._patterns = {one: device_of(one) for one in sorted(patterns) if "*" in one and one not in refused}
        self._due = {one: self._due.get(one, now) for one in dict.fromkeys(self._patterns.values())}
        self._found = {one: found for one, found in self._found.items() if one in self._due}

    def begin(self, now: float) -> None:
        """Begin the searches that are due [monotonic s], of each database one after the other."""
        for pattern in [one for one, due in self._due.items() if due <= now]:
            database = self._databases.setdefault(_host(pattern), _Database())
            if not database.is_asked:
                database.is_asked, self._due[pattern] = True, float("inf")
                self._source.begin(Search(pattern))

    def take(self, found: Found, now: float) -> Iterator[tuple[str, float]]:
        """Take what a search has found, and return devices to ask for their attributes, each with a time [monotonic s].

        A device that is new is asked at once, the others one after the other.
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
        """Take the names of the attributes of a device; return whether they have changed.

        Parameters
        ----------
        names
            None: the device could not be asked.
        why
            The reason for this.
        """
        if names is None:
            self._silent[device] = why
            return False
        self._silent.pop(device, None)
        is_new = self._names.get(device) != names
        self._names[device] = names
        return is_new

    def wants(self, device: str) -> bool:
        """Return whether a device may have attributes that a pattern chooses."""
        return any(device in found.exported for found in self._found.values())

    def known(self, before: Iterable[tuple[str, str]]) -> set[str]:
        """Return the names of attributes that patterns may choose.

        Parameters
        ----------
        before
            Names of attributes that are or were mirrored, each with what was said last of its connection. They are
            known as long as nobody says that they are gone; those that have ended, only if their device is there.
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
        """Return whether a database has a device; None: none was asked."""
        for pattern, found in reversed(self._found.items()):
            if matcher(pattern)(device):
                return device in found.defined
        return None

    def is_other(self, found: Found) -> bool:
        """Return whether a search has found other devices than the one before."""
        before = self._found.get(found.pattern)
        return not found.trouble and (before is None or before.defined != found.defined)

    @property
    def troubles(self) -> dict[str, str]:
        """Return why patterns choose nothing, or not all that they should; from any thread."""
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
    """Return host and port of a pattern's database; empty: it names none."""
    return pattern.partition("://")[2].partition("/")[0]

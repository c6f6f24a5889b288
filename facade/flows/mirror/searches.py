"""Searches for the attributes that patterns choose."""

from collections.abc import Collection, Mapping

from facade.flows.mirror.source import Found, Search, Source

AGAIN = 1.0
"""Pause before something is tried again that did not answer [s]."""
SEARCH_AGAIN = 30.0
"""Time between two searches for what a pattern chooses [s]; soon again, where something could not be asked."""


class Searches:
    """What is searched for, when, and what was found."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._due: dict[str, float] = {}
        """When each pattern is searched for next [monotonic s]."""
        self.found: set[str] = set()
        """Names of attributes."""
        self.troubles: dict[str, str] = {}
        """Why patterns choose nothing, or not all that they should."""

    def want(self, patterns: Collection[str], refused: Mapping[str, str], now: float) -> None:
        """Search for these patterns from now on [monotonic s], and for no others.

        Parameters
        ----------
        refused
            Why some of them choose nothing; they are not searched for.
        """
        wanted = {one for one in patterns if "*" in one} - refused.keys()
        self.troubles = dict(refused) | {one: why for one, why in self.troubles.items() if one in wanted}
        self._due = {one: self._due.get(one, now) for one in sorted(wanted)}

    def begin(self, now: float) -> None:
        """Begin the searches that are due [monotonic s]."""
        for pattern in [one for one, due in self._due.items() if due <= now]:
            self._due[pattern] = float("inf")
            self._source.begin(Search(pattern))

    def take(self, found: Found, now: float) -> bool:
        """Take what a search has found; return whether some of it is new."""
        if found.pattern not in self._due:
            return False
        self._due[found.pattern] = now + (AGAIN if found.trouble else SEARCH_AGAIN)
        self.troubles.pop(found.pattern, None)
        if found.trouble:
            self.troubles[found.pattern] = found.trouble
        is_new = bool(found.names - self.found)
        self.found |= found.names
        return is_new

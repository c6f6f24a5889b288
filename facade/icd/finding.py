"""What a check says when the interface is wrong: where, and what was expected."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with the interface."""

    file: str
    """Name of the file, without its folder."""
    key: str
    """Dotted path of the key, entries of lists by their name; empty for the file as a whole."""
    what: str
    """What was expected and what is there."""

    def __str__(self) -> str:
        """Return the line that a user reads."""
        return ": ".join(part for part in (self.file, self.key, self.what) if part)

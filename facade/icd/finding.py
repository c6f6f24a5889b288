"""A finding of a check: the place of a mistake, the expected value and the present one."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class IcdFinding:
    """One thing that is wrong with the interface."""

    file: str
    """Name of the file, without its folder."""
    key: str
    """Dotted path of the key, entries of lists by their name; empty for the file as a whole."""
    what: str
    """The expected value and the present one."""
    rule: str = field(default="", compare=False)
    """Name of the rule."""

    def __str__(self) -> str:
        """Return the line that a user reads."""
        return ": ".join(part for part in (self.file, self.key, self.what) if part)

"""The table of rules: a function for each kind of entry of the interface yields a row for each rule.

One mistake gives one finding: a rule stays silent about the findings of another one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from facade.kernel.icd.explain import shown
from facade.kernel.icd.model import Icd


@dataclass(frozen=True, slots=True)
class IcdFinding:
    """One mistake in the interface."""

    file: str
    """Name of the file, without its folder."""
    key: str
    """Dotted path of the key, entries of lists by their name; empty for the file as a whole."""
    what: str
    """The expected value and the present one."""
    rule: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Return the line that a user reads."""
        return ": ".join(part for part in (self.file, self.key, self.what) if part)


Row = tuple[str, str, object, str, object]
"""Rule, key within the entry, whether the entry is right, the expectation in words, and the present value."""
NO_VALUE = ...
"""Present value of a row whose expectation is sufficient."""
SENTENCE = "text that ends with a full stop"


def findings(file: str, place: str, rows: Iterable[Row]) -> Iterator[IcdFinding]:
    """Yield the findings for the rows of one entry at a position of a file."""
    for rule, key, is_right, expected, got in rows:
        if not is_right:
            what = f"expected {expected}" if got is NO_VALUE else f"expected {expected}, got {_said(got)}"
            yield IcdFinding(file, ".".join(filter(None, (place, key))), what, rule)


def _said(value: object) -> str:
    """Return a value in the form of the TOML files."""
    if value is None or value == ():
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else shown(list(value) if isinstance(value, tuple) else value)


def is_sentence(text: str) -> bool:
    """Return whether a text ends with a full stop."""
    return text.strip().endswith(".")


def entries(icd: Icd, *kinds: str) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield the entries of some lists of all classes, such as ``attributes``: file, position, class and entry."""
    for owner in icd.classes.values():
        for kind in kinds:
            for one in getattr(owner, kind):
                yield f"{owner.name}.toml", f"{kind}[{one.name}]", owner, one

"""Makes checks of the whole interface from rules about one kind of its entries.

Most rules are rows: a name, the key that is judged, whether its value is right, and the expected value in words. A rule
that looks at more than one key is a function. A rule stays silent about the findings of another one.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import groupby
from operator import attrgetter
from typing import Any

from facade.icd.fields import Schema
from facade.icd.finding import IcdFinding
from facade.icd.model import Icd

Entries = Iterator[tuple[str, str, tuple[Any, ...]]]
"""Each entry as a rule takes it, after the file that says it and its place there."""
Check = Callable[[Icd], Iterator[IcdFinding]]
Mistakes = Iterator[tuple[str, str]]
"""Key within an entry, and what was expected and is there."""
Row = tuple[str, str, Callable[..., object], str | Callable[..., str]]
"""Name, key, whether an entry is right, and the expected value: a text, or a function of the same arguments. Rows of
one name stand together, and are one check."""
FULL_STOP = "text that ends with a full stop"


class Checks(list[Check]):
    """Checks of one kind of entries, in their order.

    Parameters
    ----------
    each
        Gives the entries.
    """

    def __init__(self, each: Callable[[Icd], Entries]) -> None:
        super().__init__()
        self._each = each

    def rule(self, rule: Callable[..., Mistakes]) -> Check:
        """Add the check of a rule, a function of the interface and one entry; it keeps the rule's name."""

        @wraps(rule)
        def check(icd: Icd) -> Iterator[IcdFinding]:
            for file, place, entry in self._each(icd):
                for key, what in rule(icd, *entry):
                    yield IcdFinding(file, ".".join(filter(None, (place, key))), what)

        self.append(check)
        return check

    def rows(self, rows: Iterable[Row]) -> None:
        """Add the checks of some rows."""
        for name, group in groupby(rows, key=lambda row: row[0]):
            self.rule(_rule(name, tuple(group)))


def _rule(name: str, rows: tuple[Row, ...]) -> Callable[..., Mistakes]:
    def rule(icd: Icd, *entry: Any) -> Mistakes:
        for _, key, is_right, expected in rows:
            if not is_right(icd, *entry):
                what = expected if isinstance(expected, str) else expected(icd, *entry)
                yield key, f"expected {what}, got {_said(attrgetter(key)(entry[-1]))}"

    rule.__name__ = name
    return rule


def _said(value: object) -> str:
    """Return a value as the TOML files write it."""
    if value is None or value == ():
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else repr(value)


def is_sentence(text: str) -> bool:
    """Return whether a text ends with a full stop."""
    return text.strip().endswith(".")


def entries(*kinds: str) -> Callable[[Icd], Entries]:
    """Return what gives the entries of some lists of all classes, such as ``attributes``, each with its class."""

    def each(icd: Icd) -> Entries:
        for owner in icd.classes.values():
            for kind in kinds:
                for one in getattr(owner, kind):
                    yield f"{owner.name}.toml", f"{kind}[{one.name}]", (owner, one)

    return each


def commands(icd: Icd) -> Entries:
    """Return the commands of all classes and executors, each with its owner."""
    yield from entries("commands")(icd)
    for name, owner in icd.executors.items():
        for one in owner.commands:
            yield "executors.toml", f"executors[{name}].commands[{one.name}]", (owner, one)


def illegal(schema: Schema) -> Mistakes:
    """Say what of a schema does not follow JSON Schema 2020-12."""
    # Importing it takes longer than everything else that a server does with the interface.
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema):
        yield ".".join(map(str, error.path)), f"expected JSON Schema 2020-12, got: {error.message:.200}"


def is_text(value: object) -> bool:
    """Return whether a value is a text that says something."""
    return isinstance(value, str) and bool(value.strip())

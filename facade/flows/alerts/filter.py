"""Selection of alerts by condition, severity, source and fields, without I/O and clock."""

import operator
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, Self

import msgspec

from facade.flows.alerts.follower import FollowedAlert
from facade.kernel.errors import ConfigError
from facade.kernel.severities import SEVERITIES, Severity

_NUMBERS: Final = ("raised_at", "sequence")
_TEXTS: Final = ("condition", "source", "state", "text", "traceparent")
_VALUES: Final = "values."
"""Begin of the name of a measured value; the rest is the value's own name, which may have dots."""
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_COMPARISON: Final = re.compile(r"\s*(.+?)\s*(>=|<=|==|!=|>|<)\s*(.*?)\s*", re.DOTALL)


class Comparison(msgspec.Struct, frozen=True):
    """Compares a field of an alert with a number or a text.

    Raises
    ------
    ConfigError
        The field or the comparison does not exist, or the value has the wrong type.

    Examples
    --------
    >>> Comparison.parse("values.snr >= 7")
    Comparison(field='values.snr', comparison='>=', value=7.0)
    """

    field: str
    """A field of ``alert.schema.json``, or ``values.`` and the name of a measured value."""
    comparison: str
    """One of `>=`, `<=`, `==`, `!=`, `>`, `<`. Texts allow `==` and `!=` only."""
    value: float | str

    def __post_init__(self) -> None:
        got = f"got {f'{self.field} {self.comparison} {self.value}'!r:.200}"
        if self.comparison not in _COMPARE:
            raise ConfigError(f"comparison: expected one of {' '.join(_COMPARE)}, {got}")
        if self.field in _TEXTS:
            if self.comparison not in ("==", "!=") or not isinstance(self.value, str):
                raise ConfigError(f"comparison: {self.field} is a text: expected == or != and a text, {got}")
        elif self.field in _NUMBERS or (self.field.startswith(_VALUES) and self.field != _VALUES):
            if isinstance(self.value, str) or self.value != self.value:
                raise ConfigError(f"comparison: {self.field} is a number: expected a number after it, {got}")
        else:
            fields = ", ".join((*_TEXTS, *_NUMBERS))
            raise ConfigError(f"comparison: expected one of {fields}, or {_VALUES}NAME, {got}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the comparison of a text such as ``values.snr >= 7``.

        Raises
        ------
        ConfigError
            The text is not a comparison.
        """
        found = _COMPARISON.fullmatch(text)
        if found is None:
            raise ConfigError(f"comparison: expected FIELD>=VALUE (or <= == != > <), got {text!r:.200}")
        field, comparison, value = found.groups()
        if field in _TEXTS:
            return cls(field, comparison, value)
        try:
            return cls(field, comparison, float(value))
        except ValueError:
            return cls(field, comparison, value)  # raises, with the reason

    def holds(self, alert: Mapping[str, Any]) -> bool:
        """Return whether the comparison holds. It does not if the alert lacks the field."""
        if self.field.startswith(_VALUES):
            found = alert.get("values", {}).get(self.field.removeprefix(_VALUES))
        else:
            found = alert.get(self.field, "" if self.field in _TEXTS else None)
        return found is not None and _COMPARE[self.comparison](found, self.value)


class AlertFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects alerts. An alert must match all given parts.

    Raises
    ------
    ConfigError
        The severity does not exist.

    Examples
    --------
    >>> bright = AlertFilter(condition="transientDetected", fields=(Comparison.parse("values.snr >= 7"),))
    >>> failing = AlertFilter(source="receive/*", severity="ALARM")
    """

    condition: str = "*"
    """Name of a condition, or a pattern with ``*``, ``?`` and ``[...]``."""
    source: str = "*"
    """Name of a source, or a pattern of the same form."""
    severity: Severity | None = None
    """The lowest severity: INFO, WARNING, ALARM or CRITICAL; None for all."""
    fields: tuple[Comparison, ...] = ()
    """All of them must hold."""

    def __post_init__(self) -> None:
        if self.severity is not None and self.severity not in SEVERITIES:
            raise ConfigError(f"severity: expected one of {', '.join(SEVERITIES)}, got {self.severity!r:.100}")

    def wants(self, entry: FollowedAlert) -> bool:
        """Return whether the filter selects an entry.

        An operator's action has a condition and a source only. A filter with a severity or fields leaves it out.
        """
        alert = entry.alert
        about = entry.action if alert is None else alert
        if about is None or not self._names(about):
            return False
        if alert is None:
            return self.severity is None and not self.fields
        if self.severity is not None and SEVERITIES.index(alert["severity"]) < SEVERITIES.index(self.severity):
            return False
        return all(one.holds(alert) for one in self.fields)

    def _names(self, about: Mapping[str, Any]) -> bool:
        # fnmatchcase instead of fnmatch, which depends on the operating system.
        condition, source = str(about.get("condition", "")), str(about.get("source", ""))
        return fnmatchcase(condition, self.condition) and fnmatchcase(source, self.source)

"""Which groups of records a deployment has, and the numbers that stand for them while records are reduced."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from facade.codec.columns import Column as Column
from facade.config import Settings
from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import Plan

UNKNOWN = -1
"""Stands for every group that the deployment does not have."""


class Groups(Protocol):
    """The groups of one windowed topic."""

    def codes(self, columns: Mapping[str, Column], rows: int) -> Column:
        """Return the number of each record's group, or `UNKNOWN`; int64 of shape (rows,)."""

    def group(self, code: int) -> Group:
        """Return the group that a number stands for."""


def groups(plan: Plan, settings: Settings) -> Groups:
    """Return the groups that a deployment has."""
    rule = plan.window
    if rule.group is None:
        return OneGroup()
    known = plan.groups(settings)
    return NumberedGroups(rule.group, known) if isinstance(known, range) else NamedGroups(rule.group, plan)


class OneGroup:
    """All records belong together."""

    def codes(self, columns: Mapping[str, Column], rows: int) -> Column:
        """Return zeros; see `Groups`."""
        return np.zeros(rows, dtype=np.int64)

    def group(self, code: int) -> Group:
        """Return the group without a name."""
        return ""


class NumberedGroups:
    """Groups that are numbered without holes, such as the nodes."""

    def __init__(self, field: str, known: range) -> None:
        self._field, self._known = field, known

    def codes(self, columns: Mapping[str, Column], rows: int) -> Column:
        """Return the numbers themselves; see `Groups`."""
        column = columns[self._field]
        if not rows or (self._known.start <= column.min() and column.max() < self._known.stop):
            return column
        return np.where((column >= self._known.start) & (column < self._known.stop), column, UNKNOWN)

    def group(self, code: int) -> Group:
        """Return the number."""
        return code


class NamedGroups:
    """Groups with names, numbered as they come; at most as many as the ICD says."""

    def __init__(self, field: str, plan: Plan) -> None:
        self._field = field
        self._most = plan.window.most_groups
        self._names = list(plan.choices)
        self._codes = {name: code for code, name in enumerate(self._names)}

    def codes(self, columns: Mapping[str, Column], rows: int) -> Column:
        """Return the number of each name; see `Groups`."""
        return np.fromiter(map(self._code, columns[self._field]), np.int64, rows)

    def group(self, code: int) -> Group:
        """Return the name."""
        return self._names[code]

    def _code(self, name: str) -> int:
        code = self._codes.get(name)
        if code is None:
            if len(self._names) >= self._most:
                return UNKNOWN
            code = self._codes[name] = len(self._names)
            self._names.append(name)
        return code

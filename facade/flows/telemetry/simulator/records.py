"""Simulated records of any windowed topic, with plausible values by its schema, and an exact account of them.

Pure: no I/O, no clock. Each group sends in turn.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import Plan
from facade.icd.fields import bound, is_numeric, kind, properties

_WIDEST = 1000.0
"""Values are drawn from the lowest one that the schema allows to so much above it, unless a range is given."""
_EXACT = 2**53

Range = tuple[float, float]


class GroupAccount(msgspec.Struct):
    """What one group has sent."""

    count: int = 0
    sums: dict[str, int | float] = {}
    """Of each numeric field that is no time, sequence or epoch."""
    last: dict[str, int | float] = {}


class RecordStream:
    """Records of one windowed topic.

    Parameters
    ----------
    ranges
        Lowest and highest value by field, in the place of what the schema allows.
    """

    def __init__(
        self,
        plan: Plan,
        schema: Mapping[str, Any],
        groups: Sequence[Group],
        *,
        seed: int = 1,
        epoch: int = 1,
        ranges: Mapping[str, Range] | None = None,
    ) -> None:
        self.topic, self.plan, self.groups = plan.topic, plan, groups
        self.accounts = {group: GroupAccount() for group in groups}
        self.given = 0
        self._epoch = epoch
        self._dice = np.random.default_rng(seed)
        rule = plan.window
        fixed = {rule.time, rule.group, rule.sequence, rule.epoch}
        self._constants = {name: part["const"] for name, part in properties(dict(schema)).items() if "const" in part}
        self._free = {
            name: part for name, part in properties(dict(schema)).items() if name not in fixed | self._constants.keys()
        }
        self._ranges = dict(ranges or {})

    def take(self, count: int, now_us: int) -> tuple[list[bytes], list[bytes | None]]:
        """Return keys and values of the next records, all of the time given [Unix us], and count them."""
        keys: list[bytes] = []
        values: list[bytes | None] = []
        for _ in range(count):
            group = self.groups[self.given % len(self.groups)]
            keys.append(str(group).encode())
            values.append(msgspec.json.encode(self._record(group, now_us)))
            self.given += 1
        return keys, values

    def _record(self, group: Group, now_us: int) -> dict[str, Any]:
        rule, account = self.plan.window, self.accounts[group]
        own = {rule.time: now_us, rule.group: group, rule.sequence: account.count, rule.epoch: self._epoch}
        drawn = {name: self._draw(name, part) for name, part in self._free.items()}
        account.count += 1
        for name, value in drawn.items():
            if is_numeric(self._free[name]):
                account.sums[name] = account.sums.get(name, 0) + value
                account.last[name] = value
        return self._constants | drawn | {name: value for name, value in own.items() if name is not None}

    def _draw(self, name: str, part: dict[str, Any]) -> Any:
        if "enum" in part:
            return part["enum"][int(self._dice.integers(len(part["enum"])))]
        if not is_numeric(part):
            return bool(self._dice.integers(2)) if kind(part) == "boolean" else "simulated"
        low = max(bound(part, "minimum", 0.0), -_EXACT)
        low, high = self._ranges.get(name, (low, min(bound(part, "maximum", low + _WIDEST), low + _WIDEST)))
        if kind(part) == "integer":
            return int(self._dice.integers(round(low), round(high), endpoint=True))
        return float(self._dice.uniform(low, high))

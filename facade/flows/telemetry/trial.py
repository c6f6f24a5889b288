"""Reads one record of a windowed topic as a worker would, and keeps nothing; for `dead-letters redrive`."""

from collections.abc import Callable, Mapping
from typing import Any

from facade.bus.port import Record
from facade.codec.batches import BatchReader, Joined, Refused, is_batch
from facade.codec.columns import Column, ColumnDecoder
from facade.config import Settings
from facade.flows.telemetry.groups import groups
from facade.flows.telemetry.plan import Plan, plans
from facade.flows.telemetry.reduce import AppendTimes, sift
from facade.icd.model import Icd
from facade.outcome import LATE, USED, Outcome


def trials(icd: Icd, settings: Settings) -> Mapping[str, Callable[[Record], Outcome]]:
    """Return, for each windowed topic, the reading of one record; see `facade.manifest.Manifest.trials`."""
    return {topic: _Trial(plan, icd, settings).read for topic, plan in plans(icd).items()}


class _Trial:
    def __init__(self, plan: Plan, icd: Icd, settings: Settings) -> None:
        schema = icd.messages[plan.message]
        rule = plan.window
        self._plan, self._groups = plan, groups(plan, settings)
        self._decoder = ColumnDecoder(plan.message, schema)
        varying = [name for name in (rule.time, rule.sequence) if name is not None]
        self._batches = BatchReader(schema, varying) if "arrow" in icd.topics[plan.topic].encodings else None

    def read(self, record: Record) -> Outcome:
        if self._batches is not None and is_batch(record.value):
            batch = self._batches.read(record.value or b"", record.headers)
            if isinstance(batch, Refused):
                return batch.why
            joined = Joined(self._batches, [batch])
            return self._sift(joined, joined.rows, record.timestamp_us, joined.rejected)
        table = self._decoder.decode([record.value])
        if table.unused:
            return table.unused[0]
        return self._sift(table.columns, 1, record.timestamp_us, {})

    def _sift(self, columns: Mapping[str, Column], rows: int, appended_us: int, rejected: Mapping[int, Any]) -> Outcome:
        """Judge the rows of a record; it is rejected if each of them is."""
        sifted = sift(columns, self._plan, AppendTimes(appended_us, appended_us, lambda _: appended_us), self._groups)
        bad = dict(sifted.rejected) | dict(rejected)
        if len(bad) == rows:
            outcome: Outcome = bad[min(bad)]
            return outcome
        return LATE if sifted.late is not None and sifted.late.any() else USED

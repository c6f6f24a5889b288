"""Frames of columnar batches: a producer sums up its own batch, and workers fold the sums instead of the rows.

The frame is JSON in the header `frame` of the record (``batch-frame.schema.json``). The columns are as without it: who
does not know the header reads them, as archive and exports do.

* **A producer knows** the windows, counts, data times, sequence numbers and statistics of its rows. `BatchSums` finds
  them in the finished batch, by the code with which a worker reduces it. A batch with an invalid row gets no frame.
* **The worker decides** by the append time of the record whether rows are late or ahead. It folds a frame only if all
  its data times are in time. It reads the columns of other batches, of those of unknown nodes, and of those whose frame
  has other windows, other sketches or fewer statistics than its own ICD.
* **The worker recomputes** frames from the columns: the first one of each producer, a drawn share, and each that
  contradicts itself or its batch. If one differs, the worker reads the columns of all batches of that producer from
  then on, until it ends, and the account names the producer (`frameWrong` in ``conditions.toml``). So a producer that
  is always wrong changes no total. A producer that is rarely wrong may change totals until its error is found.
"""

import logging
from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from facade.flows.telemetry.consistency import MOST, go_back, hold_times
from facade.flows.telemetry.plan import Plan, plan
from facade.flows.telemetry.reduce import UNKNOWN, Batches, Groups, Sifted, combine
from facade.kernel import sketch
from facade.kernel.bus.port import PartitionBatch
from facade.kernel.clock import as_duration
from facade.kernel.codec.decode import BatchDecoder, Reason
from facade.kernel.icd.model import Icd
from facade.kernel.numbers import LARGEST, Natural
from facade.kernel.outcome import RecordRejected
from facade.kernel.printable import excerpt
from facade.kernel.sketch import largest_bucket
from facade.kernel.windows.frame import STATISTICS, Array, Counts, FieldArrays, Frame, Runs, merge
from facade.sdp.batches import FRAME, BatchReader, HeaderPairs, Joined, ReadBatch
from facade.sdp.columns import NumberField
from facade.sdp.messages import BatchFrame, PackedSketch, SummedField, SummedWindow

__all__ = ["BatchSums", "Folded", "SummedBatches", "sums_of"]

_LARGEST: Final = 65_536
"""Size above which a batch has no frame [bytes]: its rows are too scattered to be worth one."""
_ROUNDING: Final = 1e-9
"""Relative difference of sums in another order, or of another language."""
_MOST_PRODUCERS: Final = 10_000
"""Known producers; the next frame of one that was forgotten is recomputed as its first one."""
_WHOLE: Final = ("window", "count", "time_min", "time_max")
_MOST_FIRST: Final = 256
"""Producers whose first frame is recomputed in one run, as this takes ten times as long as reading the columns. The
columns of further ones are read, and their next frame is their first one."""
_COUNTS: Final = np.dtype("<u4")
"""Counts of a packed sketch."""
_OTHER_RULES: Final = "Object missing required field"
"""The decoder's words for a frame that lacks a statistic: its producer has an older ICD."""
_encode = msgspec.json.Encoder().encode
_log = logging.getLogger(__name__)


class BatchSums:
    """Sums up the columnar batches of one windowed topic by their columns."""

    def __init__(self, plan: Plan, reader: BatchReader) -> None:
        self._plan, self._reader = plan, reader
        rule = plan.window
        self._constants = {name for name in (rule.group, rule.epoch) if name is not None}
        self.form = {
            field.first_name: [
                name
                for name in STATISTICS
                if name in field.statistics and (name != "sketch" or rule.quantile_error is not None)
            ]
            for field in plan.fields
        }
        """Statistics of a frame, by field."""

    def with_frame(self, headers: HeaderPairs, value: bytes) -> HeaderPairs:
        """Return the headers of a batch, with its frame if it can have one."""
        batch = self._reader.read(value, headers)
        rows = self.rows(batch) if isinstance(batch, ReadBatch) else None
        if rows is None:
            return headers
        error = self._plan.window.quantile_error or 0.0
        text = _encode(BatchFrame(length=self._plan.length_us, quantile_error=error, partials=_partials(rows)))
        return headers if len(text) > _LARGEST else (*headers, (FRAME, text))

    def rows(self, batch: ReadBatch) -> Frame | None:
        """Return the frame of a batch, of group 0; None: one of its rows is invalid, or group or epoch no constant."""
        columns = Joined(self._reader, [batch])
        if columns.rejected or not self._constants <= batch.header.constants.keys():
            return None
        codes = np.zeros(batch.rows, dtype=np.int64)
        return combine(columns, self._plan, Sifted(codes, None, []), ()).frame


def sums_of(icd: Icd, topic: str) -> BatchSums:
    """Return what sums up the batches of a windowed topic."""
    rule = plan(icd, topic)
    return BatchSums(rule, Batches(rule, icd.messages[rule.message], ()).reader)


def _partials(rows: Frame) -> list[SummedWindow]:
    fields: list[dict[str, SummedField]] = [{} for _ in range(len(rows))]
    for name, one in rows.fields.items():
        columns = [
            _packed(found) if isinstance(found, Counts) else found.tolist()
            for found in (getattr(one, what) for what in one.form)
        ]
        for row, values in enumerate(zip(*columns, strict=True)):
            fields[row][name] = SummedField(**dict(zip(one.form, values, strict=True)))
    whole = (getattr(rows, name).tolist() for name in _WHOLE)
    return list(map(SummedWindow, *whole, rows.runs.as_lists(len(rows)), fields))


def _packed(counts: Counts) -> list[PackedSketch]:
    found, starts = [], np.flatnonzero(np.diff(counts.row, prepend=-1))
    for bucket, count in zip(np.split(counts.bucket, starts[1:]), np.split(counts.count, starts[1:]), strict=True):
        dense = np.zeros(bucket[-1] - bucket[0] + 1, dtype=_COUNTS)
        dense[bucket - bucket[0]] = count
        found.append(PackedSketch(int(bucket[0]), b64encode(dense.tobytes()).decode()))
    return found


def _unpacked(firsts: Sequence[int], counts: Sequence[bytes]) -> Counts:
    sizes = np.array([len(one) // _COUNTS.itemsize for one in counts])
    count = np.frombuffer(b"".join(counts), _COUNTS)
    row = np.repeat(np.arange(len(sizes)), sizes)
    begins = np.array(firsts) - np.cumsum(sizes) + sizes
    filled = np.flatnonzero(count)
    return Counts(row[filled], (np.arange(len(count)) + begins[row])[filled], count[filled].astype(np.int64))


class _Claim(NamedTuple):
    """The frame of a batch, as its producer claims it."""

    at: int
    """Place in the run."""
    batch: ReadBatch
    producer: str
    partials: Sequence[Any]
    """As `SummedWindow`, in the form of `_form`."""


class Folded(NamedTuple):
    """The batches of a run whose frames are used."""

    frame: Frame | None
    """Their rows, not merged; None: there are no such batches."""
    places: Collection[int]
    wrong: Sequence[str]
    """Texts about producers with wrong frames that are in no account yet."""


class SummedBatches:
    """Judges the frames of batches for a worker.

    Parameters
    ----------
    share
        Share of the frames that are recomputed.
    """

    def __init__(self, plan: Plan, reader: BatchReader, groups: Groups, share: float) -> None:
        self._sums, self._plan, self._groups, self._share = BatchSums(plan, reader), plan, groups, share
        self._named = reader.named
        self._numbers = attrgetter(*_WHOLE, *_paths(self._sums.form))
        self._sketched = [f"_{number}" for number, kept in enumerate(self._sums.form.values()) if "sketch" in kept]
        self._most_buckets = largest_bucket(plan.window.quantile_error or 0.5) + 1
        self._decode: Any = BatchDecoder(_form(plan, reader.named, self._sums.form)).decode_one
        self._dice = np.random.default_rng(0)
        self._known: dict[str, str] = {}
        """Text about a wrong frame of each producer; empty: none was. The one judged longest ago is first."""
        self._unsaid: set[str] = set()

    def fold(self, run: PartitionBatch, batches: Mapping[int, object]) -> Folded:
        """Sum up the batches whose frame can be used; `batches`: by their places in the run."""
        wrong: dict[str, None] = {}
        claims = self._claims(run, batches, wrong)
        folded = self._fold(run, claims, wrong) if claims else Folded(None, (), [*wrong])
        while len(self._known) > _MOST_PRODUCERS:  # not before: a producer that is forgotten counts as never wrong
            self._unsaid.discard(self._known.pop(next(iter(self._known))))
        return folded

    def _claims(self, run: PartitionBatch, batches: Mapping[int, object], wrong: dict[str, None]) -> list[_Claim]:
        claims, new = list[_Claim](), set[str]()
        for at, one in batches.items():
            if not isinstance(one, ReadBatch) or not one.frame or (claim := self._claim(run, at, one, wrong)) is None:
                continue
            if claim.producer not in self._known:
                if len(new) >= _MOST_FIRST and claim.producer not in new:
                    continue
                new.add(claim.producer)
            claims.append(claim)
        return claims

    def _fold(self, run: PartitionBatch, claims: Sequence[_Claim], wrong: dict[str, None]) -> Folded:
        rows = self._rows(claims)
        starts = np.cumsum([0, *(len(claim.partials) for claim in claims)])
        known = np.array([claim.producer in self._known for claim in claims])
        usable = self._are_in_time(run, claims, rows, starts[:-1])
        doubtful = self._contradict(claims, rows, starts[:-1]) | (self._dice.random(len(claims)) < self._share)
        for number in np.flatnonzero(usable & (~known | doubtful)).tolist():
            claim = claims[number]
            if self._known.get(claim.producer) or (claim.producer in self._known and not doubtful[number]):
                continue
            said = rows.rows(int(starts[number]), int(starts[number + 1]))
            self._note(run, claim, _difference(self._sums.rows(claim.batch), said), wrong)
        usable &= np.array([not self._known.get(claim.producer, "") for claim in claims])
        used = rows if usable.all() else rows.take(np.repeat(usable, np.diff(starts)))
        places = {claim.at for claim, is_usable in zip(claims, usable.tolist(), strict=True) if is_usable}
        return Folded(used if places else None, places, [*wrong])

    def said(self, texts: Collection[str]) -> None:
        """Note that an account with some texts is committed."""
        self._unsaid.difference_update(texts)

    def _claim(self, run: PartitionBatch, at: int, batch: ReadBatch, wrong: dict[str, None]) -> _Claim | None:
        constants, rule = batch.header.constants, self._plan.window
        if any(name is not None and name not in constants for name in (rule.group, rule.epoch)):
            return None
        producer = batch.header.producer or f"{self._plan.noun} {constants.get(rule.group or '', '')}"
        if text := self._known.get(producer):
            if text in self._unsaid:
                wrong[text] = None
            return None
        frame = self._decode(batch.frame)
        if isinstance(frame, RecordRejected):
            if frame.reason is not Reason.VERSION and not frame.detail.startswith(_OTHER_RULES):
                self._note(run, _Claim(at, batch, producer, ()), f"{frame.path}: {frame.detail}", wrong)
            return None
        claim = _Claim(at, batch, producer, frame.partials)
        if frame.length != self._plan.length_us or frame.quantile_error != (rule.quantile_error or 0.0):
            return None
        sketches = (getattr(one.fields, name).sketch for one in frame.partials for name in self._sketched)
        if any(len(one.counts) % 4 or one.first + len(one.counts) // 4 > self._most_buckets for one in sketches):
            self._note(run, claim, "sketch: expected counts of four bytes, of buckets up to 1e200", wrong)
            return None
        return claim

    def _rows(self, claims: Sequence[_Claim]) -> Frame:
        rule, partials = self._plan.window, [partial for claim in claims for partial in claim.partials]
        columns = iter(zip(*map(self._numbers, partials), strict=True))
        whole = {name: np.array(next(columns), dtype=np.int64) for name in _WHOLE}
        fields = {}
        for name, kept in self._sums.form.items():
            found = {what: np.array(next(columns)) for what in kept if what != "sketch"}
            sketches = _unpacked(next(columns), next(columns)) if "sketch" in kept else None
            fields[name] = FieldArrays(**found, sketch=sketches)
        runs = np.array([run for one in partials for run in one.runs], dtype=np.int64).reshape(-1, 2)
        groups = self._constants(claims, rule.group)
        return Frame(
            group=self._groups.codes({rule.group or "": groups}, len(groups)),
            epoch=self._constants(claims, rule.epoch),
            late=np.zeros(len(partials), dtype=np.bool_),
            runs=Runs(np.repeat(np.arange(len(partials)), [len(one.runs) for one in partials]), runs[:, 0], runs[:, 1]),
            fields=fields,
            **whole,
        )

    def _constants(self, claims: Sequence[_Claim], name: str | None) -> Array:
        """Return a field of each row that is a constant of its batch."""
        found = [0 if name is None else claim.batch.header.constants[name] for claim in claims]
        return np.repeat(np.array(found, dtype=np.int64), [len(claim.partials) for claim in claims])

    def _are_in_time(self, run: PartitionBatch, claims: Sequence[_Claim], rows: Frame, starts: Array) -> Array:
        appended = np.array([run.append_time(claim.at) for claim in claims], dtype=np.int64)
        oldest, newest = np.minimum.reduceat(rows.time_min, starts), np.maximum.reduceat(rows.time_max, starts)
        found = oldest >= appended - as_duration(self._plan.window.lateness)
        found &= newest <= appended + self._plan.rule.ahead_us
        known: Array = rows.group[starts] != UNKNOWN
        return found & known

    def _contradict(self, claims: Sequence[_Claim], rows: Frame, starts: Array) -> Array:
        """Return a mask of the claims that contradict themselves or the header of their batch."""
        plan, count, runs = self._plan, rows.count, rows.runs
        fits = hold_times(rows, plan)
        if plan.window.sequence is not None:
            numbers = np.bincount(runs.row, weights=runs.last - runs.first + 1, minlength=len(rows))
            fits &= (numbers >= 1) & (numbers <= count)
            fits[runs.row[go_back(runs)]] = False
        for field in plan.fields:
            one, error = rows.fields[field.first_name], plan.window.quantile_error
            fits &= _is_possible(one, self._named[field.name], count, error)
        sizes, nulls = zip(*((claim.batch.rows, bool(claim.batch.content.nulls)) for claim in claims), strict=True)
        found = ~np.logical_and.reduceat(fits, starts) | (np.add.reduceat(count, starts) != sizes)
        return np.array(found | nulls)

    def _note(self, run: PartitionBatch, claim: _Claim, difference: str, wrong: dict[str, None]) -> None:
        """Note what differs between the claim and the columns; empty text: nothing does."""
        text = ""
        if difference:
            where = f"{run.topic}, partition {run.partition}: offset {run.record(claim.at).offset}"
            text = excerpt(f"{where}, frame of {claim.producer}: {difference}")
            self._unsaid.add(text)
            wrong[text] = None
            _log.warning("frame wrong %s", text)
        self._known.pop(claim.producer, None)  # the newest verdict is forgotten last
        self._known[claim.producer] = text


def _form(plan: Plan, named: Mapping[str, NumberField], kept: Mapping[str, Sequence[str]]) -> type[msgspec.Struct]:
    """Return the struct of a frame that has at least some statistics, all within the bounds of the ICD."""
    sketch_form = msgspec.defstruct("Sketch", [("first", Natural), ("counts", bytes)], gc=False)
    fields = []
    for number, (field, wanted) in enumerate(zip(plan.fields, kept.values(), strict=True)):
        kind, most = (int, LARGEST) if field.integer else (float, MOST)
        low, high = max(named[field.name].low, -most), min(named[field.name].high, most)
        value: Any = Annotated[kind, Meta(ge=low, le=high)]
        kinds: dict[str, Any] = {
            **dict.fromkeys(("min", "max", "last"), value),
            "sum": Annotated[kind, Meta(ge=-most, le=most)],
            "m2": Annotated[float, Meta(ge=0, le=MOST * MOST)],
            "sketch": sketch_form,
        }
        made = msgspec.defstruct(field.name, [(name, kinds[name]) for name in wanted], gc=False)
        fields.append((f"_{number}", made))
    names = {f"_{number}": name for number, name in enumerate(kept)}
    statistics = msgspec.defstruct("Fields", fields, rename=names, gc=False)
    own = [(one.name, statistics if one.name == "fields" else one.type) for one in msgspec.structs.fields(SummedWindow)]
    partials: Any = list[msgspec.defstruct("Partial", own, gc=False)]  # type: ignore[misc]
    frame: Any = [
        ("length", int),
        ("partials", Annotated[partials, Meta(min_length=1)]),
        ("quantile_error", float, 0.0),
    ]
    return msgspec.defstruct("BatchFrame", frame, tag_field="schema", tag=BatchFrame.__struct_config__.tag)


def _paths(kept: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Return the paths of the numbers of a partial in the form of `_form`; a sketch is the last one of its field."""
    for number, names in enumerate(kept.values()):
        yield from (f"fields._{number}.{name}" for name in names if name != "sketch")
        if "sketch" in names:
            yield from (f"fields._{number}.sketch.{name}" for name in ("first", "counts"))


def _is_possible(one: FieldArrays, field: NumberField, count: Array, error: float | None) -> Array:
    """Return for each row whether some values within the limits of a field could have its statistics."""
    low, high = np.full(len(count), max(field.low, -MOST)), np.full(len(count), min(field.high, MOST))
    least = low if one.min is None else one.min.astype(np.float64)
    most = high if one.max is None else one.max.astype(np.float64)
    scale = np.maximum(abs(least), abs(most))
    slack = _ROUNDING * count * scale
    found: Array = least <= most
    if one.sum is not None:  # one value is the smallest, and one the largest
        found &= one.sum >= (count - 1) * least + (least if one.max is None else most) - slack
        found &= one.sum <= (count - 1) * most + (most if one.min is None else least) + slack
    if one.m2 is not None:  # Popoviciu's inequality
        found &= one.m2 <= count * (most - least) ** 2 / 4 + slack * scale
    if one.last is not None:
        found &= (least <= one.last) & (one.last <= most)
    if one.sketch is not None and error is not None:
        row, bucket = one.sketch.row, one.sketch.bucket
        found &= np.bincount(row, weights=one.sketch.count, minlength=len(count)) == count
        ends = np.searchsorted(row, np.arange(len(count) + 1))
        for limit, at in ((one.min, ends[:-1]), (one.max, ends[1:] - 1)):
            if limit is not None and len(row):
                found &= bucket[np.minimum(at, len(row) - 1)] == sketch.buckets(limit, error)
    return found


def _difference(own: Frame | None, said: Frame) -> str:
    """Return the first difference of the rows that a producer said from those of the columns; empty text: none."""
    if own is None:
        return "expected no frame, as a row is invalid"
    said = merge([said])
    for name in (*_WHOLE, "runs"):
        expected, got = (_as_lists(getattr(one, name), len(one)) for one in (own, said))
        if expected != got:
            return _text(name, expected, got)
    for name, mine in own.fields.items():
        scale = np.zeros(len(own)) if mine.sum is None else abs(mine.sum) / own.count
        for limit in (mine.min, mine.max):
            scale = scale if limit is None else np.maximum(scale, abs(limit))
        slack = _ROUNDING * own.count * scale
        for what in mine.form:
            found, claimed = getattr(mine, what), getattr(said.fields[name], what)
            if what in ("sum", "m2") and found.dtype.kind == "f":
                is_close = abs(found - claimed) <= (slack if what == "sum" else slack * scale)
                claimed = np.where(is_close, found, claimed)
            expected, got = (_as_lists(one, len(own)) for one in (found, claimed))
            if expected != got:
                return _text(f"fields.{name}.{what}", expected, got)
    return ""


def _as_lists(column: Array | Runs | Counts, rows: int) -> list[Any]:
    if isinstance(column, Runs):
        return column.as_lists(rows)
    return column.as_dicts(rows) if isinstance(column, Counts) else list(column.tolist())


def _text(name: str, expected: list[Any], got: list[Any]) -> str:
    """Return the expected and the claimed value of the first row that differs."""
    pairs: Any = [*zip(expected, got, strict=False), (expected, got)]
    mine, theirs = next(pair for pair in pairs if pair[0] != pair[1])
    if isinstance(mine, dict):  # of a sketch only the buckets that differ
        buckets = {bucket for bucket, _ in mine.items() ^ theirs.items()}
        mine, theirs = ({bucket: one.get(bucket, 0) for bucket in sorted(buckets)} for one in (mine, theirs))
    return f"{name}: expected {mine!s:.100} by the columns, got {theirs!s:.100}"

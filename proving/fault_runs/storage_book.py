"""The book of the storage fault run: what devices show, held against what the producer knows and the log has."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

_OFFSETS = re.compile(r"([\w.-]+), partition (\d+)[:,] offsets (\d+) to (\d+)")
_WHOLE = re.compile(r"made again|ends before")
"""Says of a whole topic that it is another one, or of a whole log that its end was lost."""
NAMES = re.compile(f"{_OFFSETS.pattern}|{_WHOLE.pattern}")
"""Lines of Status and of alarms that name a deviation."""
_WORD = re.compile(r"[\w-]+(?:\.\w+)*")


class Verdict(StrEnum):
    """What became of a total when something was done to the storage."""

    EXACT = "exact"
    UNREAD = "lost unread"
    BEHIND = "behind, and said so"
    NAMED = "named"
    WHOLE = "named as a whole"
    SILENT = "silent"


_ORDER = (Verdict.EXACT, Verdict.UNREAD, Verdict.BEHIND, Verdict.NAMED, Verdict.WHOLE, Verdict.SILENT)
"""From the best to the worst: the verdict of several totals is that of the worst."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One total, after one act."""

    total: str
    wrong: int
    """By how much it is too large, or, below 0, too small."""
    lost: int
    """Confirmed records that the log does not have."""
    missing: int
    """Those of them that are not counted."""
    is_behind: bool = False
    """Whether SdpBus says that records are not taken yet."""
    topics: tuple[str, ...] = ()
    """Only what is said of one of them names a deviation of this total. The first is that of the records that are
    counted."""

    def named(self, lines: Iterable[str]) -> float:
        """Return how many of its records lines name; infinite: a whole topic, or records that stand for many."""
        offsets: dict[str, set[int]] = {}
        for line in filter(self.is_about, lines):
            ranges = [one for one in _OFFSETS.findall(line) if one[0] in self.topics]
            if any(topic != self.topics[0] for topic, *_ in ranges) or (not ranges and _WHOLE.search(line)):
                return math.inf
            for _, partition, first, last in ranges:
                offsets.setdefault(partition, set()).update(range(int(first), int(last) + 1))
        return sum(map(len, offsets.values()))

    def verdict(self, lines: Iterable[str]) -> "Verdict":
        """Return what became of the total, by what was said of it."""
        if self.wrong < 0 and self.is_behind:
            return Verdict.BEHIND
        named = self.named(lines)
        if self.wrong:
            found = Verdict.NAMED if named >= abs(self.wrong) else Verdict.SILENT
        elif self.missing:
            found = Verdict.NAMED if named >= self.missing else Verdict.UNREAD
        else:
            return Verdict.EXACT
        return Verdict.WHOLE if found is Verdict.NAMED and named == math.inf else found

    def is_about(self, line: str) -> bool:
        """Return whether a line says something of one of its topics."""
        ranges = _OFFSETS.findall(line)
        return bool(
            {one[0] for one in ranges} & set(self.topics) if ranges else set(_WORD.findall(line)) & set(self.topics)
        )


@dataclass(slots=True)
class Ledger:
    """One total that devices show, and what is known of the records that it counts."""

    topic: str
    seen: Counter[bytes] = field(default_factory=Counter)
    """How often each value stood on the log at any time; once, of those given up as lost. A device server that is
    killed may raise an alert once more in the same words."""
    shown: int = 0
    """What devices showed at the last time."""
    owed: int = 0
    """Records of which it was told that they are missing; they may still be counted."""

    def judge(self, confirmed: set[bytes], on_log: Mapping[bytes, int], shown: int) -> tuple[int, int, int]:
        """Return what is wrong with what is shown now; see `Finding`.

        What the producer knows to be confirmed and the log does not have may have been read before it was lost, so
        either is right: the producer's total, the log's, and what is between them.
        """
        new = self._new(on_log)
        lost = confirmed - self.seen.keys() - on_log.keys()
        grown = shown - self.shown
        wrong = min(grown - new, 0) or max(grown - new - len(lost) - self.owed, 0)
        return wrong, len(lost), 0 if wrong else new + len(lost) - grown

    def close(self, confirmed: set[bytes], on_log: Mapping[bytes, int], shown: int) -> None:
        """Begin the next comparison here."""
        wrong, _, _ = self.judge(confirmed, on_log, shown)
        made_good = min(max(shown - self.shown - self._new(on_log), 0), self.owed)
        self.owed += max(-wrong, 0) - made_good
        self.seen |= Counter(on_log) | Counter(confirmed)
        self.shown = shown

    def _new(self, on_log: Mapping[bytes, int]) -> int:
        return sum(max(times - self.seen[value], 0) for value, times in on_log.items())


@dataclass(slots=True)
class Book:
    """Verdicts by act, and the deviations in words."""

    verdicts: dict[str, Counter[Verdict]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    unread: int = 0
    """Records that the broker confirmed and lost before any reader had them: no reader can know."""

    def enter(self, acts: Sequence[tuple[str, str]], findings: Sequence[Finding], said: Sequence[str]) -> Verdict:
        """Judge the acts since the last judgement.

        Parameters
        ----------
        acts
            The name of each, and what it did.
        said
            What SdpBus and the alarms have said since then, with partition and offsets.
        """
        label = " + ".join(f"{act} ({did})" for act, did in acts)
        verdict = Verdict.EXACT
        if not findings:
            verdict = Verdict.SILENT
            self.silent.append(f"{label}: no total could be read")
        for one in findings:
            news = [line for line in said if one.is_about(line)]
            verdict = max(verdict, one.verdict(news), key=_ORDER.index)
            if one.wrong and one.verdict(news) is not Verdict.BEHIND:
                text = f"{label}: {one.total} wrong by {one.wrong:+,}, {one.lost} lost by the log"
                self.lines.append(f"{text}; named: {' | '.join(news) or 'nothing'}")
                if one.verdict(news) is Verdict.SILENT:
                    self.silent.append(text)
            self.unread += 0 if one.wrong else one.missing
        for act, _ in acts:
            self.verdicts.setdefault(act, Counter())[verdict] += 1
        return verdict

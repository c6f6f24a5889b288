"""How a dead letter is shown: as a line of a table, or as a document."""

import base64
from collections import Counter, deque
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from facade.bus.dead_letters import original
from facade.bus.port import Record
from facade.bus.redrive import Letter, Origin, Selection, read_letter


class Listing:
    """Dead letters of a kind: all of them counted, the newest ones kept.

    Parameters
    ----------
    limit
        Most that are kept.
    """

    def __init__(self, selection: Selection, limit: int) -> None:
        self._selection = selection
        self.newest: deque[Letter] = deque(maxlen=limit)
        self.strange = 0
        """Records that are no dead letters of the facade's."""
        self.redriven: set[Origin] = set()
        self._letters: Counter[tuple[str, str]] = Counter()
        self._reasons: dict[Origin, str] = {}

    def add(self, record: Record) -> None:
        """Take a record of `dead-letters`."""
        letter = read_letter(record)
        if letter is None:
            self.strange += 1
        elif letter.is_mark:
            self.redriven.add(letter.origin)
        elif self._selection.has(letter):
            self.newest.append(letter)
            self._letters[letter.origin.topic, letter.reason] += 1
            self._reasons[letter.origin] = letter.reason

    def counts(self) -> list[dict[str, str | int]]:
        """Return by topic and reason, the most frequent first: letters, records that they are about, and put back.

        There are fewer records than letters where several device servers read a topic, as each of them writes one, and
        where one was killed before it had noted how far it was, and wrote some again.
        """
        records = Counter((origin.topic, reason) for origin, reason in self._reasons.items())
        back = Counter((origin.topic, reason) for origin, reason in self._reasons.items() if origin in self.redriven)
        return [
            {"topic": kind[0], "reason": kind[1], "letters": n, "records": records[kind], "put back": back[kind]}
            for kind, n in self._letters.most_common()
        ]


def _time(time_us: int) -> str:
    try:
        return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (OverflowError, ValueError, OSError):
        return "-"


COLUMNS = ("time (UTC)", "letter", "record", "reason", "path", "detail", "by")


def line(letter: Letter, redriven: Collection[Origin]) -> list[str]:
    """Return a row of the table with `COLUMNS`."""
    partition, offset = letter.place
    reason = f"{letter.reason} (put back)" if letter.origin in redriven else letter.reason
    time = _time(letter.written_us)[:-8]
    return [time, f"{partition}:{offset}", str(letter.origin), reason, letter.path, letter.detail[:80], letter.by]


def described(letter: Letter) -> dict[str, Any]:
    """Return what it says, without the record."""
    return {
        "letter": "{}:{}".format(*letter.place),
        "time": _time(letter.written_us),
        **{name: getattr(letter.origin, name) for name in ("topic", "partition", "offset")},
        **{name: getattr(letter, name) for name in ("reason", "path", "detail", "by", "size")},
    }


def document(record: Record) -> dict[str, Any]:
    """Return all of it; bytes as text where they are UTF-8, else as base64."""
    letter, whole = read_letter(record), original(record)
    said = described(letter) if letter is not None else {"letter": f"{record.partition}:{record.offset}"}
    headers = [{"name": name, **(_bytes(raw) or {})} for name, raw in whole.headers]
    return {**said, "key": _bytes(whole.key), "headers": headers, "value": _bytes(whole.value)}


def _bytes(raw: bytes | None) -> dict[str, str] | None:
    if raw is None:
        return None
    try:
        return {"encoding": "utf-8", "data": raw.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", "data": base64.b64encode(raw).decode()}

"""Bad records, made of good ones; each follows from its seed and number, so that it can be had again by itself."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from proving.fuzz.good import Document, Good

LEVELS: Final = 100_000
LARGEST: Final = 10_000_000
"""Of a value [bytes]."""

_NUMBERS: Final = (
    *("0", "-0", "-1", "1", "0.5", "-0.0", "2147483648", "9007199254740991", "9007199254740992", "9223372036854775807"),
    *("9223372036854775808", "18446744073709551616", "-9223372036854775809", "1e308", "1e400", "-1e400", "1e-400"),
    *("NaN", "Infinity", "-Infinity", "1" + "0" * 400, "253402300800000000", "-62135596800000001", "1.0", "1E2"),
)
_OTHERS: Final = (
    "null",
    "true",
    "[]",
    "{}",
    '""',
    '"x"',
    "[[[]]]",
    '{"a":{"a":1}}',
    '"\\ud800"',
    '"\\u0000"',
    "nul",
    "",
)
_TEXTS: Final = (
    *("\x1b[2J\x1b[31m", "\x00", "\x9b31m", "a\nb", "\u202e", "\u2028", "[red]", "[/]", "{}", "%s%n", "../../x"),
    *("a" * 201, "é" * 2001, "\U0001f600" * 100, "'; --", "ﷺ" * 50, "\x7f\x80\x85"),
)
_MARK: Final = "@raw@"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the way to everything in a document but itself."""
    for name, entry in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, name)
        if isinstance(entry, dict | list):
            yield from places(entry, (*path, name))


def mutated(chance: Random, document: Document) -> bytes | None:
    """Return the wire form of a document with something wrong in it; sometimes it is right all the same."""
    made: bytes | None = chance.choices(_KINDS, _WEIGHTS)[0](chance, document)
    return made


def _put(chance: Random, document: Document, raw: str) -> bytes:
    """Return a document with a piece of JSON, or of something else, at a random place."""
    place = chance.choice(list(places(document)))
    text = json.dumps(_with(document, place, _MARK), ensure_ascii=chance.random() < 0.5)
    return text.replace(f'"{_MARK}"', raw).encode(errors="surrogatepass")


def _with(value: Any, path: tuple[Any, ...], entry: Any) -> Any:
    if not path:
        return entry
    made = value.copy()
    made[path[0]] = _with(value[path[0]], path[1:], entry)
    return made


def _number(chance: Random, document: Document) -> bytes:
    return _put(chance, document, chance.choice(_NUMBERS))


def _other(chance: Random, document: Document) -> bytes:
    return _put(chance, document, chance.choice(_OTHERS))


def _text(chance: Random, document: Document) -> bytes:
    return _put(chance, document, json.dumps(chance.choice(_TEXTS), ensure_ascii=chance.random() < 0.5))


def _half(chance: Random, document: Document) -> bytes:
    """Put half of a character in, as three bytes that are no UTF-8."""
    return _put(chance, document, '"\ud83d"')


def _deep(chance: Random, document: Document) -> bytes:
    opening, closing = chance.choice([("[", "]"), ('{"a":', "}")])
    return _put(chance, document, opening * LEVELS + "1" + closing * LEVELS)


def _large(chance: Random, document: Document) -> bytes:
    size = chance.choice([100_000, 1_100_000, LARGEST])
    return _put(chance, document, chance.choice([f'"{"x" * size}"', f"[{'0,' * (size // 2)}0]"]))


def _without(chance: Random, document: Document) -> bytes:
    gone = chance.choice(list(document))
    return json.dumps({name: entry for name, entry in document.items() if name != gone}).encode()


def _more(chance: Random, document: Document) -> bytes:
    return json.dumps({**document, chance.choice([*_TEXTS, "unknown"]): 1}).encode()


def _twice(chance: Random, document: Document) -> bytes:
    name = chance.choice(list(document))
    return (
        b"{"
        + json.dumps({name: chance.choice([0, "x", None])})[1:-1].encode()
        + b","
        + json.dumps(document)[1:].encode()
    )


def _version(chance: Random, document: Document) -> bytes:
    return json.dumps({**document, "schema": chance.choice(["heap/2", "", "alert/1", 1])}).encode()


def _flipped(chance: Random, document: Document) -> bytes:
    return flipped(chance, json.dumps(document).encode())


def flipped(chance: Random, content: bytes) -> bytes:
    """Return bytes of which some are others, or of which some are gone or there twice."""
    made = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        made[at : at + chance.choice([0, 1, 1, 8])] = chance.randbytes(chance.choice([0, 1, 1, 4]))
    return bytes(made)


def _cut(chance: Random, document: Document) -> bytes:
    text = json.dumps(document).encode()
    return text[: chance.randrange(len(text))]


def _junk(chance: Random, document: Document) -> bytes:
    return chance.randbytes(chance.choice([0, 1, 10, 1000]))


def _nothing(chance: Random, document: Document) -> None:
    return None


_WEIGHTED: Final[dict[Callable[[Random, Document], bytes | None], float]] = {
    _number: 30, _other: 15, _text: 20, _half: 2, _deep: 0.05, _large: 0.02, _without: 5, _more: 3, _twice: 3,
    _version: 3, _flipped: 10, _cut: 5, _junk: 2, _nothing: 1,
}  # fmt: skip
_KINDS, _WEIGHTS = list(_WEIGHTED), list(_WEIGHTED.values())


def spoilt(chance: Random, record: Good, document: Document) -> tuple[Good, bytes | None]:
    """Return a record with something wrong in it, and its value.

    What it is says a header, if it has one: then that is wrong, or is missing or there twice, or the bytes are wrong.
    """
    key = record.key if chance.random() < 0.9 else chance.choice([b"", b"\xff", b"0", chance.randbytes(8)])
    if not record.headers:
        return record._replace(key=key), mutated(chance, document)
    ((name, text),) = record.headers
    wrong = mutated(chance, document) or b""
    if chance.random() < 0.4:
        return record._replace(key=key), flipped(chance, record.value)
    headers = chance.choice([((name, wrong),), ((name, wrong),), (), ((name, text), (name, wrong)), (("x", wrong),)])
    return record._replace(key=key, headers=headers), record.value if chance.random() < 0.9 else None

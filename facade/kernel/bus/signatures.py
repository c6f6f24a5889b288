"""Signatures: the proof that a record comes from a controller of its device.

Theory of operation
-------------------
Brokers give rights on whole topics, and all controllers of a site write `command-acks`, `state` and `orders`: one order
of all outcomes needs one topic. A deployment may therefore have keys, each for some devices. Only device servers and
the controllers of these devices have a key. With the key, a process signs each record about such a device, and refuses
unsigned ones. Without a key for a device, nothing is signed or refused.

An order is said about one device in the name of another one, so it has two proofs. `signature` has the key of the
ordered device, and `parent-signature` the key of the device whose command gives the order.

The header `signature` is the HMAC-SHA256 of topic, key and value in hexadecimal digits. A record that is put on its
topic again has a valid signature. It must therefore change nothing by its content: the first outcome of a command
counts, and an older state does not.

A key has its time, by the brokers' clock in the append time of a record, which no writer chooses. So the log from
before the first key stays readable, and one key follows another without a stop: both are valid for a while, and the
newest signs.
"""

import hmac
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, NamedTuple

from facade.kernel.bus.port import Headers, Record
from facade.kernel.clock import Time, as_time
from facade.kernel.config import ControllerKey
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import RecordRejected

HEADER: Final = "signature"
PARENT_HEADER: Final = "parent-signature"
"""Of an order: signed with the key of the device that executes its parent."""
SIGNATURE: Final = "signature"
"""Reason of a record that is not signed as its device demands."""
_PARTS: Final = 3
"""Parts of the name of a device, with which the keys of signed records begin."""


def signed_topics(icd: Icd) -> list[str]:
    """Return the topics whose records are signed."""
    return [name for name, topic in icd.topics.items() if "signed" in topic.traits]


class _Key(NamedTuple):
    since: Time
    until: Time
    devices: str
    key: bytes

    def sign(self, record: Record) -> bytes:
        signed = b"\n".join((record.topic.encode(), record.key or b"", record.value or b""))
        return hmac.digest(self.key, signed, "sha256").hex().encode()


class Signatures:
    """Signs and checks records by the keys of a deployment; may be used from several threads.

    Parameters
    ----------
    topics
        Topics whose records are signed; the keys of their records begin with the name of a device.
    """

    def __init__(self, keys: Sequence[ControllerKey], topics: Collection[str]) -> None:
        all_ = [
            _Key(as_time(one.since.timestamp()), as_time(one.until.timestamp()), one.devices, one.key.encode())
            for one in keys
        ]
        newest_first = sorted(all_, reverse=True)

        @lru_cache(maxsize=10_000)
        def keys_of(device: str) -> tuple[_Key, ...]:
            return tuple(one for one in newest_first if fnmatchcase(device, one.devices))

        self._keys_of, self._topics = keys_of, frozenset(topics if keys else ())

    def covers(self, record: Record) -> bool:
        """Return whether there is a key for the device of a record."""
        return record.topic in self._topics and bool(self._keys_of(_device(record.key)))

    def sign(self, record: Record, now: Time) -> Headers:
        """Return the headers of a record, signed if there is a key for it at the time `now`."""
        return self._signed(record, HEADER, _device(record.key), now)

    def sign_order(self, order: Record, parent_device: str, now: Time) -> Headers:
        """Return the headers of an order, signed for the device that executes its parent if there is a key for that."""
        return self._signed(order, PARENT_HEADER, parent_device, now)

    def refusal(self, record: Record) -> RecordRejected | None:
        """Return the rejection of a record that no controller of its device has signed; None: it counts."""
        return self._refusal(record, HEADER, _device(record.key))

    def order_refusal(self, order: Record, parent_device: str) -> RecordRejected | None:
        """Return the rejection of an order that no controller of its parent's device has signed; None: it counts."""
        return self._refusal(order, PARENT_HEADER, parent_device)

    def _signed(self, record: Record, name: str, device: str, now: Time) -> Headers:
        if record.topic in self._topics:
            for one in self._keys_of(device):
                if one.since <= now <= one.until:
                    others = (header for header in record.headers if header[0] != name)
                    return (*others, (name, one.sign(record)))
        return record.headers

    def _refusal(self, record: Record, name: str, device: str) -> RecordRejected | None:
        keys = self._keys_of(device) if record.topic in self._topics else ()
        appended = record.timestamp_us
        if not keys or appended < keys[-1].since:
            return None
        found = [value for header, value in record.headers if header == name]
        wanted = (one.sign(record) for one in keys if one.since <= appended <= one.until)
        if found and any(hmac.compare_digest(found[-1], one) for one in wanted):
            return None
        what = f"expected the signature of a controller of {device}, got {'another one' if found else 'none'}"
        return RecordRejected(SIGNATURE, f"headers.{name}", what)


def _device(record_key: bytes | None) -> str:
    return "/".join((record_key or b"").decode(errors="replace").split("/")[:_PARTS])


UNSIGNED: Final = Signatures((), ())
"""Of a deployment without keys."""

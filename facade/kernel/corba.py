"""Whether a CORBA object is there, by a LocateRequest on an own socket.

Tango's own question takes up to 9 s for a process that stands still, and holds Python's lock meanwhile. A process that
stands still takes connections and answers nothing, so a connection alone proves nothing.
"""

import socket
import struct
from enum import Enum
from typing import NamedTuple

DATABASE = b"database"
"""Key of the Tango database at its address."""

_INTERNET = 0
"""Tag of a profile with a host and a port."""
_LOCATE_REQUEST = b"GIOP\x01\x00\x01\x03"
"""GIOP 1.0, little-endian, message 3."""
_REPLY_SIZE = 20
"""Of a LocateReply: its header (12 octets), the number of the request, and the status."""
_UNKNOWN_OBJECT = bytes(4)
"""Status, in either order of bytes: the server does not have the object."""


class Located(Enum):
    """The answer to the question whether an object is at an address."""

    HERE = "a server answers that it has the object"
    GONE = "the address refuses connections, or belongs to another CORBA server"
    SILENT = "it takes no connection or gives no answer in time"


class ObjectAddress(NamedTuple):
    """Where a CORBA object is."""

    host: str
    port: int
    key: bytes


class Encapsulation:
    """Reads CORBA's encoding of a structure: its first byte tells the order of bytes, and numbers are aligned."""

    def __init__(self, data: bytes, skipped: int = 0) -> None:
        self._data, self._at, self._order = data, 1 + skipped, "<" if data[0] else ">"

    def number(self, form: str = "I") -> int:
        """Read a number; `form`: see `struct`."""
        size = struct.calcsize(form)
        self._at += -self._at % size
        (value,) = struct.unpack_from(self._order + form, self._data, self._at)
        self._at += size
        return int(value)

    def octets(self) -> bytes:
        """Read a sequence of octets or a string with its final zero."""
        size = self.number()
        self._at += size
        return self._data[self._at - size : self._at]


def read_ior(ior: str) -> ObjectAddress | None:
    """Return the address in a reference to an object (``IOR:...``); None: it has none that can be read."""
    try:
        whole = Encapsulation(bytes.fromhex(ior[4:]))
        whole.octets()  # the type
        profiles = [(whole.number(), whole.octets()) for _ in range(whole.number())]
        profile = Encapsulation(next(body for tag, body in profiles if tag == _INTERNET), skipped=2)  # its version
        return ObjectAddress(profile.octets()[:-1].decode(), profile.number("H"), profile.octets())
    except (ValueError, IndexError, struct.error, StopIteration):
        return None


def locate(address: ObjectAddress, within: float) -> Located:
    """Ask the server at an address whether it has the object.

    Parameters
    ----------
    within
        Longest time of each step [s].
    """
    question = struct.pack("<II", 1, len(address.key)) + address.key
    try:
        with socket.create_connection((address.host, address.port), timeout=within) as connection:
            connection.sendall(_LOCATE_REQUEST + struct.pack("<I", len(question)) + question)
            with connection.makefile("rb") as answer:
                reply = answer.read(_REPLY_SIZE)
    except ConnectionRefusedError:
        return Located.GONE
    except (OSError, OverflowError):
        return Located.SILENT
    if reply[:4] != _LOCATE_REQUEST[:4] or len(reply) < _REPLY_SIZE:
        return Located.SILENT
    return Located.GONE if reply.endswith(_UNKNOWN_OBJECT) else Located.HERE


def is_database(tango_host: str, within: float) -> bool:
    """Return whether a Tango database answers at an address, ``host:port``."""
    host, _, port = tango_host.strip().rpartition(":")
    if not host or not port.isdecimal():
        return False
    return locate(ObjectAddress(host, int(port), DATABASE), within) is Located.HERE

"""Whether a CORBA object is there, and whether a Tango database serves, by messages on an own socket.

Tango's own question takes up to 9 s for a process that stands still, and holds Python's lock meanwhile. A process that
stands still takes connections and answers nothing, so a connection alone proves nothing. A LocateRequest asks whether a
server has an object. A Tango database also has it while its MariaDB is away, so it is asked for something from its
tables, by a request such as Tango sends.
"""

import socket
import struct
from enum import Enum
from typing import NamedTuple

DATABASE = b"database"
"""Key of the Tango database at its address."""

_COMMAND, _ARGUMENT = b"DbGetDeviceExportedList\0", b"sys/database/2\0"
"""A command that each Tango database has, and that reads its tables: a list of one device, or of none."""
_INTERNET = 0
"""Tag of a profile with a host and a port."""
_LOCATE_REQUEST = b"GIOP\x01\x00\x01\x03"
"""GIOP 1.0, little-endian, message 3."""
_REQUEST = b"GIOP\x01\x00\x01\x00"
_HEADER_SIZE, _BODY_SIZE = 12, 1024
"""Of a message, and how much of its body is read: the status comes early."""
_STRING = 18
"""Code of the type of an argument."""
_UNKNOWN_OBJECT = _NO_EXCEPTION = 0
"""Status of the answer to a LocateRequest, and to a request."""


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
    try:
        answer = _ask(address, _LOCATE_REQUEST, _encoded(1, address.key), within)
        answer.number()  # of the request
        return Located.GONE if answer.number() == _UNKNOWN_OBJECT else Located.HERE
    except ConnectionRefusedError:
        return Located.GONE
    except (OSError, OverflowError, ValueError, struct.error):
        return Located.SILENT


def is_database(tango_host: str, within: float) -> bool:
    """Return whether a Tango database at an address, ``host:port``, answers from its tables.

    Parameters
    ----------
    within
        Longest time of each step [s].
    """
    host, _, port = tango_host.strip().rpartition(":")
    if not host or not port.isdecimal():
        return False
    # No contexts, number 1, a reply is expected; the octets behind the operation are the principal, and 0 the bound.
    body = _encoded(0, 1, 1, DATABASE, b"command_inout\0", b"", _COMMAND, _STRING, 0, _ARGUMENT)
    try:
        answer = _ask(ObjectAddress(host, int(port), DATABASE), _REQUEST, body, within)
        for _ in range(answer.number()):  # contexts
            answer.number(), answer.octets()
        answer.number()  # of the request
        return answer.number() == _NO_EXCEPTION
    except (OSError, OverflowError, ValueError, struct.error):
        return False


def _encoded(*parts: int | bytes) -> bytes:
    """Return numbers, and sequences of octets or strings with their final zero, in CORBA's encoding."""
    body = b""
    for part in parts:
        body += bytes(-len(body) % 4)
        body += struct.pack("<I", part) if isinstance(part, int) else struct.pack("<I", len(part)) + part
    return body


def _ask(address: ObjectAddress, start: bytes, body: bytes, within: float) -> Encapsulation:
    """Send a message that begins with `start`, and return the body of the answer."""
    with socket.create_connection((address.host, address.port), timeout=within) as connection:
        connection.sendall(start + struct.pack("<I", len(body)) + body)
        with connection.makefile("rb") as answer:
            header = answer.read(_HEADER_SIZE)
            order, kind = header[6:8]
            if header[:4] != _REQUEST[:4] or kind != start[7] + 1:
                raise ValueError(header)
            (size,) = struct.unpack("<I" if order else ">I", header[8:])
            # Numbers are aligned from the start of the message, 12 octets earlier; 4 octets in front do the same.
            return Encapsulation(bytes([order, 0, 0, 0]) + answer.read(min(size, _BODY_SIZE)))

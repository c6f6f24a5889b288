"""Headers whose names are not UTF-8, which the Python client can neither write nor read.

Such a name is a text with surrogates here: ``"\\udcff"`` is the byte 0xff (PEP 383).
"""

import ctypes
from collections.abc import Iterable

from confluent_kafka import Message, Producer, cimpl

from facade.kernel.bus.port import Record

_C = ctypes.CDLL(cimpl.__file__)
_HANDLE = object.__basicsize__
"""Place of the C library's handle in a Python client: `Handle` in confluent_kafka.h."""
_HEADERS = object.__basicsize__ + 4 * ctypes.sizeof(ctypes.c_void_p)
"""Place of the headers in a message, as the client has them until somebody asks for them: `Message`, there."""
_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _HEADER = 1, 3, 4, 5, 7, 9
"""`rd_kafka_vtype_t` in rdkafka.h."""
_COPY = 2


class _Part(ctypes.Structure):
    """`rd_kafka_vu_t`: the kind of a part of a record, and up to three words."""

    _fields_ = (("kind", ctypes.c_int), ("words", ctypes.c_uint64 * 8))


_C.rd_kafka_headers_new.restype = ctypes.c_void_p
_C.rd_kafka_headers_new.argtypes = [ctypes.c_size_t]
_C.rd_kafka_header_add.argtypes = [
    *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_ssize_t, ctypes.c_char_p, ctypes.c_ssize_t)
]
_C.rd_kafka_produceva.restype = ctypes.c_void_p
_C.rd_kafka_produceva.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Part), ctypes.c_size_t]
_C.rd_kafka_error_string.restype = ctypes.c_char_p
_C.rd_kafka_error_string.argtypes = [ctypes.c_void_p]

Names = Iterable[tuple[str, bytes | None]]


def raw_name(name: str) -> bytes:
    """Return the bytes of a header's name."""
    return name.encode(errors="surrogateescape")


def are_foreign(headers: Names) -> bool:
    """Return whether a name is not UTF-8."""
    return any("\udc80" <= one <= "\udcff" for name, _ in headers for one in name)


def give(message: Message, headers: Names) -> Message:
    """Give a message without headers some, in the form that it has when it comes from a broker."""
    found = _C.rd_kafka_headers_new(8)
    for name, value in headers:
        raw = raw_name(name)
        _C.rd_kafka_header_add(found, raw, len(raw), value, -1 if value is None else len(value))
    ctypes.c_void_p.from_address(id(message) + _HEADERS).value = found
    return message


def produce(producer: Producer, topic: str, record: Record) -> None:
    """Queue a record with headers of any name."""
    parts, kept = [], []

    def add(kind: int, *words: bytes | int) -> None:
        held = [ctypes.create_string_buffer(one, len(one) + 1) if isinstance(one, bytes) else one for one in words]
        kept.append(held)
        addresses = [one if isinstance(one, int) else ctypes.addressof(one) for one in held]
        parts.append(_Part(kind, (*addresses, *[0] * (8 - len(addresses)))))

    add(_TOPIC, topic.encode())
    add(_FLAGS, _COPY)
    if record.partition >= 0:
        add(_PARTITION, record.partition)
    for kind, raw in ((_VALUE, record.value), (_KEY, record.key)):
        if raw is not None:
            add(kind, raw, len(raw))
    for name, raw in record.headers:
        add(_HEADER, raw_name(name), 0 if raw is None else raw, 0 if raw is None else len(raw))
    handle = ctypes.c_void_p.from_address(id(producer) + _HANDLE)
    error = _C.rd_kafka_produceva(handle, (_Part * len(parts))(*parts), len(parts))
    assert not error, _C.rd_kafka_error_string(error)

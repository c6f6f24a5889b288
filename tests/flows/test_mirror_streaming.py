"""Mirrored values in the forms of ESS, read by ESS's own library."""

from typing import Any

import numpy as np
import pytest
from streaming_data_types import deserialise_al00, deserialise_f144
from streaming_data_types.alarm_al00 import Severity

from facade.flows.mirror.messages import TelescopeAttribute
from facade.flows.mirror.streaming import STREAMING, forms_of
from facade.kernel.bus.port import Record
from facade.kernel.config import Settings
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load

NAME = "mid-dish/dish-manager/ska001/azimuth"


def said(number: int, **more: Any) -> TelescopeAttribute:
    base: dict[str, Any] = {"name": NAME, "number": number, "time": 1_795_282_430_808_302, "type": "DevDouble"}
    return TelescopeAttribute(
        **{**base, "value": 1.5, "quality": "VALID", "connection": "CONNECTED", "by": "EVENT", **more}
    )


def written(*messages: TelescopeAttribute, forms: str) -> list[bytes]:
    """Return what is written of records."""
    make = forms_of(Settings(mirror_forms=forms))
    found = [record for message in messages for record in make(message)]
    assert {(one.topic, one.key) for one in found} <= {(STREAMING, NAME.encode())}
    return [one.value or b"" for one in found]


@pytest.mark.parametrize(
    ("kind", "value", "wanted", "dtype"),
    [
        ("DevDouble", 1.5, 1.5, "float64"),
        ("DevDouble", "NaN", np.nan, "float64"),
        ("DevDouble", [1.0, "-Infinity"], [1.0, -np.inf], "float64"),
        ("DevFloat", [0.5, 2.0], [0.5, 2.0], "float32"),
        ("DevULong64", 2**64 - 1, 2**64 - 1, "uint64"),
        ("DevLong64", -(2**63), -(2**63), "int64"),
        ("DevLong", [1, -2], [1, -2], "int32"),
        ("DevUShort", 65535, 65535, "uint16"),
        ("DevUChar", [0, 255], [0, 255], "uint8"),
        ("DevEnum", 2, 2, "int16"),
        ("DevBoolean", True, 1, "uint8"),
    ],
    ids=str,
)
def test_a_number_or_a_spectrum_is_what_the_library_reads(kind: str, value: Any, wanted: Any, dtype: str) -> None:
    """With the type that the device gives it, and its time."""
    (one,) = written(said(1, value=value, type=kind), forms="f144")
    found = deserialise_f144(one)
    assert (found.source_name, found.timestamp_unix_ns) == (NAME, 1_795_282_430_808_302_000)
    assert np.array_equal(found.value, wanted, equal_nan=dtype.startswith("float"))
    if isinstance(value, list):
        assert found.value.dtype == dtype


@pytest.mark.parametrize(
    "more",
    [
        {"value": "Vela", "type": "DevString"},
        {"value": "ON", "type": "DevState"},
        {"value": [[1, 2], [3, 4]], "type": "DevLong"},
        {"value": {"format": "raw", "data": "AP8="}, "type": "DevEncoded"},
        {"value": None, "quality": "INVALID"},
        {"connection": "DISCONNECTED", "quality": "INVALID"},
    ],
    ids=str,
)
def test_what_f144_cannot_have_is_left_out(more: dict[str, Any]) -> None:
    """A value of before is none while the device is away."""
    assert written(said(1, **more), forms="f144") == []


def test_an_alarm_is_written_when_it_changes_and_as_a_sign_of_life() -> None:
    """The severity is that of the quality; without a connection there is none."""
    away = {"connection": "DISCONNECTED", "quality": "INVALID", "error": "nobody answers"}
    messages = [
        said(1),
        said(2),
        said(3, quality="WARNING"),
        said(4, quality="ALARM"),
        said(5, **away),
        said(5, **away),
    ]
    found = [deserialise_al00(one) for one in written(*messages, forms="al00")]
    assert [(one.severity, one.message) for one in found] == [
        (Severity.OK, "VALID"),
        (Severity.MINOR, "WARNING"),
        (Severity.MAJOR, "ALARM"),
        (Severity.INVALID, "nobody answers"),
        (Severity.INVALID, "nobody answers"),
    ]
    assert {(one.source, one.timestamp_ns) for one in found} == {(NAME, 1_795_282_430_808_302_000)}


def test_only_what_the_settings_choose_is_written() -> None:
    """Both forms stand on one topic; the bytes say which is which."""
    assert written(said(1), forms="") == []
    assert [one[4:8] for one in written(said(1), forms="f144, al00")] == [b"f144", b"al00"]
    with pytest.raises(ConfigError, match=r"SDP_MIRROR_FORMS.*'hs00'"):
        forms_of(Settings(mirror_forms="hs00"))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(__import__("sys").modules, "streaming_data_types", None)
    with pytest.raises(ConfigError, match=r"pip install 'sdp-tango-facade\[streaming\]'"):
        forms_of(Settings(mirror_forms="al00"))


@pytest.mark.needs("sdp_facade_clients")
def test_the_conformance_kit_finds_what_is_no_form_of_ess() -> None:
    """By the identifier of the flatbuffer."""
    from sdp_facade_clients.conformance.devices import find_unknown_flatbuffers

    good = list(forms_of(Settings(mirror_forms="f144,al00"))(said(1)))
    bad = [Record(topic=STREAMING, key=b"a", value=b'{"value": 1.5}'), Record(topic=STREAMING, key=b"a", value=None)]
    assert [record for record, _ in find_unknown_flatbuffers(load(), [*good, *bad])] == bad

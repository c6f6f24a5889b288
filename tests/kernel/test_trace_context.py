"""The trace context: from record headers to what runs, and back."""

import sys
from types import ModuleType

import pytest

from facade.kernel import tracing

PARENT = (("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("other", b"x"))


@pytest.mark.needs("telemetry")
def test_a_span_goes_on_with_the_trace_of_the_headers(monkeypatch):
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    monkeypatch.setattr(trace, "get_tracer", TracerProvider().get_tracer)
    with tracing.span("Configure", PARENT, id="1"):
        ((name, value),) = tracing.current()
    assert name == "traceparent"
    version, trace_id, span_id, _ = value.decode().split("-")
    assert (version, trace_id) == ("00", "0af7651916cd43dd8448eb211c80319c")
    assert span_id != "b7ad6b7169203331", "a span of its own"


def test_without_a_trace_nothing_is_made_and_nothing_travels():
    with tracing.span("Configure", (("other", b"x"),)):
        assert tracing.current() == ()


def test_headers_that_make_no_sense_harm_nothing():
    for value in (b"", b"nonsense", b"\xff\xfe", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"):
        with tracing.span("Configure", (("traceparent", value),)):
            pass


def test_without_the_library_nothing_is_made(monkeypatch):
    monkeypatch.setattr(tracing, "_LIBRARY", "no_such_library")
    assert not tracing.enabled({"TANGO_TELEMETRY_ENABLE": "on"})
    assert tracing.current() == ()
    with tracing.span("Configure", PARENT):
        pass


def test_messages_of_the_protocol_alone_are_no_library(monkeypatch):
    """The extra logs has only the package ``opentelemetry.proto``."""
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", ModuleType("opentelemetry"))
    sys.modules["opentelemetry"].__path__ = []
    assert not tracing.enabled({"TANGO_TELEMETRY_ENABLE": "on"})
    assert tracing.current() == ()
    with tracing.span("Configure", PARENT):
        assert tracing.current() == ()


def test_it_is_off_by_default():
    assert not tracing.enabled({})
    assert not tracing.enabled({"TANGO_TELEMETRY_ENABLE": "off"})


@pytest.mark.needs("telemetry")
def test_tangos_own_variable_enables_it():
    assert tracing.enabled({"TANGO_TELEMETRY_ENABLE": "on"})

"""One trace from the Tango call to the acknowledgement, if OpenTelemetry is installed and enabled; otherwise nothing.

The switch and the exporter are PyTango's own variables, so that one set of them serves device servers
and controllers: TANGO_TELEMETRY_ENABLE=on, TANGO_TELEMETRY_TRACING_ENDPOINTS (OTLP over HTTP). The trace
context travels in the W3C header ``traceparent`` of commands, states and acknowledgements.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from facade.kernel.bus.port import Headers
from facade.kernel.names import DISTRIBUTION

TRACED = ("traceparent", "tracestate")
"""Headers that are passed on from a command to all its consequences."""
_SCOPE = DISTRIBUTION
_LIBRARY = "opentelemetry.trace"
"""A module of the extra telemetry, imported only for tracing: it takes a quarter of the start of a process. Messages of
OTLP share the name above it, and come with another extra."""
_TRACE_ID = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-")


def enabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether tracing is enabled and possible."""
    wanted = environment.get("TANGO_TELEMETRY_ENABLE", "off").lower() in ("on", "1", "true")
    return wanted and _is_installed()


def _is_installed() -> bool:
    try:
        return find_spec(_LIBRARY) is not None
    except ModuleNotFoundError:  # nor any other package of that name
        return False


def start(service: str, environment: Mapping[str, str] = os.environ) -> None:
    """Export the spans of this module; PyTango exports those of Tango's calls.

    Parameters
    ----------
    service
        Name under which the process appears.
    """
    if not enabled(environment):
        return
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    endpoint = environment.get("TANGO_TELEMETRY_TRACING_ENDPOINTS", "").split(",")[0] or None
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(provider)


def trace_id(headers: Headers) -> str:
    """Return the id of the trace in some headers; empty: there is none."""
    found = _TRACE_ID.match(dict(headers).get("traceparent", b"").decode("latin-1"))
    return found[1] if found else ""


def current() -> Headers:
    """Return the present trace context as record headers."""
    if _LIBRARY not in sys.modules:  # there is no span
        return ()
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return tuple((name, value.encode()) for name, value in carrier.items() if name in TRACED)


@contextmanager
def span(name: str, headers: Headers, **tags: str) -> Iterator[None]:
    """Make the enclosed work a part of the trace in some headers; without one, of none."""
    carrier = {name: value.decode("latin-1") for name, value in headers if name in TRACED}
    if not carrier or not _is_installed():
        yield
        return
    from opentelemetry import propagate, trace

    with trace.get_tracer(_SCOPE).start_as_current_span(name, propagate.extract(carrier), attributes=tags):
        yield

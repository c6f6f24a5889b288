"""Hands the trace of a Tango call on to the bus, where PyTango's OpenTelemetry support is switched on."""

from facade.bus.port import Headers

try:
    from opentelemetry import propagate
except ImportError:  # an extra: pip install 'pytango[telemetry]'
    propagate = None


def trace_headers() -> Headers:
    """Give the W3C trace context of the running Tango call as record headers; nothing without telemetry."""
    if propagate is None:
        return ()
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return tuple((name, value.encode()) for name, value in carrier.items() if name in ("traceparent", "tracestate"))

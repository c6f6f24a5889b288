"""The accounts of this process as Prometheus counters, where a port is given for them."""

import os
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from facade.counters import StreamAccount
from facade.errors import ConfigError

VARIABLE = "SDP_METRICS_PORT"
"""Environment variable with the port; unset: no metrics."""

ADDRESS_VARIABLE = "SDP_METRICS_ADDRESS"
"""Environment variable with the address to listen on; unset: this machine alone may ask. In a container: 0.0.0.0."""

_OUTCOMES = ("used", "late", "suppressed", "dead_lettered")


class _Accounts(Collector):
    def __init__(self, accounts: Mapping[str, StreamAccount]) -> None:
        self._accounts = accounts

    def collect(self) -> Iterator[Metric]:
        """Give one sample per stream and outcome."""
        consumed = CounterMetricFamily("sdp_stream_consumed_records", "Records taken.", labels=["stream"])
        outcomes = CounterMetricFamily(
            "sdp_stream_outcome_records", "What became of the records taken.", labels=["stream", "outcome"]
        )
        in_flight = GaugeMetricFamily("sdp_stream_in_flight_records", "Not yet accounted for.", labels=["stream"])
        reasons = CounterMetricFamily(
            "sdp_stream_unused_records", "Dead-lettered and suppressed records.", labels=["stream", "reason"]
        )
        for stream, account in self._accounts.items():
            consumed.add_metric([stream], account.consumed)
            in_flight.add_metric([stream], account.in_flight)
            for outcome in _OUTCOMES:
                outcomes.add_metric([stream, outcome], getattr(account, outcome))
            for reason, count in dict(account.reasons).items():
                reasons.add_metric([stream, reason], count)
        yield from (consumed, outcomes, in_flight, reasons)


def serve_metrics(accounts: Mapping[str, StreamAccount]) -> None:
    """Serve the accounts over HTTP if `SDP_METRICS_PORT` is set.

    Raises
    ------
    ConfigError
        The port is no number or is taken, or the address is none of this machine.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return
    address = os.environ.get(ADDRESS_VARIABLE) or "127.0.0.1"
    registry = CollectorRegistry()
    registry.register(_Accounts(accounts))
    try:
        start_http_server(int(text), addr=address, registry=registry)
    except (ValueError, OSError, OverflowError) as error:
        raise ConfigError(f"{VARIABLE}={text} on {address}: expected a free port number, got: {error}") from error

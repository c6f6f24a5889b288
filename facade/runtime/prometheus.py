"""The accounts of a process as Prometheus shows them; apart from `metrics`, as most processes serve none."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from facade.runtime.accounts import StreamAccount
from facade.runtime.metrics import Gauge

_OUTCOMES = ("used", "late", "suppressed", "dead_lettered")


class _Accounts(Collector):
    def __init__(self, accounts: Mapping[str, StreamAccount], gauges: Sequence[Gauge]) -> None:
        self._accounts, self._gauges = accounts, gauges

    def collect(self) -> Iterator[Metric]:
        """Return one sample per stream and outcome, and one per gauge."""
        consumed = CounterMetricFamily("sdp_stream_consumed_records", "Records taken for good.", labels=["stream"])
        outcomes = CounterMetricFamily(
            "sdp_stream_outcome_records", "What became of the records taken.", labels=["stream", "outcome"]
        )
        in_flight = GaugeMetricFamily("sdp_stream_in_flight_records", "Not yet accounted for.", labels=["stream"])
        uncommitted = GaugeMetricFamily(
            "sdp_stream_uncommitted_records", "Taken, and not yet committed: may come again.", labels=["stream"]
        )
        reasons = CounterMetricFamily(
            "sdp_stream_unused_records", "Dead-lettered and suppressed records.", labels=["stream", "reason"]
        )
        for stream, account in self._accounts.items():
            consumed.add_metric([stream], account.consumed)
            in_flight.add_metric([stream], account.in_flight)
            uncommitted.add_metric([stream], account.uncommitted)
            for outcome in _OUTCOMES:
                outcomes.add_metric([stream, outcome], getattr(account, outcome))
            for reason, count in dict(account.reasons).items():
                reasons.add_metric([stream, reason], count)
        yield from (consumed, outcomes, in_flight, uncommitted, reasons)
        for gauge in self._gauges:
            family = GaugeMetricFamily(gauge.name, gauge.about, labels=[*gauge.labels])
            family.add_metric([*gauge.labels.values()], gauge.value())
            yield family


def serve(accounts: Mapping[str, StreamAccount], gauges: Sequence[Gauge], port: int, address: str) -> None:
    """Serve accounts and gauges over HTTP.

    Raises
    ------
    OSError, OverflowError
        The port is taken or none, or the address is none of this machine.
    """
    registry = CollectorRegistry()
    registry.register(_Accounts(accounts, gauges))
    start_http_server(port, addr=address, registry=registry)

"""The accounts of this process as Prometheus counters, if a port is configured.

prometheus_client is imported late: most processes serve no metrics, and each start would wait for the import.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from facade.kernel.errors import ConfigError
from facade.kernel.names import SHORT, VARIABLES
from facade.kernel.runtime.accounts import RunningAccount

if TYPE_CHECKING:
    from prometheus_client.core import Metric

VARIABLE = f"{VARIABLES}METRICS_PORT"
"""Environment variable with the port; unset: no metrics."""

ADDRESS_VARIABLE = f"{VARIABLES}METRICS_ADDRESS"
"""Environment variable with the address to listen on; unset: this machine only. In a container: 0.0.0.0."""

_OUTCOMES = ("used", "late", "suppressed", "dead_lettered")


Figures = Mapping[Any, float]
"""Figures of one metric, by tuples of the values of its labels."""


class MetricFamily(NamedTuple):
    """A metric beside the accounts."""

    name: str
    """Prometheus appends ``_total`` to the name of a counter."""
    about: str
    labels: tuple[str, ...]
    figures: Callable[[], Figures]
    """Called from any thread, so the mapping that it returns must not change later."""
    is_counter: bool = False


def serve_metrics(accounts: Mapping[str, RunningAccount], families: Sequence[MetricFamily] = ()) -> None:
    """Serve the accounts, and other figures, over HTTP if `VARIABLE` is set.

    Raises
    ------
    ConfigError
        The port is no number or is taken, or the address does not belong to this machine.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return
    address = os.environ.get(ADDRESS_VARIABLE) or "127.0.0.1"
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.registry import Collector

    class Accounts(Collector):
        def collect(self) -> "Iterator[Metric]":
            return _samples(accounts, families)

    registry = CollectorRegistry()
    registry.register(Accounts())
    try:
        start_http_server(int(text), addr=address, registry=registry)
    except (ValueError, OSError, OverflowError) as error:
        raise ConfigError(f"{VARIABLE}={text} on {address}: expected a free port number, got: {error}") from error


def _samples(accounts: Mapping[str, RunningAccount], families: Sequence[MetricFamily]) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    consumed = CounterMetricFamily(f"{SHORT}_stream_consumed_records", "Records taken for good.", labels=["stream"])
    outcomes = CounterMetricFamily(
        f"{SHORT}_stream_outcome_records", "What became of the records taken.", labels=["stream", "outcome"]
    )
    in_flight = GaugeMetricFamily(f"{SHORT}_stream_in_flight_records", "Not yet accounted for.", labels=["stream"])
    uncommitted = GaugeMetricFamily(
        f"{SHORT}_stream_uncommitted_records", "Taken, and not yet committed: may come again.", labels=["stream"]
    )
    reasons = CounterMetricFamily(
        f"{SHORT}_stream_unused_records", "Dead-lettered and suppressed records.", labels=["stream", "reason"]
    )
    for stream, account in accounts.items():
        consumed.add_metric([stream], account.consumed)
        in_flight.add_metric([stream], account.in_flight)
        uncommitted.add_metric([stream], account.uncommitted)
        for outcome in _OUTCOMES:
            outcomes.add_metric([stream, outcome], getattr(account, outcome))
        for reason, count in dict(account.reasons).items():
            reasons.add_metric([stream, reason], count)
    yield from (consumed, outcomes, in_flight, uncommitted, reasons)
    for one in families:
        kind = CounterMetricFamily if one.is_counter else GaugeMetricFamily
        family = kind(one.name, one.about, labels=one.labels)
        for labels, figure in one.figures().items():
            family.add_metric(labels, figure)
        yield family

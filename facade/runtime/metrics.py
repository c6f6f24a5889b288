"""The accounts of this process as Prometheus counters, where a port is given for them."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from facade.errors import ConfigError
from facade.runtime.accounts import StreamAccount

VARIABLE = "SDP_METRICS_PORT"
"""Environment variable with the port; unset: no metrics."""

ADDRESS_VARIABLE = "SDP_METRICS_ADDRESS"
"""Environment variable with the address to listen on; unset: this machine alone may ask. In a container: 0.0.0.0."""


class Gauge(NamedTuple):
    """A figure beside the accounts."""

    name: str
    about: str
    labels: Mapping[str, str]
    value: Callable[[], float]
    """Asked from any thread."""


def serve_metrics(accounts: Mapping[str, StreamAccount], gauges: Sequence[Gauge] = ()) -> None:
    """Serve the accounts, and other figures, over HTTP if `SDP_METRICS_PORT` is set.

    Raises
    ------
    ConfigError
        The port is no number or is taken, or the address is none of this machine.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return
    address = os.environ.get(ADDRESS_VARIABLE) or "127.0.0.1"
    from facade.runtime.prometheus import serve  # the import takes time that a restart need not

    try:
        serve(accounts, gauges, int(text), address)
    except (ValueError, OSError, OverflowError) as error:
        raise ConfigError(f"{VARIABLE}={text} on {address}: expected a free port number, got: {error}") from error

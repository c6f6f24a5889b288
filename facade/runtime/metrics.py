"""The accounts of this process as Prometheus counters, where a port is given for them."""

import os
from collections.abc import Mapping

from facade.errors import ConfigError
from facade.runtime.accounts import StreamAccount

VARIABLE = "SDP_METRICS_PORT"
"""Environment variable with the port; unset: no metrics."""

ADDRESS_VARIABLE = "SDP_METRICS_ADDRESS"
"""Environment variable with the address to listen on; unset: this machine alone may ask. In a container: 0.0.0.0."""


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
    from facade.runtime.prometheus import serve  # the import takes time that a restart need not

    try:
        serve(accounts, int(text), address)
    except (ValueError, OSError, OverflowError) as error:
        raise ConfigError(f"{VARIABLE}={text} on {address}: expected a free port number, got: {error}") from error

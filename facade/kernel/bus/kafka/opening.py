"""Opens the bus of the deployment that the environment names: for programs that use the SDKs."""

from collections.abc import Callable
from typing import Self

from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.port import Record, Writer
from facade.kernel.clock import Clock
from facade.kernel.config import Settings, load_client_settings

CONFIRMED_WITHIN = 5.0
"""Default of the longest wait for the bus [s]."""


def open_bus(client: str, settings: Settings | None = None, *, clock: Clock | None = None) -> KafkaBus:
    """Open the bus of a deployment. Several producers of one process may share it.

    Parameters
    ----------
    client
        Name of the program, for the logs of the brokers.
    settings
        The deployment. By default the environment and the settings file give it.
    clock
        Replacement of the system's clock, for tests.

    Raises
    ------
    ConfigError
        No broker is configured, or a setting is wrong.

    Examples
    --------
    >>> bus = open_bus("receive-0007")
    >>> alerts = AlertSource("receive/0007", bus.writer())
    >>> blocks = BlockSource("receive-0007", bus.writer().send)
    >>> bus.writer().close(5.0)
    """
    return KafkaBus(Connection(settings or load_client_settings(), clock=clock), client=client)


class OwnBus:
    """The base of sources and producers: it opens a bus of its own, unless it is given a writer.

    The own bus has the settings of the environment. `close` closes it, and so does the end of a ``with`` block. A given
    writer, such as ``open_bus(...).writer()``, stays open.

    Raises
    ------
    ConfigError
        No broker is configured, or a setting is wrong.
    """

    _own: Writer | None = None

    def _open(self, client: str) -> Writer:
        self._own = open_bus(client.replace("/", "-")).writer()
        return self._own

    def _open_durable(self, client: str) -> Callable[[Record], None]:
        writer = self._open(client)
        return lambda record: writer.send_durably(record, CONFIRMED_WITHIN)

    def close(self, timeout: float = CONFIRMED_WITHIN) -> None:
        """Wait for queued records, at most `timeout` [s]. A given writer stays open."""
        if self._own is not None:
            self._own.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""The errors that users of the package may catch.

Bad *data* is never an exception (it is a result, see ``facade.kernel.codec``); these errors are for wrong
configuration, a wrong ICD, an absent service, or a mistake of the caller.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class FacadeError(Exception):
    """Base of all errors that this package raises on purpose."""


class IcdError(FacadeError):
    """The ICD (TOML, JSON Schema) is wrong; the message names the file and the key."""


class ConfigError(FacadeError):
    """A setting is missing or wrong; the message has its name and origin."""


class BusError(FacadeError):
    """Kafka refused or did not answer; the message names the attempt and the remedy."""


class InfraError(FacadeError):
    """A local service could not be installed, started or stopped."""


class NotSent(BusError):
    """A record is surely not on the bus, and will not be; the message has the reason."""


class OutcomeUnknown(BusError):
    """A record may be on the bus, or still come there; the message has details."""


class CommandRefused(FacadeError):
    """A command was refused, and nothing was changed.

    Parameters
    ----------
    reason
        Tango's word for the kind of refusal (``API_CommandNotAllowed``, ``API_CommandFailed``).
    text
        Expected and present value.
    origin
        Origin of the refusal.
    faults
        Each fault separately, if there are several; the text has all of them in one line, for logs.
    """

    def __init__(self, reason: str, text: str, origin: str, faults: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.reason = reason
        self.origin = origin
        self.faults = faults


class ArgumentError(FacadeError):
    """The argument of a command is wrong; the message names the key, and the expected and the present value.

    Parameters
    ----------
    faults
        One such sentence for each fault.
    """

    def __init__(self, *faults: str) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the disk into a `ConfigError` about the file that is written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error

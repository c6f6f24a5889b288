"""The errors that users of the package may catch.

Bad *data* is never an exception (it is a result, see ``facade.codec``); these are for wrong
configuration, a wrong ICD, an absent service, or a mistake of the caller.
"""


class FacadeError(Exception):
    """Base of all errors that this package raises on purpose."""


class IcdError(FacadeError):
    """The ICD (TOML, JSON Schema) is wrong; the message names the file and the key."""


class ConfigError(FacadeError):
    """A setting is missing or wrong; the message names it and where it came from."""


class BusError(FacadeError):
    """Kafka refused or did not answer; the message says what was tried and what to do."""


class InfraError(FacadeError):
    """A local service could not be installed, started or stopped."""

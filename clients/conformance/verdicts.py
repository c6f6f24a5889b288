"""How a check ends that does not pass."""

import tango

from facade.errors import FacadeError


class Mismatch(AssertionError):
    """The system is not as the ICD says.

    Parameters
    ----------
    expected
        What the ICD says, in words.
    got
        What the system has.
    """

    def __init__(self, expected: object, got: object) -> None:
        super().__init__(f"expected {expected}, got {got}")
        self.expected, self.got = str(expected), str(got)


class NotShown(Exception):
    """Nothing can be said here; the text says why. Never to be taken for a pass."""


def in_words(error: Exception) -> str:
    """Say what was expected and came, where the system gave cause for an error."""
    if isinstance(error, Mismatch):
        return str(error)
    if isinstance(error, tango.DevFailed):
        return f"expected an answer, got {error.args[0].reason}: {error.args[0].desc}"
    if isinstance(error, FacadeError):
        return f"expected an answer, got {error}"
    return f"expected something that can be understood, got {type(error).__name__}: {error}"

"""How a check ends that does not pass."""


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

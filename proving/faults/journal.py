"""What callers write down of their calls: one line each, so that nothing is lost with a process. No Tango, no bus."""

from pathlib import Path
from typing import Literal

import msgspec

Answer = Literal["given", "refused", "not sent", "unknown", "no answer"]


class CallLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a command."""

    device: str
    command: str
    called: float
    """[Unix s]."""
    seconds: float
    """Until there was an answer, or an error instead."""
    answer: Answer
    id: str = ""
    """Where the answer, or the error, has one."""
    text: str = ""
    """The error."""
    transaction_id: str = ""
    """Of the argument, if it has one."""
    again: bool = False
    """Whether the call repeats one whose answer was lost or unknown, with the same transaction_id."""


def read_calls(path: Path) -> list[CallLine]:
    """Return all calls so far; a line that is being written is left for the next time."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=CallLine) for line in lines if line.endswith(b"\n")]

"""A history of commands, and its judge: the checker Porcupine, with the model in ``proving/porcupine/model.go``.

The history has what clients saw: each call with its answer, each value that was read, and each look at the outcome of a
command, with its times. The judge finds an order of all these operations that respects the times, and that the
interface allows; or it says that there is none. It shares no code with the facade.
"""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from facade.errors import InfraError

_SOURCE = Path(__file__).parent / "porcupine"
_WITHIN = 600.0
_LINEARIZABLE, _NOT_LINEARIZABLE = 0, 1


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation of a history, as ``proving/porcupine/main.go`` reads it."""

    client: int
    device: str
    call: int
    """[Unix us]."""
    returned: int | None = msgspec.field(name="return", default=None)
    """[Unix us]; None: the operation may have happened at any later time."""
    input: dict[str, Any]
    output: dict[str, Any] = {}


def has_judge() -> bool:
    """Return whether Go is there, with which the judge is built."""
    return shutil.which("go") is not None


def judge(operations: Iterable[Operation], folder: Path) -> str:
    """Return why a history is not linearizable, or an empty text.

    The history is ``history.jsonl`` in the folder, beside the picture of what is wrong.

    Raises
    ------
    InfraError
        The judge cannot be built, or gives no judgement.
    """
    program, history = folder / "porcupine", folder / "history.jsonl"
    history.write_bytes(msgspec.json.Encoder().encode_lines(operations))
    build = subprocess.run(
        ["go", "build", "-o", str(program.absolute()), "."], cwd=_SOURCE, text=True, capture_output=True, check=False
    )
    if build.returncode:
        raise InfraError(f"the judge of histories cannot be built:\n{build.stderr}")
    words = [program.absolute(), history, folder / "history.html"]
    judged = subprocess.run(words, text=True, capture_output=True, check=False, timeout=_WITHIN)
    if judged.returncode not in (_LINEARIZABLE, _NOT_LINEARIZABLE):
        raise InfraError(f"the judge of histories gives no judgement: {judged.stderr}")
    return judged.stderr.strip()

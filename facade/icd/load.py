"""Loads the interface: reads it, checks it, and refuses it with everything that is wrong at once.

Loading is quick, because every device server does it at its start. What needs the JSON Schema
library (whether each schema is itself a legal one) is left to ``icd check`` and to the tests.
"""

from functools import cache
from pathlib import Path

from facade.errors import IcdError
from facade.icd.check import check
from facade.icd.finding import Finding
from facade.icd.model import Icd
from facade.icd.read import read
from facade.resources import resource


def load(folder: Path | None = None) -> Icd:
    """Load and check the interface; without a folder, the shipped one, which is loaded once.

    Raises
    ------
    IcdError
        Something is wrong; one line per finding, each with file, key, what was expected and got.
    """
    return _shipped() if folder is None else _load(folder)


@cache
def _shipped() -> Icd:
    return _load(None)


def _load(folder: Path | None) -> Icd:
    icd, findings = inspect(folder)
    if icd is None or findings:
        raise IcdError("\n".join(map(str, findings)))
    return icd


def inspect(folder: Path | None = None, *, thorough: bool = False) -> tuple[Icd | None, list[Finding]]:
    """Return the interface, as far as it can be read, and what is wrong with it.

    Parameters
    ----------
    folder
        Where ``icd/``, ``messages/`` and ``commands/`` are; None: the shipped ones.
    thorough
        Also run the checks that are too slow for the start of a server.
    """
    icd, findings = read(folder or resource("schemas"))
    return icd, findings if icd is None else check(icd, thorough=thorough)

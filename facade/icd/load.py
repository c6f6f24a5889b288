"""Loads the interface: reads it, checks it, and refuses it with all its mistakes at once.

The interface consists of the files of this distribution, and of those of each flow installed beside it: see
`facade.manifest.Manifest.interface`.

Loading is quick, because every device server does it at its start. Checks with the JSON Schema library (whether each
schema is itself valid) are left to ``icd check`` and to the tests.
"""

import io
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

from msgspec.structs import replace

from facade.errors import ConfigError, IcdError
from facade.icd.check_classes import check_attributes, check_classes
from facade.icd.check_topics import check_legality, check_schemas, check_topics
from facade.icd.checks import IcdFinding
from facade.icd.model import Icd
from facade.icd.read import read
from facade.manifest import manifests
from facade.resources import resource


def check(icd: Icd, *, thorough: bool = False) -> list[IcdFinding]:
    """Return the findings of all rules; the thorough ones, for ``icd check`` and the tests, need a slow library."""
    checks = (check_classes, check_attributes, check_topics, check_schemas, *((check_legality,) if thorough else ()))
    return [finding for one in checks for finding in one(icd)]


def load(folder: Path | None = None) -> Icd:
    """Load and check the interface of a folder; without one, the installed interface, which is loaded once.

    Raises
    ------
    IcdError
        There are mistakes; one line per finding, each with file, key, expected and present value.
    """
    return _installed() if folder is None else _load(folder)


@cache
def _installed() -> Icd:
    return _load(None)


def _load(folder: Path | None) -> Icd:
    icd, findings = inspect(folder)
    if icd is None or findings:
        raise IcdError("\n".join(map(str, findings)))
    return icd


def inspect(folder: Path | None = None, *, thorough: bool = False) -> tuple[Icd | None, list[IcdFinding]]:
    """Return the interface, as far as it can be read, and its mistakes.

    Parameters
    ----------
    folder
        Where ``icd/``, ``messages/`` and ``commands/`` are; None: the shipped ones and those of all flows.
    thorough
        Also run checks that are too slow for the start of a server.
    """
    icd, findings = read(folder) if folder else read(resource("schemas"), _folders())
    return icd, findings if icd is None else check(icd, thorough=thorough)


def _folders() -> dict[str, Path]:
    """Return the folders of flows, by flow."""
    found = {one.name: one.interface.partition(":") for one in manifests() if one.interface is not None}
    return {name: Path(str(files(package).joinpath(folder))) for name, (package, _, folder) in found.items()}


# --- Other interfaces, to compare with ---


def load_unchecked(given: str | None) -> Icd:
    """Load an interface that need not pass the checks, such as an old one, with its Avro schemas.

    Parameters
    ----------
    given
        A folder with ``icd/``, ``messages/`` and ``commands/``, or a git revision; None: the shipped schemas.

    Raises
    ------
    ConfigError
        The folder or revision does not exist.
    IcdError
        A file cannot be read.
    """
    with _folder(given) as folder:
        icd, findings = read(folder)
        if icd is None:
            raise IcdError("\n".join(f"{given or 'schemas'}: {finding}" for finding in findings))
        return with_avro(icd, folder)


def with_avro(icd: Icd, folder: Path) -> Icd:
    """Return an interface with the ``messages/*.avsc`` of a folder: fingerprint, text, and all fingerprints.

    A fingerprint ignores documentation and defaults.
    """

    def without_texts(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in pairs if key not in ("doc", "default")}

    texts = {path.stem: path.read_text(encoding="utf-8") for path in (folder / "messages").glob("*.avsc")}
    prints = {name: json.dumps(json.loads(text, object_pairs_hook=without_texts)) for name, text in texts.items()}
    schemas = {name: {"x-avro": (prints[name], text, tuple(prints.values()))} for name, text in texts.items()}
    return replace(icd, messages={**icd.messages, **schemas})


@contextmanager
def _folder(given: str | None) -> Iterator[Path]:
    if given is None or Path(given).is_dir():
        yield resource("schemas") if given is None else Path(given)
        return
    git = ("git", "archive", "--format=zip", f"{'' if given.startswith('-') else given}:schemas")
    with TemporaryDirectory(prefix="sdp-facade-icd-") as folder:
        try:
            done = subprocess.run(git, check=True, capture_output=True)
            ZipFile(io.BytesIO(done.stdout)).extractall(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            said = str(getattr(error, "stderr", b"").decode(errors="replace") or error).strip().replace("\n", "; ")
            raise ConfigError(f"expected a folder or a git revision with schemas/, got {given!r}: {said}") from error
        yield Path(folder)

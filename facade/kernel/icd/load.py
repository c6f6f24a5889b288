"""Loads the interface: reads it, checks it, and refuses it with all its mistakes at once.

The interface consists of the files of this distribution, and of the parts of flows that are installed: see
`facade.kernel.manifest.Manifest.interface`. A folder as a whole has all of its parts.

Loading is quick, because every device server does it at its start. Checks with the JSON Schema library (whether each
schema is itself valid) are left to ``icd check`` and to the tests. Nothing is raised for wrong content before all of
it is read: every mistake becomes an `IcdFinding`, so that one run shows all of them.
"""

import io
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypeVar
from zipfile import ZipFile

import msgspec
from msgspec.structs import replace

from facade.kernel.config import load_settings
from facade.kernel.errors import ConfigError, IcdError
from facade.kernel.icd.check_classes import check_attributes, check_classes
from facade.kernel.icd.check_topics import check_legality, check_schemas, check_snapshots, check_topics
from facade.kernel.icd.checks import IcdFinding
from facade.kernel.icd.expand import expand
from facade.kernel.icd.explain import explain
from facade.kernel.icd.model import Condition, DeviceClass, Executor, Icd, Location
from facade.kernel.icd.telescope import of_telescope
from facade.kernel.icd.topic_model import Operation, Role, Topic
from facade.kernel.manifest import manifests
from facade.kernel.names import PROGRAM, TELESCOPE
from facade.kernel.resources import interface, resource

_SCHEMA_SUFFIX = ".schema.json"
_ARGUMENT_FILE = re.compile(r"(?P<family>[a-z]+)-(?P<version>\d+\.\d+)\.schema\.json")

File = TypeVar("File", bound=msgspec.Struct)


class _VersionFile(msgspec.Struct, forbid_unknown_fields=True):
    version: str


class _EnumsFile(msgspec.Struct, forbid_unknown_fields=True):
    enums: dict[str, tuple[str, ...]] = {}
    units: tuple[str, ...] = ()


class _Extension(msgspec.Struct, forbid_unknown_fields=True):
    """Roles that write or read a topic of another folder as well."""

    writers: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()
    shared: str = ""


class _TopicsFile(msgspec.Struct, forbid_unknown_fields=True):
    topics: dict[str, Topic] = {}
    roles: dict[str, Role] = {}
    participants: tuple[str, ...] = ()
    qos: dict[str, str] = {}
    quotas: dict[str, Annotated[int, msgspec.Meta(gt=0)]] = {}
    extends: dict[str, _Extension] = {}


class _ConditionsFile(msgspec.Struct, forbid_unknown_fields=True):
    locations: dict[str, Location] = {}
    conditions: dict[str, Condition] = {}


class _ExecutorsFile(msgspec.Struct, forbid_unknown_fields=True):
    executors: dict[str, Executor] = {}


COMMON: dict[str, type[msgspec.Struct]] = {
    "icd.toml": _VersionFile,
    "enums.toml": _EnumsFile,
    "topics.toml": _TopicsFile,
    "conditions.toml": _ConditionsFile,
    "executors.toml": _ExecutorsFile,
}
"""Files that are not device classes; all folders but the first may lack them."""


def read(folder: Path, more: Mapping[str, Path] | None = None) -> tuple[Icd | None, list[IcdFinding]]:
    """Read ``icd/*.toml``, ``messages/*.schema.json`` and ``commands/*.schema.json`` below one or several folders.

    Parameters
    ----------
    folder
        The interface as a whole, or its main part, which has the version.
    more
        Further parts, by the names of their flows; None: those that are folders in the main part.

    Returns
    -------
    The interface and no findings, or None and at least one.
    """
    main = _Part(folder)
    more = {path.parent.name: path.parent for path in sorted(folder.glob("*/icd"))} if more is None else more
    parts = [main, *(_Part(path, f"{name}/") for name, path in more.items())]
    findings = [finding for part in parts for finding in part.findings]
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        for (file, kind), entries in part.entries.items():
            known = found.setdefault(kind, {})
            findings += [_clash(part, file, kind, name) for name in entries if name in known]
            known |= entries
    found["classes"] = dict(sorted(found["classes"].items()))
    for part in parts:
        findings += part.extend(found["topics"])
    if findings:
        return None, findings
    units = tuple(unit for part in parts for unit in part.units)
    participants = tuple(line for part in parts for line in part.participants)
    return expand(
        Icd(version=main.version, telescope=TELESCOPE, units=units, participants=participants, **_by_family(found))
    ), []


class _Part:
    """One folder of the interface."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self.name, self.findings = name, list[IcdFinding]()
        self._folder, self._is_main = folder, not name
        version = self._common("icd.toml", _VersionFile)
        enums = self._common("enums.toml", _EnumsFile) or _EnumsFile()
        topics = self._common("topics.toml", _TopicsFile) or _TopicsFile()
        conditions = self._common("conditions.toml", _ConditionsFile) or _ConditionsFile()
        executors = self._common("executors.toml", _ExecutorsFile, optional=True) or _ExecutorsFile()
        self.version, self._extends = version.version if version else "", topics.extends
        self.units, self.participants = enums.units, topics.participants
        self.entries: dict[tuple[str, str], dict[str, Any]] = {
            ("enums.toml", "enums"): enums.enums,
            ("topics.toml", "topics"): topics.topics,
            ("topics.toml", "roles"): topics.roles,
            ("topics.toml", "qos"): topics.qos,
            ("topics.toml", "quotas"): topics.quotas,
            ("conditions.toml", "conditions"): conditions.conditions,
            ("conditions.toml", "locations"): conditions.locations,
            ("executors.toml", "executors"): executors.executors,
            ("{}.toml", "classes"): self._classes(),
            (f"{{}}{_SCHEMA_SUFFIX}", "messages"): self._messages(),
            ("{}", "arguments"): self._arguments(),
        }
        """Entries by file and kind, then by name."""

    def extend(self, topics: dict[str, Topic]) -> list[IcdFinding]:
        """Add this part's roles to topics of any part; return the mistakes."""
        findings = []
        for name, one in self._extends.items():
            if name not in topics:
                what = f"expected one of {sorted(topics)}, got {name!r}"
                findings.append(IcdFinding(f"{self.name}topics.toml", f"extends[{name}]", what))
                continue
            topic = topics[name]
            writers, readers = (*topic.writers, *one.writers), (*topic.readers, *one.readers)
            operations, shared = (*topic.operations, *one.operations), f"{topic.shared} {one.shared}".strip()
            topics[name] = replace(topic, writers=writers, readers=readers, operations=operations, shared=shared)
        return findings

    def _common(self, name: str, wanted: type[File], *, optional: bool = False) -> File | None:
        path = self._folder / "icd" / name
        return self._table(path, wanted) if (self._is_main and not optional) or path.exists() else None

    def _classes(self) -> dict[str, DeviceClass]:
        found = {}
        for path in sorted((self._folder / "icd").glob("*.toml")):
            device_class = None if path.name in COMMON else self._table(path, DeviceClass)
            if device_class is None:
                continue
            if device_class.name != path.stem:
                self._find(path, "name", f"expected the file's own name {path.stem!r}, got {device_class.name!r}")
            found[device_class.name] = device_class
        return found

    def _messages(self) -> dict[str, dict[str, Any]]:
        paths = sorted((self._folder / "messages").glob(f"*{_SCHEMA_SUFFIX}"))
        schemas = ((path.name.removesuffix(_SCHEMA_SUFFIX), self._json(path)) for path in paths)
        return {name: schema for name, schema in schemas if schema is not None}

    def _arguments(self) -> dict[str, dict[str, Any]]:
        found = {}
        for path in sorted((self._folder / "commands").glob(f"*{_SCHEMA_SUFFIX}")):
            if not _ARGUMENT_FILE.fullmatch(path.name):
                what = f"expected a name of the form family-MAJOR.MINOR{_SCHEMA_SUFFIX}, got {path.name!r}"
                self._find(path, "", what)
            elif (schema := self._json(path)) is not None:
                found[path.name] = schema
        return found

    def _find(self, path: Path, key: str, what: str) -> None:
        self.findings.append(IcdFinding(f"{self.name}{path.name}", key, what))

    def _table(self, path: Path, wanted: type[File]) -> File | None:
        text = self._text(path)
        if text is None:
            return None
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            self._find(path, "", f"expected TOML, got a syntax error: {error}")
            return None
        try:
            return msgspec.convert(document, wanted)
        except msgspec.ValidationError as error:
            for key, what in list(explain(document, wanted)) or [("", str(error))]:
                self._find(path, key, what)
            return None

    def _json(self, path: Path) -> dict[str, Any] | None:
        text = self._text(path)
        if text is None:
            return None
        try:
            document = json.loads(text, object_pairs_hook=_without_repetition, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            self._find(path, "", f"expected JSON, got: {error}")
            return None
        if isinstance(document, dict):
            return document
        self._find(path, "", f"expected a JSON object, got {type(document).__name__}")
        return None

    def _text(self, path: Path) -> str | None:
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            self._find(path, "", f"expected a file in {path.parent}, got none")
        except UnicodeDecodeError as error:
            self._find(path, "", f"expected UTF-8 text, got {error}")
        return None


def _clash(part: _Part, file: str, kind: str, name: str) -> IcdFinding:
    what = f"expected a name that no other part of the interface has, got {name!r} again"
    key = f"{kind}[{name}]" if file.startswith(kind) or kind == "roles" else ""
    return IcdFinding(part.name + file.format(name), key, what)


def _by_family(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Sort the schemas of command arguments by family, with the versions of each family in order."""
    names = (name for name in map(_ARGUMENT_FILE.fullmatch, found["arguments"]) if name is not None)
    arguments: dict[str, dict[str, dict[str, Any]]] = {}
    for name in sorted(names, key=lambda one: (one["family"], tuple(map(int, one["version"].split("."))))):
        arguments.setdefault(name["family"], {})[name["version"]] = found["arguments"][name[0]]
    return {**found, "arguments": arguments}


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a repeated key: JSON parsers would drop the first one silently."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} more than once in one object")
    return found


def _no_number(text: str) -> float:
    """Refuse NaN and Infinity, which Python accepts and JSON does not have."""
    raise ValueError(f"{text}, which is no JSON number")


# --- Checking ---


def check(icd: Icd, *, thorough: bool = False) -> list[IcdFinding]:
    """Return the findings of all rules; the thorough ones, for ``icd check`` and the tests, need slow libraries."""
    slow = (check_legality, check_snapshots) if thorough else ()
    checks = (check_classes, check_attributes, check_topics, check_schemas, *slow)
    return [finding for one in checks for finding in one(icd)]


def load(folder: Path | None = None) -> Icd:
    """Load and check the interface of a folder; without one, the installed interface, which is loaded once.

    The installed interface has the names of the deployment: those of the setting ``telescope``.

    Raises
    ------
    IcdError
        There are mistakes; one line per finding, each with file, key, expected and present value.
    """
    return _installed(load_settings().telescope) if folder is None else _load(folder)


@cache
def _installed(telescope: str) -> Icd:
    return of_telescope(_load(None), telescope)


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
        Where ``icd/``, ``messages/`` and ``commands/`` are; None: those of the facility and of all flows.
    thorough
        Also run checks that are too slow for the start of a server.
    """
    icd, findings = read(folder) if folder else read(interface(), _folders())
    return icd, findings if icd is None else check(icd, thorough=thorough)


def _folders() -> dict[str, Path]:
    """Return the folders of flows, by flow."""
    found = {one.name: one.interface.partition(":") for one in manifests() if one.interface is not None}
    return {
        name: Path(str(files(package).joinpath(folder))) if package else interface() / folder
        for name, (package, _, folder) in found.items()
    }


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
    with TemporaryDirectory(prefix=f"{PROGRAM}-icd-") as folder:
        try:
            done = subprocess.run(git, check=True, capture_output=True)
            ZipFile(io.BytesIO(done.stdout)).extractall(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            said = str(getattr(error, "stderr", b"").decode(errors="replace") or error).strip().replace("\n", "; ")
            raise ConfigError(f"expected a folder or a git revision with schemas/, got {given!r}: {said}") from error
        yield Path(folder)

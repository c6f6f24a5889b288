"""The settings of a deployment: one TOML file, overridden by the environment.

Secrets are among the Kafka settings and so never come from the Tango database; they are kept out
of every ``repr``.
"""

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from facade.kernel.errors import ConfigError
from facade.kernel.names import PROGRAM, TELESCOPE, VARIABLES

ENVIRONMENT = {
    "KAFKA_BOOTSTRAP": "bootstrap",
    f"{VARIABLES}TOPIC_PREFIX": "prefix",
    f"{VARIABLES}TOPIC_REPLICAS": "topic_replicas",
    f"{VARIABLES}TELESCOPE": "telescope",
    f"{VARIABLES}INGEST_NODES": "nodes",
    f"{VARIABLES}RACK_SIZE": "rack_size",
    f"{VARIABLES}SUBARRAYS": "subarrays",
    f"{VARIABLES}ARCHIVES": "archives",
    f"{VARIABLES}WITHOUT": "without",
    f"{VARIABLES}COMMAND_TIMEOUT": "command_timeout",
    f"{VARIABLES}COMMANDERS": "commanders",
    f"{VARIABLES}APPROVALS": "approvals",
    f"{VARIABLES}TABLE_ROOTS": "table_roots",
    f"{VARIABLES}TABLE_MEMORY": "table_memory",
    f"{VARIABLES}TABLE_DISK": "table_disk",
    f"{VARIABLES}TABLE_EXPIRY": "table_expiry",
    f"{VARIABLES}LOG_EXPORT": "log_export",
    f"{VARIABLES}MIRROR_FORMS": "mirror_forms",
    f"{VARIABLES}HISTORY": "history",
    f"{VARIABLES}REPLAY": "replay",
    f"{VARIABLES}CERTIFICATES": "certificates",
}
"""Setting of each environment variable; a variable overrides the file."""
VARIABLE_OF = {setting: variable for variable, setting in ENVIRONMENT.items()}

FILE_VARIABLE = f"{VARIABLES}FACADE_CONFIG"
"""Variable with the settings files, separated by `os.pathsep`: a later one overrides an earlier one, and adds its Kafka
properties."""

HIDDEN = "***"
"""Text shown instead of a secret."""
_HARMLESS = re.compile(r"security\.protocol|sasl\.mechanisms?|.*\.(location|ms|bytes|kbytes|messages)")
"""Properties of the Kafka client that are shown; others may be secrets, or misspelt ones."""
_TELESCOPE = re.compile(r"[a-z][a-z0-9]{0,19}")
_BROKER = re.compile(r"(\w+://)?([^\s:/\[\]]+|\[[\da-fA-F:.]+\])(:\d{1,5})?")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{0,100}")
_USER = re.compile(r"(?<=//)(?:(?!://).)*@", re.DOTALL)
_QUERY = re.compile(r"[?#](?:(?!:[a-z]\w*://|:/).)*", re.DOTALL)

LONGEST_COMMAND_TIMEOUT = 2.5
"""[s]"""
MOST_SUBARRAYS = 16


Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class ControllerKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key by which controllers of some devices sign their records; see `facade.kernel.bus.signatures`."""

    devices: str
    """Name of a device, or a pattern with ``*``."""
    key: Annotated[str, msgspec.Meta(min_length=32)]
    since: Moment = datetime.min.replace(tzinfo=UTC)
    until: Moment = datetime.max.replace(tzinfo=UTC)
    """First and last time at which it is valid."""

    def __repr__(self) -> str:
        return f"ControllerKey(devices={self.devices!r}, key=<hidden>, since={self.since}, until={self.until})"

    __str__ = __repr__


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one deployment."""

    bootstrap: str = "127.0.0.1:9092"
    """Kafka brokers, host:port with commas between."""
    prefix: str = "local."
    """Prefix of all topic, group and transactional ids. Gives each deployment on a shared cluster its own names."""
    topic_replicas: int = 1
    """Replication factor of each topic. min.insync.replicas is one less, but at least 1."""
    telescope: str = TELESCOPE
    """Telescope, such as ``low``: devices, their server instances and logins are named by it."""
    nodes: int = 4
    """Ingest nodes of the deployment; they are numbered from 0."""
    rack_size: int = 50
    """Ingest nodes that share one device-server instance."""
    subarrays: int = 2
    """Subarrays of the deployment; they are numbered from 1."""
    archives: int = 0
    """Workers of the archive that have a device; their slots are numbered from 0."""
    without: str = ""
    """Roles of the ICD that this deployment does not run, with commas between. Their silence is not reported."""
    command_timeout: float = 0.4
    """Longest wait of a Tango call for the bus [s]: TM's clients give a call 0.5 s, other clients of Tango 3 s."""
    commanders: str = ""
    """Hosts from which commands are taken, with commas between: addresses, or ``this host``; empty: any."""
    approvals: str = ""
    """Commands that wait for a second person, with commas between, as class and command; empty: none."""
    table_roots: str = ""
    """Directories and URLs, with : between, below which referenced tables may be; empty: references are refused."""
    table_memory: int = 64_000_000
    """Memory for tables that are being assembled; beyond it they are in temporary files [bytes]."""
    table_disk: int = 20_000_000_000
    """Size of these temporary files; beyond it the oldest table is given up [bytes]."""
    table_expiry: float = 600.0
    """Time without a new segment after which a table is given up [s]."""
    log_export: str = ""
    """Topic to which each process also sends its log, such as ``logs``; empty: none."""
    mirror_forms: str = ""
    """Forms of ESS in which mirrored values are also written, to telescope.streaming: f144, al00, or both."""
    history: bool = False
    """Whether device servers write what their attributes show to the topic history, for the archive."""
    replay: bool = False
    """Whether this deployment shows the replay of an archive: it takes its time from the replay, and no commands."""
    certificates: str = ""
    """Further certificates whose end raises an alarm, with commas between: PEM files, or host:port with TLS."""
    controller_keys: tuple[ControllerKey, ...] = ()
    """Keys by which controllers sign; without one for a device, nothing proves which controller wrote about it."""
    kafka: dict[str, str] = {}
    """Further librdkafka settings by their own names (security.protocol, sasl.password ...)."""

    @property
    def left_out(self) -> frozenset[str]:
        """Roles of the ICD that this deployment does not run, each by its name."""
        return frozenset(name.strip() for name in self.without.split(",")) - {""}

    @property
    def may_command(self) -> frozenset[str]:
        """Hosts whose commands are accepted; none: any."""
        return frozenset(host.strip() for host in self.commanders.split(",")) - {""}

    @property
    def need_approval(self) -> frozenset[str]:
        """Commands that wait for a second person, each as class and command."""
        return frozenset(name.strip() for name in self.approvals.split(",")) - {""}

    def __repr__(self) -> str:
        bootstrap = brokers_without_secrets(self.bootstrap)
        return f"Settings(bootstrap={bootstrap!r}, prefix={self.prefix!r}, nodes={self.nodes}, kafka=<hidden>)"

    __str__ = __repr__


def load_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings file, if one is named, and override it by the environment.

    Raises
    ------
    ConfigError
        A setting is wrong. The text names it, the expected value, and its origin.
    """
    values, origin = read_file(environment)
    for variable, name in ENVIRONMENT.items():
        if variable in environment:
            values[name] = environment[variable]
            origin = f"{origin}, overridden by {variable}"
    return make_settings(values, origin)


def load_client_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings of a program beside the facade. It must name its broker, so that none is guessed.

    Raises
    ------
    ConfigError
        No broker is configured, or a setting is wrong.
    """
    if not environment.get("KAFKA_BOOTSTRAP", read_file(environment)[0].get("bootstrap")):
        raise ConfigError(
            f"no Kafka broker is configured: expected host:port in KAFKA_BOOTSTRAP, or bootstrap in the file of"
            f" {FILE_VARIABLE}; got neither. `{PROGRAM} infra env` prints the variables of a local system"
        )
    return load_settings(environment)


def read_file(environment: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Return the contents of all settings files together, and their paths; errors as of `read_files`."""
    files = read_files(environment)
    values: dict[str, Any] = {}
    for found in files.values():
        if isinstance(found.get("kafka"), dict) and isinstance(values.get("kafka"), dict):
            found["kafka"] = values["kafka"] | found["kafka"]
        values |= found
    return values, ", ".join(files) or "built-in defaults"


def read_files(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the contents of each settings file by its path, in order.

    Raises
    ------
    ConfigError
        A file cannot be read, or is not TOML.
    """
    files: dict[str, dict[str, Any]] = {}
    for path in filter(None, environment.get(FILE_VARIABLE, "").split(os.pathsep)):
        files.pop(path, None)  # of a file that is named twice, the last place counts
        try:
            files[path] = msgspec.toml.decode(Path(path).read_bytes(), type=dict[str, Any])
        except OSError as error:
            raise ConfigError(f"{FILE_VARIABLE}={path}: cannot be read: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path}: not TOML: {error}") from error
    return files


def make_settings(values: Mapping[str, Any], origin: str) -> Settings:
    """Check settings, some of which may be text, and complete them by the defaults.

    Raises
    ------
    ConfigError
        A setting is wrong.
    """
    try:
        settings = msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"settings ({origin}): {error}") from error
    if not 0.1 <= settings.command_timeout <= LONGEST_COMMAND_TIMEOUT:
        raise ConfigError(
            f"settings ({origin}): command_timeout: expected 0.1 to {LONGEST_COMMAND_TIMEOUT} s, as a Tango client"
            f" gives up after 3 s, got {settings.command_timeout:g}"
        )
    if settings.telescope != TELESCOPE and not _TELESCOPE.fullmatch(settings.telescope):
        raise ConfigError(
            f"settings ({origin}): telescope: expected up to 20 small letters and digits, a letter first, such as low,"
            f" got {settings.telescope!r:.50}"
        )
    if settings.topic_replicas < 1:
        raise ConfigError(f"settings ({origin}): topic_replicas: expected at least 1, got {settings.topic_replicas}")
    if not 1 <= settings.nodes <= 10_000:
        raise ConfigError(f"settings ({origin}): nodes: expected 1 to 10000, got {settings.nodes}")
    if settings.rack_size < 1:
        raise ConfigError(f"settings ({origin}): rack_size: expected at least 1, got {settings.rack_size}")
    if not 1 <= settings.subarrays <= MOST_SUBARRAYS:
        raise ConfigError(f"settings ({origin}): subarrays: expected 1 to {MOST_SUBARRAYS}, got {settings.subarrays}")
    if settings.archives < 0:
        raise ConfigError(f"settings ({origin}): archives: expected at least 0, got {settings.archives}")
    for name, text, shown in (
        ("bootstrap", settings.bootstrap, brokers_without_secrets(settings.bootstrap)),
        ("table_roots", settings.table_roots, without_secrets(settings.table_roots)),
    ):
        if shown != text:
            what = "expected no URL with a user, a query or a fragment"
            raise ConfigError(f"settings ({origin}): {name}: {what}, got {shown!r:.200}")
    if not all(_BROKER.fullmatch(one.strip()) for one in settings.bootstrap.strip(", ").split(",")):
        what = "expected brokers as host:port with commas between"
        raise ConfigError(f"settings ({origin}): bootstrap: {what}, got {settings.bootstrap!r:.200}")
    if not _PREFIX.fullmatch(settings.prefix):
        what = "expected up to 100 of the characters A-Z a-z 0-9 . _ -"
        raise ConfigError(f"settings ({origin}): prefix: {what}, got {settings.prefix!r:.200}")
    for name in ("table_memory", "table_disk", "table_expiry"):
        if not (number := getattr(settings, name)) >= 0:
            raise ConfigError(f"settings ({origin}): {name}: expected a number >= 0, got {number}")
    return settings


def is_secret(property_name: str) -> bool:
    """Return whether the value of a Kafka property is secret."""
    return _HARMLESS.fullmatch(property_name) is None


def without_secrets(text: str) -> str:
    """Return a text with URLs in a form for logs: without user, password and signature."""
    return _QUERY.sub(f"?{HIDDEN}", _USER.sub(f"{HIDDEN}@", text)) if "//" in text else text


def brokers_without_secrets(text: str) -> str:
    """Return the setting bootstrap in a form for logs: it has no place for a user, with or without a URL."""
    _, user, brokers = without_secrets(text).rpartition("@")
    return f"{HIDDEN}@{brokers}" if user else brokers

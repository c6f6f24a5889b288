"""`sdp-facade config`: the meaning of each setting, its value and the origin of the value, and all mistakes.

The meaning of a setting is defined once, in the docstrings of `facade.kernel.config.Settings`.
"""

import ast
import difflib
import inspect
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.markup import escape

from facade.kernel.bus.kafka.connection import refusals
from facade.kernel.config import (
    ENVIRONMENT,
    FILE_VARIABLE,
    HIDDEN,
    Settings,
    brokers_without_secrets,
    is_secret,
    make_settings,
    read_file,
    read_files,
    without_secrets,
)
from facade.kernel.console import ERR, table, wide
from facade.kernel.errors import ConfigError

DEFAULT = "default"
KAFKA, KEYS = "kafka", "controller_keys"

PROCESS_VARIABLES = {
    FILE_VARIABLE: "The settings file (TOML), or several with : between, of which a later one wins.",
    "SDP_LOG_LEVEL": "DEBUG, INFO, WARNING or ERROR; of device servers, Tango can change it while they run.",
    "SDP_LOG_FORMAT": "`ska`: log lines in SKA's form; `plain`, the default: in a form for people.",
    "OTEL_RESOURCE_ATTRIBUTES": "Where a process runs, as its exported log says it: host.name=...,rack=...",
    "SDP_METRICS_PORT": "Port for Prometheus counters; each process of a host needs its own; unset: none.",
    "SDP_METRICS_ADDRESS": "Address of that port; default: 127.0.0.1.",
    "SDP_STATE_DIR": "Folder of `sdp-facade infra` and `demo`; default: .run.",
    "SDP_OLOG_LOGIN": "User and password of the Olog to which comments are posted, with a colon between.",
    "SDP_OLOG_LOGIN_FILE": "File with this login.",
    "SDP_WEB_POST_MORTEMS": "Post-mortems of CRITICAL alarms for the operator's page, a folder or its URL.",
    "SDP_WEB_ARCHIVE": "Archive from which the operator's page has what was before, a folder or its URL.",
    "SDP_WEB_DISPLAYS": "Folder in which the operator's page keeps displays of Explore for all browsers.",
    "SDP_WEB_OIDC_FILE": "Settings (TOML) of OpenID Connect, by which people sign in at the operator's page.",
    "SDP_WEB_OIDC_SECRET": "Secret of the page as a client of the provider, if no file has it.",
    "SDP_WEB_PROXY": "Addresses or networks of the proxy before the operator's page, with spaces between.",
    "SDP_WEB_TOKENS": "Tokens of people who may act on the operator's page: lines of role, name and token.",
    "SDP_WEB_TOKENS_FILE": "File with such lines; it is read again while the server runs.",
    "TANGO_HOST": "Tango database, host:port; several with commas between.",
    "TANGO_DS_EVENT_BUFFER_HWM": "Events that a device server keeps for a slow client; default of ours: 20000.",
}
"""Variables of one process instead of the deployment, with their meaning."""
_SECRET_VARIABLES = frozenset({"SDP_OLOG_LOGIN", "SDP_WEB_OIDC_SECRET", "SDP_WEB_TOKENS"})

_PREFIX = "SDP_"
_NEAR = 0.8
_SECRET = re.compile(r"password|secret|key\.pem|oauthbearer\.config")
"""In names of properties of the Kafka client: their values are secrets, unlike those that are only not shown."""


@dataclass(frozen=True, slots=True)
class Explained:
    """One setting."""

    name: str
    value: str
    """Value without secrets."""
    origin: str
    """Environment variable, file or "default"."""
    meaning: str


def meanings() -> dict[str, str]:
    """Return the meanings of all settings, from the docstrings."""
    (tree,) = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            assert isinstance(text.value, ast.Constant)
            found[field.target.id] = str(text.value.value).replace("``", "`")
    return found


def explain_settings(environment: Mapping[str, str] = os.environ) -> tuple[list[Explained], list[str]]:
    """Return every setting, and every mistake: setting, expected and present value, and origin.

    Raises
    ------
    ConfigError
        The settings file cannot be read.
    """
    in_file, _ = read_file(environment)
    origins, of_kafka = _origins(environment)
    values: dict[str, tuple[Any, str]] = {name: (value, origins[name]) for name, value in in_file.items()}
    for variable, name in ENVIRONMENT.items():
        if variable in environment:
            values[name] = (environment[variable], variable)
    said, defaults = meanings(), msgspec.to_builtins(Settings())
    shown = []
    for name, meaning in said.items():
        value, origin = values.get(name, (defaults[name], DEFAULT))
        if name == KAFKA and isinstance(value, dict):
            shown += _kafka(value, of_kafka, meaning)
        else:
            shown.append(Explained(name, _shown(name, str(value)), origin, meaning))
    wrong = [text for name, (value, origin) in values.items() if (text := _wrong(name, value, origin, [*said]))]
    return shown, wrong


def shadows(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Return a warning for each variable that overrides another value of the settings file."""
    (in_file, _), (origins, _) = read_file(environment), _origins(environment)
    for variable, name in ENVIRONMENT.items():
        said = in_file.get(name)
        text = said if isinstance(said, str) else json.dumps(said, default=str)
        if variable in environment and name in in_file and text != environment[variable]:
            ours, theirs = (_shown(name, one) for one in (environment[variable], text))
            yield f"environment: {variable}={ours:.100} overrides {name} = {theirs:.100} of {origins[name]}"


def exposed(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Return a warning for each settings file with a secret that every user of this host may read."""
    for path, found in read_files(environment).items():
        properties, mode = found.get(KAFKA), Path(path).stat().st_mode
        has_login = isinstance(properties, dict) and any(map(_SECRET.search, properties))
        if (has_login or KEYS in found) and mode & stat.S_IROTH:
            what = f"every user of this host may read its secrets (mode {stat.S_IMODE(mode):04o})"
            yield f"{path}: {what}; chmod o-r {path}"


def _shown(name: str, text: str) -> str:
    """Return the value of a setting without secrets."""
    if name in (KAFKA, KEYS):
        return HIDDEN if text != "[]" else "none"
    return brokers_without_secrets(text) if name == "bootstrap" else without_secrets(text)


def _origins(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the file of each setting, and of each property of the Kafka client: the last file that has it."""
    files = read_files(environment)
    tables = {path: found[KAFKA] for path, found in files.items() if isinstance(found.get(KAFKA), dict)}
    origins = {name: path for path, found in files.items() for name in found}
    if KAFKA in origins:
        origins[KAFKA] = ", ".join(path for path, found in files.items() if KAFKA in found)
    return origins, {name: path for path, properties in tables.items() for name in properties}


def kafka_properties(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the properties of the Kafka client in the settings file that are texts."""
    found = read_file(environment)[0].get(KAFKA)
    return {name: value for name, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def process_variables(environment: Mapping[str, str] = os.environ) -> list[Explained]:
    """Return the variables of this process."""
    shown = {name: HIDDEN if name in _SECRET_VARIABLES else without_secrets(text) for name, text in environment.items()}
    return [
        Explained(name, shown.get(name, ""), "environment" if name in shown else "not set", meaning)
        for name, meaning in PROCESS_VARIABLES.items()
    ]


def misspelt(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Return a warning for each variable that looks like one of ours but is unknown."""
    known = [*ENVIRONMENT, *PROCESS_VARIABLES]
    for name in sorted(environment):
        if name.startswith(_PREFIX) and name not in known and (near := _near(name, known)):
            yield f"environment: {name}: no such variable; expected perhaps {near}"


def template() -> str:
    """Return a settings file with the defaults, all of them commented out."""
    defaults = msgspec.to_builtins(Settings())
    lines = [f"# Settings of sdp-facade; {FILE_VARIABLE} names this file. These are the defaults."]
    for name, meaning in meanings().items():
        lines += ["", f"# {meaning}"]
        if name == KAFKA:
            lines += ["# [kafka]", '# "security.protocol" = "SASL_SSL"', '# "sasl.password" = "..."']
        elif name == KEYS:
            lines.append('# controller_keys = [{ devices = "mid-sdp/subarray/*", key = "..." }]')
        else:
            variable = next(variable for variable, field in ENVIRONMENT.items() if field == name)
            lines += [f"# Environment: {variable}", f"# {name} = {json.dumps(defaults[name])}"]
    return "\n".join(lines) + "\n"


def _kafka(properties: dict[str, Any], origins: Mapping[str, str], meaning: str) -> list[Explained]:
    if not properties:
        return [Explained(KAFKA, "none", DEFAULT, meaning)]
    return [
        Explained(f"{KAFKA}.{name}", HIDDEN if is_secret(name) else str(value), origins[name], meaning)
        for name, value in properties.items()
    ]


def _wrong(name: str, value: object, origin: str, known: list[str]) -> str:
    if name not in known:
        near = _near(name, known)
        expected = f"perhaps {near}" if near else f"one of {', '.join(known)}"
        return f"{origin}: {name}: no such setting; expected {expected}"
    try:
        make_settings({name: value}, origin)
    except ConfigError as error:
        # The text names setting and position; a property of the Kafka client may be a secret.
        text, got = str(error), f"{_shown(name, repr(value)):.100}"
        return text if name == KAFKA or got in text else f"{text} (it is {got})"
    return ""


def _near(name: str, known: list[str]) -> str:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)), "")


def check() -> None:
    """Show each setting with its origin and meaning, and all that is wrong.

    Secrets are not shown. The exit code is 1 if a setting is wrong; then nothing would start with it.

    Example: SDP_FACADE_CONFIG=site.toml sdp-facade config check
    """
    shown, wrong = explain_settings()
    for title, rows in (("Settings of the deployment", shown), ("Variables of each process", process_variables())):
        cells = ((one.name, one.value, one.origin, one.meaning) for one in rows)
        headings = ("name", "value", "from", "meaning")
        wide().print(table(headings, cells, whole=("name",), title=title))
    for text in (*misspelt(), *shadows(), *exposed()):
        ERR.print(f"[yellow]warning:[/yellow] {escape(text)}")
    wrong += refusals(kafka_properties())
    for text in wrong:
        ERR.print(f"[bold red]wrong:[/bold red] {escape(text)}")
    if wrong:
        raise typer.Exit(1)


def print_template() -> None:
    """Print a settings file with all settings, their meaning and their defaults, commented out.

    Example: sdp-facade config template > site.toml
    """
    print(template(), end="")

"""The names that a facility has for its users: the only place where the kernel has them.

They are data of the facility, as its interface is: ``names.toml`` in the same folder.
"""

import tomllib
from typing import Any, Final

from facade.kernel.errors import ConfigError
from facade.kernel.resources import INTERFACE, interface

_FILE: Final = interface() / "names.toml"


def _read() -> dict[str, Any]:
    try:
        return tomllib.loads(_FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{_FILE}: expected a TOML file with the names of the facility, got: {error};"
            f" if {INTERFACE} is set, it names the folder"
        ) from error


_NAMES: Final = _read()


def _text(key: str) -> str:
    text = _NAMES.get(key)
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{_FILE}: {key}: expected a text, got {text!r}")
    return text


DISTRIBUTION: Final = _text("distribution")
PROGRAM: Final = _text("program")
ABOUT: Final = _text("about")
"""One line for the help of the program."""
SERVER: Final = _text("server")
"""Executable of the Tango device server, and its name in the Tango database."""
VARIABLES: Final = _text("variables")
"""Begin of the environment variables."""
ENTRY_POINTS: Final = _text("entry_points")
"""Begin of the groups of entry points, through which the flows of the facility are found."""
SHORT: Final = _text("short")
"""Begin of the names of metrics, of attributes in exported logs, and of the attribute with all versions."""
TELESCOPE: Final[str] = _NAMES.get("telescope", "")
"""Telescope of whose devices the interface has the names; a deployment may have another one: see `domain`."""
SCHEMAS: Final = _text("schemas")
"""Begin of the names by which arguments of commands tell their schema."""
OTHER_SIDE: Final = _text("other_side")
"""The system whose processes use the bus beside the facade."""
FAMILIES: Final[dict[str, tuple[str, int, str]]] = {
    field: (one["word"], one["first"], one["setting"]) for field, one in _NAMES.get("families", {}).items()
}
"""Numbered devices of a deployment, by the field in their names: word, lowest number, setting of their number."""


def domain(telescope: str) -> str:
    """Return the first part of the names of the devices of a telescope."""
    return f"{telescope}-{SHORT}"

"""Which extra of the distribution installs a package that is missing."""

import re
from importlib.metadata import PackageNotFoundError, requires
from typing import Final

from facade.kernel.names import DISTRIBUTION

_PACKAGES: Final = {
    "google": "opentelemetry-proto",
    "opentelemetry": "opentelemetry-api",
    "tango": "pytango",
    "yaml": "pyyaml",
}
"""Packages whose modules have another name."""
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[([\w,-]+)\])?.*?;.*?extra == ['\"]([\w-]+)['\"]")
_USUAL: Final = "server"


def advice(missing: ModuleNotFoundError, wanted_by: str = "") -> str:
    """Return the line that installs a missing package; an empty text: no extra has it.

    Parameters
    ----------
    wanted_by
        Name of the module that needs it: an extra of the name of one of its packages is the first choice.
    """
    module = (missing.name or "").partition(".")[0]
    package = _PACKAGES.get(module, module.replace("_", "-"))
    own: dict[str, set[str]] = {}
    parts: dict[str, set[str]] = {}
    """Extras that an extra consists of."""
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return ""
    for line in lines:
        if found := _REQUIREMENT.match(line):
            name, extras, extra = found.groups()
            own.setdefault(extra, set()).add(name.lower())
            if name == DISTRIBUTION and extras:
                parts.setdefault(extra, set()).update(extras.split(","))

    def has(extra: str) -> bool:
        return package in own.get(extra, ()) or any(map(has, parts.get(extra, ())))

    words = wanted_by.split(".")
    choices = [one for one in (*words, _USUAL, *sorted(own, key=lambda one: (len(own[one]), one))) if has(one)]
    return f"pip install '{DISTRIBUTION}[{choices[0]}]'" if choices else ""

"""The public surface of the SDK and of the kernel, as text.

What other people's programs import is frozen in ``tests/surface.txt``: names, signatures, fields and bases, as Griffe
reads them from the sources. `tests/repository/test_surface.py` compares, so that a review sees a change of the surface
as a change of that file; ``python -m tests.surface`` writes it anew. The SDK's names are those of its ``__all__``. The
kernel's are the public names of `MODULES`, from which the flow of a site, or another facility, may import.
"""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
FROZEN = Path(__file__).with_suffix(".txt")
LONGEST = 60
"""Longest value that is shown; tables and long texts are no part of the surface [characters]."""
RENEW = "python -m tests.surface"
SDK = "sdp_facade_sdk"
MODULES = (
    "facade.kernel.bus.kafka.connection",
    "facade.kernel.bus.kafka.producer",
    "facade.kernel.bus.memory",
    "facade.kernel.bus.offsets",
    "facade.kernel.bus.port",
    "facade.kernel.cli.app",
    "facade.kernel.clock",
    "facade.kernel.codec.decode",
    "facade.kernel.codec.json_schema",
    "facade.kernel.config",
    "facade.kernel.errors",
    "facade.kernel.icd.load",
    "facade.kernel.icd.model",
    "facade.kernel.icd.topic_model",
    "facade.kernel.manifest",
    "facade.kernel.outcome",
    "facade.kernel.reading",
    "facade.kernel.recent",
    "facade.kernel.runtime.composition",
    "facade.kernel.runtime.flow",
    "facade.kernel.runtime.projection",
    "facade.kernel.runtime.stopping",
    "facade.kernel.runtime.view",
    "facade.kernel.runtime.worker",
    "facade.kernel.runtime.worker_process",
    "facade.kernel.windows.frame",
    "facade.kernel.windows.newest",
    "facade.kernel.windows.totals",
    "devices.kernel.base",
    "devices.kernel.queries",
    "devices.kernel.server",
)
"""Modules of the kernel from which the flow of a site or another facility imports; examples and pages use no others."""


def changes(frozen: str, found: str) -> list[str]:
    """Return the lines that differ, each block below the name of its object."""
    return list(difflib.unified_diff(frozen.splitlines(), found.splitlines(), "frozen", "found", n=1, lineterm=""))


def surface() -> str:
    """Return the surface as text: a block for each name."""
    loader = griffe.GriffeLoader(search_paths=[ROOT, ROOT / "clients"])
    for package in (SDK, "facade", "devices", "sdp_facade_clients"):
        loader.load(package)
    loader.resolve_aliases(external=False)
    modules = loader.modules_collection
    sdk = modules[SDK]
    blocks = [block(f"{SDK}.{name}", sdk.members[name]) for name in sorted(sdk.exports)]
    for module in MODULES:
        members = modules[module].members.values()
        own = [one for one in sorted(members, key=_name) if one.is_public and not one.is_alias]
        blocks += [block(f"{module}.{one.name}", one) for one in own]
    return "\n".join("\n".join(lines) + "\n" for lines in blocks)


def block(name: str, found: Any) -> list[str]:
    """Return the lines of one public object, those of its members indented."""
    if not found.is_class:
        return [_line(name, found)]
    bases = ", ".join(str(base) for base in found.bases)
    return [f"class {name}({bases})" if bases else f"class {name}", *(f"    {line}" for line in _members(found))]


def _members(found: Any) -> Iterator[str]:
    # Fields stay in their order, in which a caller may give them.
    for one in sorted(found.all_members.values(), key=lambda one: (one.is_function, _name(one) * one.is_function)):
        if one.name == "__init__" or (one.is_public and not one.name.startswith("_")):
            yield f"class {one.name}" if one.is_class else _line(one.name, one)


def _line(name: str, found: Any) -> str:
    if found.is_function:
        given = ", ".join(_parameters(found))
        marks = "".join(f"{mark} " for mark in sorted(found.labels & {"async", "classmethod", "staticmethod"}))
        return f"{marks}{name}({given}) -> {found.returns}"
    marks = "".join(f"{mark} " for mark in sorted(found.labels & {"property", "cached_property"}))
    text = f"{marks}{name}" + (f": {found.annotation}" if found.annotation is not None else "")
    return text if found.value is None else f"{text} = {_short(str(found.value))}"


def _short(value: str) -> str:
    return value if len(value) <= LONGEST else "..."


def _parameters(found: Any) -> Iterator[str]:
    """Yield the parameters as they are written, with the marks of those that are by position or by name only."""
    kinds, before = griffe.ParameterKind, None
    stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}
    for one in found.parameters:
        if before is kinds.positional_only and one.kind is not before:
            yield "/"
        if one.kind is kinds.keyword_only and before not in (kinds.keyword_only, kinds.var_positional):
            yield "*"
        text = stars.get(one.kind, "") + one.name
        text += f": {one.annotation}" if one.annotation is not None else ""
        yield text + (f" = {one.default}" if one.default is not None and one.kind not in stars else "")
        before = one.kind
    if before is kinds.positional_only:
        yield "/"


def _name(one: Any) -> str:
    return str(one.name)


if __name__ == "__main__":
    FROZEN.write_text(surface())

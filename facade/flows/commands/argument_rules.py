"""What the arguments of commands must say beyond their schemas: ids that differ and references that lead somewhere.

Only what the argument alone can show; whether an execution block exists already is the controllers' to know.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import dropwhile, pairwise
from operator import ne
from typing import Any

from facade.flows.commands.argument_text import Path, json_path
from facade.icd.explain import shown

Violation = tuple[Path, str]
"""Where, and what was expected and came."""
Document = Mapping[str, Any]


def violations(family: str, document: Document) -> Iterator[Violation]:
    """Find what is wrong with a document that its schema allows."""
    for rule in _RULES.get(family, ()):
        yield from rule(document)


def _ids_differ(document: Document) -> Iterator[Violation]:
    """Refuse two beams, scan types, channels ... of one id."""
    block = document.get("execution_block", {})
    for key, name in _IDS.items():
        yield from _repeated(block.get(key, []), name, ("execution_block", key))
    for index, channels in enumerate(block.get("channels", [])):
        path = ("execution_block", "channels", index, "spectral_windows")
        yield from _repeated(channels["spectral_windows"], "spectral_window_id", path)
    yield from _repeated(document.get("processing_blocks", []), "pb_id", ("processing_blocks",))


_IDS = {
    "beams": "beam_id",
    "scan_types": "scan_type_id",
    "channels": "channels_id",
    "polarisations": "polarisations_id",
    "fields": "field_id",
}


def _receptors_differ(document: Document) -> Iterator[Violation]:
    """Refuse a receptor that is named twice."""
    path = ("resources", "receptors")
    seen: dict[str, int] = {}
    for index, receptor in enumerate(document.get("resources", {}).get("receptors", [])):
        first = seen.setdefault(receptor, index)
        if first != index:
            yield (*path, index), f"expected a receptor of its own, got {shown(receptor)}, which [{first}] is already"


def _scan_types_derive_from_known(document: Document) -> Iterator[Violation]:
    """Refuse to derive a scan type from one that is not there."""
    scan_types = document.get("execution_block", {}).get("scan_types", [])
    known = {one["scan_type_id"] for one in scan_types}
    for index, one in enumerate(scan_types):
        base = one.get("derive_from")
        if base is not None and base not in known:
            path = ("execution_block", "scan_types", index, "derive_from")
            yield path, f"expected one of the scan types {_listed(known)}, got {shown(base)}"


def _scan_types_do_not_derive_in_circles(document: Document) -> Iterator[Violation]:
    yield from _circles(document.get("execution_block", {}).get("scan_types", []), ("execution_block", "scan_types"))


def _scan_types_use_known_beams(document: Document) -> Iterator[Violation]:
    """Refuse a scan type that says something of a beam that is not there."""
    block = document.get("execution_block", {})
    known = {beam["beam_id"] for beam in block.get("beams", [])}
    for index, one in enumerate(block.get("scan_types", [])):
        for beam in one.get("beams", {}):
            if beam not in known:
                path = ("execution_block", "scan_types", index, "beams", beam)
                yield path, f"expected one of the beams {_listed(known)}, got {shown(beam)}"


def _windows_are_ranges(document: Document) -> Iterator[Violation]:
    """Refuse a spectral window that ends below its beginning."""
    for index, channels in enumerate(document.get("execution_block", {}).get("channels", [])):
        for number, window in enumerate(channels["spectral_windows"]):
            low, high = window["freq_min"], window["freq_max"]
            if high < low:
                path = ("execution_block", "channels", index, "spectral_windows", number, "freq_max")
                yield path, f"expected number >= freq_min = {low}, got {high}"


def _dependencies_are_known(document: Document) -> Iterator[Violation]:
    """Refuse a processing block that waits for itself, or for one that is not there."""
    blocks = document.get("processing_blocks", [])
    known = {one["pb_id"] for one in blocks}
    for index, one in enumerate(blocks):
        for number, dependency in enumerate(one.get("dependencies", [])):
            wanted = dependency["pb_id"]
            if wanted == one["pb_id"] or wanted not in known:
                path = ("processing_blocks", index, "dependencies", number, "pb_id")
                others = _listed(known - {one["pb_id"]})
                yield path, f"expected another processing block of these ({others}), got {shown(wanted)}"


def _new_scan_types_differ(document: Document) -> Iterator[Violation]:
    """Refuse two new scan types of one id, and new ones that derive from each other."""
    new = document.get("new_scan_types", [])
    yield from _repeated(new, "scan_type_id", ("new_scan_types",))
    yield from _circles(new, ("new_scan_types",))


def _maps_ascend(document: Document) -> Iterator[Violation]:
    """Require ascending channels: an entry applies up to the channel of the next one."""
    for scan_type, beams in document.items():
        if scan_type in ("interface", "transaction_id"):
            continue
        for beam, entries in beams.items():
            for name, channels in entries.items():
                if isinstance(channels, list) and all(isinstance(entry, list) for entry in channels):
                    yield from _descents(channels, (scan_type, beam, name))


_RULES: Mapping[str, tuple[Callable[[Document], Iterator[Violation]], ...]] = {
    "assignres": (
        _ids_differ,
        _receptors_differ,
        _scan_types_derive_from_known,
        _scan_types_do_not_derive_in_circles,
        _scan_types_use_known_beams,
        _windows_are_ranges,
        _dependencies_are_known,
    ),
    "releaseres": (_receptors_differ,),
    "configure": (_new_scan_types_differ,),
    "recvaddrs": (_maps_ascend,),
}


def _repeated(entries: list[Document], key: str, path: Path) -> Iterator[Violation]:
    seen: dict[str, int] = {}
    for index, entry in enumerate(entries):
        first = seen.setdefault(entry[key], index)
        if first != index:
            what = f"expected an id of its own, got {shown(entry[key])}, which is that of {json_path((*path, first))}"
            yield (*path, index, key), what


def _circles(scan_types: list[Document], path: Path) -> Iterator[Violation]:
    base_of = {one["scan_type_id"]: one.get("derive_from") for one in scan_types}
    followed: set[str] = set()
    in_circle: set[str] = set()
    for start in base_of:
        trail: dict[str, None] = {}
        name: str | None = start
        while name is not None and name not in followed and name not in trail:
            trail[name] = None
            name = base_of.get(name)
        if name in trail:
            in_circle.update(dropwhile(partial(ne, name), trail))
        followed.update(trail)
    for index, one in enumerate(scan_types):
        base = one.get("derive_from")
        if base is not None and one["scan_type_id"] in in_circle:
            what = f"expected a scan type that does not derive from this one, got {shown(base)}"
            yield (*path, index, "derive_from"), what


def _descents(channels: list[list[Any]], path: Path) -> Iterator[Violation]:
    for index, (before, entry) in enumerate(pairwise(channels), start=1):
        if not entry[0] > before[0]:
            yield (*path, index), f"expected a channel > {before[0]}, which is that of the entry before, got {entry[0]}"


def _listed(names: set[str]) -> str:
    return shown(sorted(names))[1:-1] or "none"

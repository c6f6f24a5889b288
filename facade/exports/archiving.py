"""What of the devices is archived in HDB++, in the form of yaml2archiving."""

from collections.abc import Iterator, Mapping

from facade.icd.model import Attribute, DeviceClass, Icd
from facade.instances import FAMILIES

MOST_NUMBERS, MOST_TEXTS = 256, 64
"""Longest arrays that are archived: longer ones are data products, and have topics of their own."""
STRATEGY = "ALWAYS"
_MANY = {"node": FAMILIES["node"].word}
"""Families of so many devices that only their alarms are archived."""
_FILE = "tango-db/archiving.yaml"
_HEAD = f"""\
# Which attributes HDB++ archives: for yaml2archiving, by which HDB++ and SKA's engineering data archive are configured.
# Derived from the ICD by `sdp-facade icd export`; change the choice in facade/exports/archiving.py.
#
# Not tried: no HDB++ was at hand. The form follows the documents and public examples of that tool; look at what it
# says it would do before you let it. db, manager and archiver below are placeholders: put your own in.
#
# Every archive event is pushed by the devices (code_push_event), already sampled as the ICD says, so there is nothing
# to poll and no archive_abs_change to set. What is archived:
# - State, and of each class all attributes that are pushed, without those that follow;
# - no images, and no arrays of more than {MOST_NUMBERS} numbers or {MOST_TEXTS} texts;
# - of devices of which there is one for each {" or ".join(_MANY.values())}, only what has alarm limits.
"""
_PLACES = {"db": "databaseds:10000", "manager": "mid-eda/cm/01", "archiver": "mid-eda/es/01"}


def export(icd: Icd) -> Mapping[str, str]:
    """Return the configuration of the archive; see `facade.exports.files`."""
    lines = [*_HEAD.splitlines(), "", *(f'{key}: "{place}"' for key, place in _PLACES.items()), "", "configuration:"]
    for name, device_class in icd.classes.items():
        lines += [f"  - class: {name}", "    attributes:"]
        for attribute in ("State", *(one.name for one in archived(device_class))):
            lines += [f"      {attribute}:", "        code_push_event: true", f"        archive_strategy: {STRATEGY}"]
    return {_FILE: "\n".join(lines) + "\n"}


def archived(device_class: DeviceClass) -> Iterator[Attribute]:
    """Return the attributes of a class that are archived, without Tango's own."""
    for attribute in device_class.attributes:
        most = MOST_TEXTS if attribute.type == "DevString" else MOST_NUMBERS
        if not attribute.is_pushed or attribute.height or attribute.length > most:
            continue
        if device_class.family not in _MANY or attribute.limits is not None:
            yield attribute

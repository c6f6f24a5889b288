"""The files in ``tango-db/``: a site loads them into its Tango database, its archive and its alarm handler.

The database needs only servers, classes and devices, in the form of dsconfig (json2tango): devices have no properties,
as their settings are in the environment of the servers, and attributes need none for events, as all are pushed from
code and none is polled.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from facade.kernel.config import Settings
from facade.kernel.icd.model import Attribute, Condition, DeviceClass, Icd, instance_role
from facade.kernel.icd.telescope import instance_of
from facade.kernel.icd.units import unit_of
from facade.kernel.instances import FAMILIES, devices_of

SERVER = "SdpFacade"
"""Name of the server in the Tango database, of the executable, and of Starter's entry."""
_TITLE = "sdp-tango-facade"
_REGISTRATION_FILE = "tango-db/sdp.json"


def export(icd: Icd) -> Mapping[str, str]:
    """Return the registration of a deployment with the default settings; see `facade.tools.exports.files`."""
    return {_REGISTRATION_FILE: json.dumps(registration(icd, Settings()), indent=2) + "\n"}


def registration(icd: Icd, settings: Settings) -> dict[str, Any]:
    """Return all servers, classes and devices in dsconfig's form, with the texts that Jive shows of a class."""
    server: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for name, device_class in icd.classes.items():
        for instance, devices in devices_of(device_class, settings).items():
            named = instance_of(icd.telescope, instance)
            server.setdefault(named, {})[name] = {device: {} for device in devices}
    about = {
        name: {"properties": {"ProjectTitle": [_TITLE], "Description": [device_class.description]}}
        for name, device_class in icd.classes.items()
    }
    return {"servers": {SERVER: server}, "classes": about}


def instances(icd: Icd, settings: Settings) -> list[str]:
    """Return the device-server instances of the deployment."""
    return sorted(registration(icd, settings)["servers"][SERVER])


MOST_NUMBERS, MOST_TEXTS = 256, 64
"""Longest arrays that are archived: longer ones are data products with topics of their own."""
STRATEGY = "ALWAYS"
_MANY = {"node": FAMILIES["node"].word}
"""Families with too many devices to archive more than their alarms."""
_ARCHIVING_FILE = "tango-db/archiving.yaml"
_ARCHIVING_HEAD = f"""\
# Which attributes HDB++ archives: for yaml2archiving, by which HDB++ and SKA's engineering data archive are configured.
# Derived from the ICD by `sdp-facade icd export`; change the choice in facade/tools/exports/tango_db.py.
#
# Not tried with an HDB++: the form follows the documents and public examples of yaml2archiving, so make a dry run
# first. db, manager and archiver below are placeholders: put your own in.
#
# Every archive event is pushed by the devices (code_push_event), already sampled as the ICD says, so there is nothing
# to poll and no archive_abs_change to set. The file has
# - State, and of each class all attributes that are pushed, without those that follow;
# - no images, and no arrays of more than {MOST_NUMBERS} numbers or {MOST_TEXTS} texts;
# - of devices of which there is one for each {" or ".join(_MANY.values())}, only what has alarm limits.
"""
_PLACES = {"db": "databaseds:10000", "manager": "mid-eda/cm/01", "archiver": "mid-eda/es/01"}


def export_archiving(icd: Icd) -> Mapping[str, str]:
    """Return the attributes for HDB++, in the form of yaml2archiving; see `facade.tools.exports.files`."""
    lines = [
        *_ARCHIVING_HEAD.splitlines(),
        "",
        *(f'{key}: "{place}"' for key, place in _PLACES.items()),
        "",
        "configuration:",
    ]
    for name, device_class in icd.classes.items():
        lines += [f"  - class: {name}", "    attributes:"]
        for attribute in ("State", *(one.name for one in archived(device_class))):
            lines += [f"      {attribute}:", "        code_push_event: true", f"        archive_strategy: {STRATEGY}"]
    return {_ARCHIVING_FILE: "\n".join(lines) + "\n"}


def archived(device_class: DeviceClass) -> Iterator[Attribute]:
    """Return the attributes of a class that are archived, without Tango's own."""
    for attribute in device_class.attributes:
        most = MOST_TEXTS if attribute.type == "DevString" else MOST_NUMBERS
        if not attribute.is_pushed or attribute.height or attribute.length > most:
            continue
        if device_class.family not in _MANY or attribute.limits is not None:
            yield attribute


GROUP = "sdp"
_RULES_FILE = "tango-db/alarms.txt"
_HOLD = 3
"""Time for which a limit must be reached, or left, before the alarm changes [s]: some windows of 1 s."""
_LATCHED = 8
"""AlarmState LTUNK; LTACK follows. The handler has no names for them."""
_ALARM_STATE = "AlarmState"
_OTHER = Condition(
    label="Other conditions",
    description="A source has raised a condition that the ICD does not name.",
    response="Look at unknownConditions and activeAlerts of this device.",
    priority="MEDIUM",
)
_TOLD = {
    "balance": "streamUnbalanced",
    "overlap": "streamOverlap",
    "skipped": "streamSkipped",
    "lag": "streamLagging",
    "lag_time": "streamLagging",
    "reservationConflicts": "reservationConflict",
    "disconnected": "mirrorDisconnected",
    "brokersMissing": "brokerMissing",
    "offlinePartitions": "partitionsOffline",
    "underReplicatedPartitions": "replicasOutOfSync",
}
"""Figures of accounts, and attributes, whose limits have a condition: two alarms for one cause would be useless."""
_SIDES = (("min", "<="), ("max", ">="))
_GRAVITIES = (("alarm", "high"), ("warning", "low"))
_RULES_HEAD = f"""\
# Rules for Elettra's alarm handler (AlarmHandler): give each line below to its command Load.
# Derived from the ICD by `sdp-facade icd export`, for a deployment with the default settings.
#
# Tried with a handler of August 2021, which loads all of them. Before the first Load, its property GroupNames must
# name the group: none, {GROUP}
#
# One rule for each alarm condition: the facade has applied the delays already, so they are 0 here. A condition that
# latches stays an alarm until an operator resets it at its device; states 8 and 9 are LTUNK and LTACK.
# Up to two rules for each attribute with limits that no condition tells of, alarm and warning, in Tango's sense:
# reaching a limit counts. Conditions tell of the accounts of streams, brokers, reservations and mirrored devices.
#
# A value is invalid while its stream is silent. The handler makes ERROR of a rule whose value is invalid, and of one
# whose device does not answer; no formula can avoid this. Set its property ErrorDelay to the longest time for which a
# stream is silent in good order [s], such as 86400. A lost device or stream is told of by the conditions.
"""


def export_rules(icd: Icd) -> Mapping[str, str]:
    """Return the rules for Elettra's alarm handler, a line for each call of Load; see `facade.tools.exports.files`."""
    return {_RULES_FILE: _RULES_HEAD + "".join(f"{one}\n" for one in rules(icd, Settings()))}


def rules(icd: Icd, settings: Settings) -> Iterator[str]:
    """Return a rule for each condition, and two for each attribute with limits, of each deployed device."""
    for device_class in icd.classes.values():
        if instance_role(device_class.instance) in settings.left_out:
            continue
        for devices in devices_of(device_class, settings).values():
            for device in devices:
                yield from _of_device(icd, device_class, device)


def _of_device(icd: Icd, device_class: DeviceClass, device: str) -> Iterator[str]:
    for attribute in device_class.attributes:
        if attribute.enum == _ALARM_STATE:
            yield _of_condition(f"{device}/{attribute.name}", icd.conditions.get(attribute.name, _OTHER))
        told = _TOLD.get(attribute.name if attribute.account is None else attribute.account.figure)
        if attribute.limits is not None and not attribute.length and told not in icd.conditions:
            yield from _of_limits(icd, attribute, f"{device}/{attribute.name}")


def _of_condition(attribute: str, condition: Condition) -> str:
    formula = f"{attribute} == UNACK || {attribute} == ACKED"
    if condition.latching:
        formula += f" || {attribute} >= {_LATCHED}"
    message = f"{condition.label}: {condition.description} {condition.response}"
    return _rule(attribute, formula, 0, condition.priority.lower(), message)


def _of_limits(icd: Icd, attribute: Attribute, path: str) -> Iterator[str]:
    for gravity, priority in _GRAVITIES:
        given = [(sign, getattr(attribute.limits, f"{side}_{gravity}")) for side, sign in _SIDES]
        given = [(sign, limit) for sign, limit in given if limit is not None]
        if given:
            formula = " || ".join(f"{path} {sign} {limit:.10g}" for sign, limit in given)
            reached = " or ".join(f"{sign} {limit:.10g}" for sign, limit in given)
            message = f"{attribute.label} of {path.rsplit('/', 1)[0]} is {reached} {unit_of(icd, attribute)}"
            yield _rule(f"{path}_{gravity}", formula, _HOLD, priority, message.strip())


def _rule(tag: str, formula: str, delay: int, priority: str, message: str) -> str:
    fields = {
        "tag": re.sub(r"\W", "_", tag),
        "formula": f"({formula})",
        "on_delay": delay,
        "off_delay": delay,
        "priority": priority,
        "shlvd_time": 0,
        "group": GROUP,
        "message": message.replace(";", ","),
        "url": "",
        "on_command": "",
        "off_command": "",
        "enabled": 1,
    }
    return ";".join(f"{key}={value}" for key, value in fields.items())

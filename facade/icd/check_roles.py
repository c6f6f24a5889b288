"""Checks of the roles: whoever takes part in the bus is known, and each topic has somebody at both ends."""

import re
from collections.abc import Iterator

from facade.icd.finding import Finding
from facade.icd.model import Icd

_NAME = re.compile(r"[a-z]+(-[a-z]+)*")


def role_texts_are_complete(icd: Icd) -> Iterator[Finding]:
    """Require names in lower case, and a description."""
    for name, role in icd.roles.items():
        if not _NAME.fullmatch(name):
            yield _at(f"roles[{name}]", f"expected lower-case words with hyphens between, got {name!r}")
        if not role.description.strip().endswith("."):
            what = f"expected text that ends with a full stop, got {role.description!r}"
            yield _at(f"roles[{name}].description", what)


def topic_roles_exist(icd: Icd) -> Iterator[Finding]:
    """Require known roles, each of them once."""
    for topic, key, roles in _lists(icd):
        for index, role in enumerate(roles):
            if role not in icd.roles or role in roles[:index]:
                yield _at(f"topics[{topic}].{key}", f"expected others of {sorted(icd.roles)}, got {role!r}")


def topics_have_two_ends(icd: Icd) -> Iterator[Finding]:
    """Require somebody who writes to each topic, and somebody who reads from it."""
    for topic, key, roles in _lists(icd):
        if not roles:
            yield _at(f"topics[{topic}].{key}", "expected at least one role, got none")


def roles_take_part(icd: Icd) -> Iterator[Finding]:
    """Require at least one topic for each role."""
    busy = {role for _, _, roles in _lists(icd) for role in roles}
    for name in icd.roles:
        if name not in busy:
            yield _at(f"roles[{name}]", "expected a topic that it writes or reads, got none")


def device_servers_are_roles(icd: Icd) -> Iterator[Finding]:
    """Require a role of its name for each device-server instance; those of racks are one role."""
    for name, one in icd.classes.items():
        if (role := instance_role(one.instance)) not in icd.roles:
            what = f"expected an instance whose role is one of {sorted(icd.roles)}, got {role!r}"
            yield Finding(f"{name}.toml", "instance", what)


def instance_role(instance: str) -> str:
    """Return the role of a device-server instance as the ICD names it: ``ingest`` for ``ingest-{rack:02d}``."""
    return instance.partition("-{")[0]


CHECKS = (
    role_texts_are_complete,
    topic_roles_exist,
    topics_have_two_ends,
    roles_take_part,
    device_servers_are_roles,
)


def _at(key: str, what: str) -> Finding:
    return Finding("topics.toml", key, what)


def _lists(icd: Icd) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for name, topic in icd.topics.items():
        yield name, "writers", topic.writers
        yield name, "readers", topic.readers

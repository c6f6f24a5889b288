"""Client quotas that follow from the classes of the topics: the write rate of each role.

Kafka knows clients and users, not topics. So a role gets a quota if all its topics have a class with a rate; a role
that also writes alerts, commands or states is never slowed down.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from facade.kernel.icd.model import Icd
from facade.kernel.icd.telescope import instance_of
from facade.kernel.names import SHORT, TELESCOPE

Entity = Literal["clients", "users"]
SETTING: Final = "producer_byte_rate"
_FOUND: Final = re.compile(r"client-id '([^']*)'|user-principal '([^']*)'")
_RATE: Final = re.compile(rf"\b{SETTING}=([0-9.E]+)")


def name_of(role: str, telescope: str = TELESCOPE) -> str:
    """Return the client id, and the principal, of a role's quota, such as ``sdp-control`` or ``low-sdp-control``."""
    return instance_of(telescope, f"{SHORT}-{role}")


def planned(icd: Icd, rates: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the bytes per second that each broker accepts, by client id or principal.

    `rates`: rates by class instead of the ICD's [bytes/s].
    """
    known = {**icd.quotas, **(rates or {})}
    found = {}
    for role in icd.roles:
        classes = {topic.qos for topic in icd.topics.values() if role in topic.writers}
        if classes and classes <= known.keys():
            found[name_of(role, icd.telescope)] = max(known[one] for one in classes)
    return found


def alter(bootstrap: str, entity: Entity, name: str, rate: int) -> list[str]:
    """Return the arguments for Kafka's own tool to set a quota."""
    where = ["--bootstrap-server", bootstrap, "--alter", "--entity-type", entity, "--entity-name", name]
    return [*where, "--add-config", f"{SETTING}={rate}"]


def describe(bootstrap: str, entity: Entity) -> list[str]:
    """Return the arguments for Kafka's own tool to list all quotas of a kind."""
    return ["--bootstrap-server", bootstrap, "--describe", "--entity-type", entity]


def rates_in(output: str) -> dict[str, int]:
    """Return the rates in the output of Kafka's own tool, by name."""
    found = {}
    for line in output.splitlines():
        name, rate = _FOUND.search(line), _RATE.search(line)
        if name and rate:
            found[name[1] or name[2] or ""] = round(float(rate[1]))
    return found


def differing(wanted: Mapping[str, int], found: Mapping[str, int], spared: Sequence[str]) -> Iterator[str]:
    """Return the quotas that differ from the plan, one line each; the `spared` must have no quota."""
    for name, rate in wanted.items():
        if found.get(name) != rate:
            yield f"{name}: expected {SETTING}={rate}, got {found.get(name, 'none')}"
    for name in spared:
        if name in found:
            yield f"{name}: expected no {SETTING}, as it writes what must not wait, got {found[name]}"

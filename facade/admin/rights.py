"""The rights of each role on the bus, which follow from the ICD: ACLs of Kafka, and their forms for other tools.

Kafka gives rights to principals. A role of the ICD has the principal `name_of`, as for quotas. Read and Write include
Describe. An idempotent producer needs no right on the cluster (Kafka 3.0 and newer).
"""

import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import yaml

from facade.admin import quotas
from facade.admin.quotas import name_of
from facade.kernel.config import Settings
from facade.kernel.icd.model import Icd
from facade.kernel.icd.topic_model import READER

Kind = Literal["topic", "group", "transactional-id", "cluster"]
Groups = Mapping[str, Collection[str]]
"""Consumer groups with names chosen by processes of a role, without the prefix, by role."""
_HEARTBEATS: Final = "heartbeats"
"""Topic of the processes that run all the time. They also send their logs to the bus, if the settings say so."""
_STRIMZI: Final[dict[Kind, str]] = {"transactional-id": "transactionalId"}


class Acl(NamedTuple):
    """One right of one principal."""

    principal: str
    """Without its type `User`."""
    operation: str
    kind: Kind
    name: str
    """With the prefix of the deployment."""
    prefixed: bool = False
    """Whether it holds for all names with this prefix."""
    denied: bool = False
    host: str = "*"

    def __str__(self) -> str:
        may = "may not" if self.denied else "may"
        where = "" if self.host == "*" else f" from {self.host}"
        return f"{self.principal} {may} {self.operation} {self.kind} {self.name}{'*' * self.prefixed}{where}"


def planned(icd: Icd, settings: Settings, groups: Groups | None = None) -> list[Acl]:
    """Return the rights of all roles in a deployment."""
    return [one for role in icd.roles for one in of_role(icd, role, settings, (groups or {}).get(role, ()))]


def of_role(icd: Icd, role: str, settings: Settings, groups: Collection[str] = ()) -> list[Acl]:
    """Return the rights of a role in a deployment.

    A role of all topics also gets topics that the settings leave out, as topics are created before they are used.
    `groups`: groups with names chosen by its processes.
    """
    own, who, prefix = icd.roles[role], name_of(role, icd.telescope), settings.prefix
    if own.setting and not getattr(settings, own.setting):
        return []
    found = []
    for name, topic in icd.topics.items():
        is_used = not topic.setting or getattr(settings, topic.setting)
        wanted = {"Read"} if is_used and role in topic.readers else set[str]()
        wanted |= {"Write"} if is_used and role in topic.writers else set()
        if name == settings.log_export and role in icd.topics[_HEARTBEATS].writers:
            wanted.add("Write")
        wanted |= set(own.every_topic)
        found += [Acl(who, operation, "topic", prefix + name) for operation in sorted(wanted)]
    if own.every_topic or any(one.operation == "Read" for one in found):
        found.append(Acl(who, "Describe", "group", prefix + READER))
    found += [Acl(who, "Read", "group", prefix + name) for name in (own.group, *groups) if name]
    all_groups = [other.group for other in icd.roles.values() if other.group]
    found += [Acl(who, right, "group", prefix + name) for right in own.every_group for name in all_groups]
    if own.transactional_id:
        name, rest, _ = own.transactional_id.partition("*")
        found.append(Acl(who, "Write", "transactional-id", prefix + name, prefixed=bool(rest)))
    return found


def missing(wanted: Iterable[Acl], found: Collection[Acl]) -> list[Acl]:
    """Return the rights that the brokers lack."""
    return [one for one in wanted if one not in found]


def on_names_of(planned: Iterable[Acl], found: Iterable[Acl]) -> list[Acl]:
    """Return the rights at the brokers on names of a deployment: exactly those of its planned rights.

    The prefix alone proves nothing: `mid.low.alerts` may belong to the deployment `mid.low.`.
    """
    names = {(one.kind, one.name, one.prefixed) for one in planned if one.kind != "cluster"}
    return [one for one in found if (one.kind, one.name, one.prefixed) in names]


def surplus(wanted: Collection[Acl], found: Iterable[Acl]) -> list[Acl]:
    """Return the unplanned rights at the brokers that concern a deployment.

    These are rights of any principal that cover a name of the deployment, and rights of its own principals on the
    cluster.
    """
    principals = {one.principal for one in wanted}
    names = {(one.kind, one.name, one.prefixed) for one in wanted}

    def concerns(one: Acl) -> bool:
        if one.kind == "cluster":
            return one.principal in principals
        return one.name == "*" or any(
            kind == one.kind
            and (
                name == one.name
                or (one.prefixed and name.startswith(one.name))
                or (prefixed and one.name.startswith(name))
            )
            for kind, name, prefixed in names
        )

    return sorted(one for one in found if one not in wanted and concerns(one))


# Forms for other tools


def as_commands(icd: Icd, acls: Iterable[Acl], bootstrap: str) -> Iterator[str]:
    """Return the commands of Kafka's own tools that give the rights, and set the quotas of the classes."""
    together = defaultdict[tuple[str, str, str, bool], list[str]](list)
    for one in acls:
        together[one.principal, one.operation, one.kind, one.prefixed].append(one.name)
    where = ["--bootstrap-server", bootstrap, "--command-config", "admin.properties"]
    for (principal, operation, kind, prefixed), names in together.items():
        argv = ["kafka-acls.sh", *where, "--add", "--allow-principal", f"User:{principal}", "--operation", operation]
        argv += ["--resource-pattern-type", "prefixed"] if prefixed else []
        yield shlex.join([*argv, *(part for name in names for part in (f"--{kind}", name))])
    for name, rate in quotas.planned(icd).items():
        argv = quotas.alter(bootstrap, "users", name, rate)
        yield shlex.join(["kafka-configs.sh", *argv, "--command-config", "admin.properties"])


def as_strimzi(icd: Icd, acls: Iterable[Acl], cluster: str) -> str:
    """Return a `KafkaUser` of Strimzi for each principal, with its rights and its quota.

    `cluster`: name of the `Kafka` that Strimzi runs.
    """
    rates = quotas.planned(icd)
    rules = defaultdict[str, dict[tuple[str, str, str], list[str]]](lambda: defaultdict(list))
    for one in acls:
        pattern = "prefix" if one.prefixed else "literal"
        rules[one.principal][_STRIMZI.get(one.kind, one.kind), one.name, pattern].append(one.operation)
    users = []
    for principal, of_user in rules.items():
        listed = [
            {"resource": {"type": kind, "name": name, "patternType": pattern}, "operations": operations}
            for (kind, name, pattern), operations in of_user.items()
        ]
        spec: dict[str, Any] = {
            "authentication": {"type": "scram-sha-512"},
            "authorization": {"type": "simple", "acls": listed},
        }
        if principal in rates:
            spec["quotas"] = {"producerByteRate": rates[principal]}
        labels = {"strimzi.io/cluster": cluster}
        users.append(
            {
                "apiVersion": "kafka.strimzi.io/v1beta2",
                "kind": "KafkaUser",
                "metadata": {"name": principal, "labels": labels},
                "spec": spec,
            }
        )
    text: str = yaml.safe_dump_all(users, sort_keys=False)
    return text


class RightsRow(NamedTuple):
    """The rights of a role in words, without the prefix of a deployment."""

    principal: str
    reads: list[str]
    writes: list[str]
    groups: list[str]
    transactional_id: str
    further: list[str]
    rate: int
    """Quota [bytes/s]; 0: none."""


def as_rows(icd: Icd) -> Iterator[RightsRow]:
    """Return the rights of each role, for people."""
    rates = quotas.planned(icd)
    for role, own in icd.roles.items():
        acls = of_role(icd, role, Settings(prefix="", history=True, replay=True))
        on_groups = [f"{one.operation} {one.name}" for one in acls if one.kind == "group"]
        yield RightsRow(
            principal=name_of(role, icd.telescope),
            reads=[name for name, topic in icd.topics.items() if role in topic.readers],
            writes=[name for name, topic in icd.topics.items() if role in topic.writers],
            groups=on_groups + (["Read each of its own"] if own.own_groups else []),
            transactional_id=own.transactional_id,
            further=list(own.every_topic),
            rate=rates.get(name_of(role, icd.telescope), 0),
        )

"""Reads, creates and removes access rules and users at the brokers. Needs an administrator's principal."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, get_args

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from facade.admin.rights import Acl, Kind
from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.refusals import failing
from facade.kernel.errors import BusError

_KINDS: Final[dict[ResourceType, Kind]] = dict(
    zip(
        (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.BROKER),
        get_args(Kind),
        strict=True,
    )
)
_TYPES: Final = {kind: found for found, kind in _KINDS.items()}
_OPERATIONS: Final = {one: one.name.title().replace("_", "") for one in AclOperation}
_OPERATIONS_BY_NAME: Final = {name: one for one, name in _OPERATIONS.items()}
_USER: Final = "User:"
_ITERATIONS: Final = 4096
"""Iterations of SCRAM: the fewest that Kafka accepts. The passwords are random, and long."""


def read_acls(connection: Connection) -> list[Acl]:
    """Return the access rules of the brokers, except rules for users and delegation tokens.

    Raises
    ------
    BusError
        A broker does not answer or refuses.
    """
    everything = (ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY)
    admin = connection.admin()
    with failing(f"access rules cannot be read or changed at {connection.bootstrap}"):
        # Without the right to see the rules, the client reports that there are none.
        about = admin.describe_cluster(include_authorized_operations=True, request_timeout=timeouts.COMMAND).result()
        if AclOperation.DESCRIBE not in (about.authorized_operations or ()):
            raise BusError(
                f"access rules cannot be read at {connection.bootstrap}: this principal needs Describe on the cluster"
            )
        found = admin.describe_acls(AclBindingFilter(*everything), request_timeout=timeouts.COMMAND)
        return [_acl(one) for one in found.result() if one.restype in _KINDS]


def create_acls(connection: Connection, acls: Iterable[Acl]) -> None:
    """Create access rules; brokers apply them within a moment of the return.

    Raises
    ------
    BusError
        A broker does not answer or refuses.
    """
    bindings = [AclBinding(*_parts(one)) for one in acls]
    if bindings:
        _await(connection, "access rules", connection.admin().create_acls(bindings, request_timeout=timeouts.COMMAND))


def delete_acls(connection: Connection, acls: Iterable[Acl]) -> None:
    """Remove access rules.

    Raises
    ------
    BusError
        A broker does not answer or refuses.
    """
    filters = [AclBindingFilter(*_parts(one)) for one in acls]
    if filters:
        _await(connection, "access rules", connection.admin().delete_acls(filters, request_timeout=timeouts.COMMAND))


def _await(connection: Connection, what: str, futures: dict[Any, Future[Any]]) -> None:
    with failing(f"{what} cannot be read or changed at {connection.bootstrap}"):
        for future in futures.values():
            future.result()


def _acl(found: AclBinding) -> Acl:
    return Acl(
        principal=found.principal.removeprefix(_USER),
        operation=_OPERATIONS[found.operation],
        kind=_KINDS[found.restype],
        name=found.name,
        prefixed=found.resource_pattern_type is ResourcePatternType.PREFIXED,
        denied=found.permission_type is AclPermissionType.DENY,
        host=found.host,
    )


def _parts(acl: Acl) -> tuple[Any, ...]:
    return (
        _TYPES[acl.kind],
        acl.name,
        ResourcePatternType.PREFIXED if acl.prefixed else ResourcePatternType.LITERAL,
        _USER + acl.principal,
        acl.host,
        _OPERATIONS_BY_NAME[acl.operation],
        AclPermissionType.DENY if acl.denied else AclPermissionType.ALLOW,
    )


# Users and certificates


def create_users(connection: Connection, passwords: Mapping[str, str]) -> None:
    """Create users with SCRAM-SHA-512, or change their passwords.

    Raises
    ------
    BusError
        A broker does not answer or refuses.
    """
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS)
    users = [UserScramCredentialUpsertion(name, credential, text.encode()) for name, text in passwords.items()]
    _await(connection, "users", connection.admin().alter_user_scram_credentials(users))


def set_on_brokers(connection: Connection, values: Mapping[str, str]) -> None:
    """Set properties of all brokers. Each broker reads the files that the properties name again.

    Raises
    ------
    BusError
        A broker does not answer or refuses.
    """
    admin = connection.admin()
    with failing(f"no answer at {connection.bootstrap}"):
        brokers = admin.list_topics(timeout=timeouts.COMMAND).brokers
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in values.items()]
    for node in brokers:
        resource = ConfigResource(ResourceType.BROKER, str(node), incremental_configs=entries)
        _await(connection, "properties of brokers", admin.incremental_alter_configs([resource]))

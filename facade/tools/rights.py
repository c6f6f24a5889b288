"""`sdp-facade rights`: the rights of all roles on the bus by the ICD, for the settings of the deployment."""

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from facade.admin import rights
from facade.admin.access import create_acls, create_users, delete_acls, read_acls
from facade.admin.rights import Acl
from facade.infra.security import passwords_in
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.config import Settings, load_settings
from facade.kernel.console import ERR, OUT, table, wide
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd


class Form(StrEnum):
    """A form in which rights are printed."""

    TABLE = "table"
    KAFKA = "kafka"
    STRIMZI = "strimzi"


OwnGroups = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="ROLE=GROUP",
        help="Consumer group of a role that names its own, such as controller=vis-receive; repeatable.",
    ),
]


def export(
    form: Annotated[
        Form, typer.Option(help="For people, as commands of Kafka's tools, or as KafkaUser resources of Strimzi.")
    ] = Form.TABLE,
    cluster: Annotated[str, typer.Option(help="Name of Strimzi's Kafka resource.")] = "sdp",
    group: OwnGroups = None,
) -> None:
    """Print the rights and quotas of all roles; change nothing.

    Example: sdp-facade rights export --form kafka --group controller=vis-receive
    """
    icd, settings, wanted = _planned(group)
    if form is Form.KAFKA:
        for line in rights.as_commands(icd, wanted, settings.bootstrap):
            typer.echo(line)
    elif form is Form.STRIMZI:
        typer.echo(rights.as_strimzi(icd, wanted, cluster), nl=False)
    else:
        titles = ("principal", "reads", "writes", "groups", "transactional id", "each topic", "quota")
        rows = [
            (
                *(row.principal, "\n".join(row.reads), "\n".join(row.writes), "\n".join(row.groups)),
                *(row.transactional_id, "\n".join(row.further), f"{row.rate:,} B/s" if row.rate else ""),
            )
            for row in rights.as_rows(icd)
        ]
        wide().print(table(titles, rows, whole=titles))


def apply(
    group: OwnGroups = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Also remove unplanned rights on exactly the names that are planned.")
    ] = False,
    users: Annotated[
        Path | None,
        typer.Option(help="First create the users whose settings files are in this folder, with their passwords."),
    ] = None,
) -> None:
    """Give all roles their rights at the brokers, with an administrator's login. Quotas: `sdp-facade quotas apply`.

    It prints the number of new rights of each role; `rights check` names each missing right before.

    Example: SDP_FACADE_CONFIG=admin.toml sdp-facade rights apply --group controller=vis-receive
    """
    _, settings, wanted = _planned(group)
    connection = Connection(settings)
    if users is not None:
        if not (passwords := passwords_in(users)):
            raise ConfigError(f"--users: expected a folder with settings files of users, found none in {users}")
        create_users(connection, passwords)
        OUT.print(f"{len(passwords)} users are there")
    found = read_acls(connection)
    lacking, others = rights.missing(wanted, found), rights.surplus(wanted, found)
    create_acls(connection, lacking)
    for principal, count in Counter(one.principal for one in lacking).items():
        OUT.print(f"given: {count} rights of {principal}", markup=False)
    own = rights.on_names_of(wanted, others) if prune else []
    delete_acls(connection, own)
    for one in others:
        (OUT if one in own else ERR).print(f"{'removed' if one in own else 'surplus'}: {one}", markup=False)
    OUT.print(f"{len(wanted)} rights of {len({one.principal for one in wanted})} roles are there")


def check(group: OwnGroups = None) -> None:
    """Compare the rights at the brokers with the ICD, both ways. Exits with 1 if one is missing or surplus.

    Example: SDP_FACADE_CONFIG=admin.toml sdp-facade rights check --group controller=vis-receive
    """
    _, settings, wanted = _planned(group)
    found = read_acls(Connection(settings))
    lacking, others = rights.missing(wanted, found), rights.surplus(wanted, found)
    for one in lacking:
        ERR.print(f"missing: {one}", markup=False)
    for one in others:
        ERR.print(f"surplus: {one}", markup=False)
    if lacking or others:
        raise typer.Exit(1)
    OUT.print(f"{len(wanted)} rights are as the ICD says, and there are no others")


def _planned(group: list[str] | None) -> tuple[Icd, Settings, list[Acl]]:
    settings = load_settings()
    icd = load()
    groups: dict[str, list[str]] = {}
    naming = [name for name, role in icd.roles.items() if role.own_groups]
    for text in group or ():
        role, _, name = text.partition("=")
        if role not in naming or not name:
            raise ConfigError(f"--group: expected ROLE=GROUP with a role of {', '.join(naming)}, got {text!r:.100}")
        groups.setdefault(role, []).append(name)
    for role in naming:
        if role not in groups:
            ERR.print(f"{role}: no right to a group, as none is named; see --group", markup=False)
    return icd, settings, rights.planned(icd, settings, groups)

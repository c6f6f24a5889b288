"""`sdp-facade quotas`: client quotas from the classes of the topics, set by Kafka's own tool."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from facade.admin import quotas
from facade.infra.kafka import configure
from facade.kernel.config import load_settings
from facade.kernel.console import ERR, OUT
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load

Users = Annotated[
    bool, typer.Option("--users", help="Quotas of principals (SASL) instead of client ids; both are named sdp-ROLE.")
]
Rate = Annotated[
    list[str] | None,
    typer.Option(metavar="CLASS=BYTES", help="Bytes per second of a class, instead of the ICD's; repeatable."),
]
Admin = Annotated[
    Path | None, typer.Option("--command-config", help="Properties of the administrator's client, in Java's form.")
]


def plan(users: Users = False, rate: Rate = None) -> None:
    """Print the commands of Kafka's own tool that set the quotas; change nothing.

    Example: sdp-facade quotas plan --rate log=50000000
    """
    for name, bytes_per_second in quotas.planned(load(), _rates(rate)).items():
        arguments = quotas.alter(load_settings().bootstrap, _entity(users), name, bytes_per_second)
        typer.echo(shlex.join(["kafka-configs.sh", *arguments]))


def apply(users: Users = False, rate: Rate = None, command_config: Admin = None) -> None:
    """Set the quotas, with Kafka's own tool: it needs Java, and Maven the first time.

    Example: sdp-facade quotas apply
    """
    bootstrap = load_settings().bootstrap
    wanted = quotas.planned(load(), _rates(rate))
    for name, bytes_per_second in wanted.items():
        configure(quotas.alter(bootstrap, _entity(users), name, bytes_per_second), command_config, ERR.print)
        OUT.print(f"{name}: {quotas.SETTING}={bytes_per_second}", markup=False)


def check(users: Users = False, rate: Rate = None, command_config: Admin = None) -> None:
    """Ask the brokers for the quotas, and say how they differ from the plan. Exits with 1 if something differs.

    Example: sdp-facade quotas check
    """
    icd, entity = load(), _entity(users)
    wanted = quotas.planned(icd, _rates(rate))
    found = quotas.rates_in(configure(quotas.describe(load_settings().bootstrap, entity), command_config, ERR.print))
    spared = [name for role in icd.roles if (name := quotas.name_of(role, icd.telescope)) not in wanted]
    if texts := [*quotas.differing(wanted, found, spared)]:
        for text in texts:
            ERR.print(f"differs: {text}", markup=False)
        raise typer.Exit(1)
    OUT.print(f"{len(wanted)} quotas are as planned, and no other role has one")


def _entity(users: bool) -> quotas.Entity:
    return "users" if users else "clients"


def _rates(given: list[str] | None) -> dict[str, int]:
    known = list(dict.fromkeys(topic.qos for topic in load().topics.values()))
    found: dict[str, int] = {}
    for text in given or ():
        name, _, number = text.partition("=")
        if name not in known or not number.isascii() or not number.isdecimal() or not int(number):
            raise ConfigError(f"--rate: expected CLASS=BYTES with a class of {', '.join(known)}, got {text!r:.100}")
        found[name] = int(number)
    return found

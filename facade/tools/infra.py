"""`sdp-facade infra`: a local Kafka broker and Tango database, for development, demos and tests.

Output for programs goes to standard output, everything else to standard error.
"""

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from facade.infra import local, tools
from facade.infra.security import ADMINISTRATOR, Security
from facade.kernel.clock import SystemClock, as_time
from facade.kernel.config import FILE_VARIABLE, load_settings
from facade.kernel.console import ERR, moment, table, wide
from facade.kernel.errors import ConfigError

StateDir = Annotated[
    Path,
    typer.Option(help="The folder with the data, the logs and the state.", envvar="SDP_STATE_DIR"),
]
_BROKER = re.compile(r"[\w.-]+:\d{1,5}", re.ASCII)
Services = Annotated[list[local.ServiceName], typer.Argument(help="Names of services.", metavar="SERVICE...")]


def up(
    state_dir: StateDir = local.DEFAULT_STATE_DIR,
    kafka_port: Annotated[int, typer.Option(min=0, max=65535, help="0: as last time, else a free one.")] = 0,
    tango_port: Annotated[int, typer.Option(min=0, max=65535, help="0: as last time, else a free one.")] = 0,
    prefix: Annotated[
        str | None,
        typer.Option(help='What all topic names begin with. Default: as last time, else "local.".'),
    ] = None,
    kafka_heap: Annotated[str | None, typer.Option(help="Memory of each broker. Default: 512m.")] = None,
    brokers: Annotated[
        int | None,
        typer.Option(help="1 or 3; three have replicas of all records. Default: as last time, else 1."),
    ] = None,
    secure: Annotated[
        bool | None,
        typer.Option("--secure", help="TLS, a login for each role of the ICD, and no right that was not given."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="IPv4 address of this machine that other hosts reach. Default: as last time, else 127.0.0.1.",
        ),
    ] = None,
) -> None:
    """Start what does not run yet; returns when all services answer.

    Example: sdp-facade infra up --kafka-heap 1g
    """
    options = local.LocalOptions(
        state_dir=state_dir,
        kafka_port=kafka_port,
        tango_port=tango_port,
        topic_prefix=prefix,
        kafka_heap=kafka_heap,
        brokers=brokers,
        secure=secure,
        address=address,
    )
    with _progress() as report:
        endpoints = local.up(options, report=report)
    env = f'eval "$({local.command("env", state_dir)})"'
    ERR.print(f"up; point a shell at it with [bold]{escape(env)}[/bold]")
    print_environment(endpoints.environment())


def status(state_dir: StateDir = local.DEFAULT_STATE_DIR) -> None:
    """Show each process; the exit code is 1 if one is down, or if the broker does not answer.

    Example: sdp-facade infra status
    """
    lines, limps = local.status(state_dir), local.find_limps(state_dir)
    rows = []
    for line in lines:
        since = moment(as_time(line.since))
        alive = Text("yes", "green") if line.alive else Text("no", "red")
        alive = Text(limps[line.service], "red") if line.alive and line.service in limps else alive
        pid = "-" if line.pid is None else str(line.pid)
        rows.append((line.service, line.process, pid, line.address, since if line.alive else "-", alive))
    if lines:
        wide().print(table(("service", "process", "pid", "address", "since (UTC)", "alive?"), rows))
    else:
        first = local.command("up", state_dir)
        ERR.print(f"nothing was started in {state_dir.resolve()}; run `{first}`", markup=False)
    if not lines or limps or not all(line.alive for line in lines):
        raise typer.Exit(1)


def down(
    state_dir: StateDir = local.DEFAULT_STATE_DIR,
    wipe: Annotated[bool, typer.Option("--wipe", help="Remove all data and logs as well.")] = False,
) -> None:
    """Stop the local services, nothing else; the data are kept.

    Example: sdp-facade infra down --wipe
    """
    with _progress() as report:
        local.down(state_dir, wipe=wipe, report=report)


def env(
    state_dir: StateDir = local.DEFAULT_STATE_DIR,
    user: Annotated[
        str, typer.Option(help="Who logs in at a secured broker: the administrator, or sdp-ROLE.")
    ] = ADMINISTRATOR,
) -> None:
    """Print the environment variables for a shell.

    The settings file of the login is added behind those of SDP_FACADE_CONFIG, and replaces another login of the folder.

    Example: eval "$(sdp-facade infra env)"
    """
    endpoints = local.endpoints(state_dir)
    if endpoints.security is not None and not endpoints.security.settings_of(user).exists():
        raise ConfigError(f"--user: expected {ADMINISTRATOR}, or sdp- and a role of the ICD, got {user!r:.100}")
    print_environment(endpoints.environment(user))


def renew(state_dir: StateDir = local.DEFAULT_STATE_DIR) -> None:
    """Give the secured broker a new certificate, without a stop.

    Example: sdp-facade infra renew
    """
    with _progress() as report:
        local.renew_certificates(state_dir, report=report)


def secrets(
    folder: Annotated[Path, typer.Argument(help="The folder. Its authority and its passwords are kept.")],
    broker: Annotated[
        list[str], typer.Option("--broker", metavar="HOST:PORT", help="A broker, as clients reach it; repeatable.")
    ],
) -> None:
    """Make an authority, certificates and logins for brokers that others start, such as containers.

    Run it again to renew the certificate of the brokers. `rights apply --users` creates the logins at the brokers.

    Example: sdp-facade infra secrets docker/secrets --broker kafka:9092 --broker kafka-2:9092 --broker kafka-3:9092
    """
    if wrong := [one for one in broker if not _BROKER.fullmatch(one)]:
        raise ConfigError(f"--broker: expected HOST:PORT, with a name or an IPv4 address, got {wrong[0]!r:.100}")
    hosts = [one.partition(":")[0] for one in broker]
    Security(folder, names=hosts).make(",".join(broker), load_settings().prefix)


def start(services: Services, state_dir: StateDir = local.DEFAULT_STATE_DIR) -> None:
    """Start services again, on the same ports and data.

    `tango-db` may be started alone, also for the first time, beside brokers of another place.

    Example: sdp-facade infra start kafka-2 kafka-3
    """
    with _progress() as report:
        local.start_services(state_dir, *services, report=report)


def stop(
    services: Services,
    state_dir: StateDir = local.DEFAULT_STATE_DIR,
    kill: Annotated[bool, typer.Option("--kill", help="Kill at once (kill -9), as a power cut would.")] = False,
) -> None:
    """Stop services; their ports and data are kept for them.

    Example: sdp-facade infra stop kafka --kill
    """
    with _progress() as report:
        local.stop_services(state_dir, *services, kill=kill, report=report)


def print_environment(variables: dict[str, str]) -> None:
    """Print one line for evaluation by a shell; the settings file of a login is added behind those of the shell.

    It takes the place of a login at brokers of another folder, which may be gone.
    """
    if own := variables.get(FILE_VARIABLE):
        paths = filter(None, os.environ.get(FILE_VARIABLE, "").split(os.pathsep))
        folders = Path(own).parent.parts[-2:]
        others = (path for path in paths if Path(path).resolve().parent.parts[-2:] != folders)
        variables = {**variables, FILE_VARIABLE: os.pathsep.join([*others, own])}
    print("export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()))


@contextmanager
def _progress() -> Iterator[tools.Notify]:
    """Print each step with the time since the command began; a terminal also gets a spinner."""
    clock = SystemClock()
    begin = clock.monotonic()
    with ERR.status("") as spinner:

        def report(step: str) -> None:
            ERR.print(f"[dim]{clock.monotonic() - begin:5.1f} s[/dim]  {escape(step)}")
            spinner.update(escape(step))

        yield report

"""RabbitMQ as Debian has it, unpacked and not installed: one node on this machine, without plugins."""

import os
import re
from pathlib import Path
from typing import Any, Final

from facade.errors import InfraError
from facade.infra.ports import HOST, choose_port
from facade.infra.processes import Process
from proving.debian import Packages, unpacked_packages
from proving.deployment import Deployment

_PACKAGES: Final = Packages(
    name="rabbitmq",
    what="RabbitMQ",
    list=Path(__file__).with_name("rabbitmq-packages.txt"),
    programs=("usr/lib/erlang/bin/erlc",),
    megabytes=34,
    hint="RabbitMQ is unpacked from Debian's packages; elsewhere it is not measured",
)
_STARTED: Final = "Server startup complete"
_STARTS_WITHIN: Final = 120.0


def start(deployment: Deployment) -> tuple[Process, int]:
    """Start a node; return its process and its port.

    Raises
    ------
    InfraError
        Debian's packages cannot be had, or it does not start.
    """
    root = unpacked_packages(_PACKAGES, deployment.progress.step).path
    (erts,) = (root / "usr/lib/erlang").glob("erts-*")
    (scripts,) = (root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin")
    folder, port = deployment.folder / "rabbitmq", choose_port()
    environment = _environment(folder, erts, port)
    deployment.start("epmd", [f"{erts}/bin/epmd", "-port", environment["ERL_EPMD_PORT"]], **environment)
    server = deployment.start("rabbitmq", [f"{scripts}/rabbitmq-server"], **environment)

    def started() -> bool:
        if not server.is_alive:
            raise InfraError(f"RabbitMQ ended before it was ready; its output ends:\n{server.tail()}")
        return _STARTED in server.log.read_text(errors="replace")

    deployment.progress.demand(started, _STARTS_WITHIN, "RabbitMQ has started")
    return server, port


def version() -> str:
    """Return the version of the node that was unpacked last."""
    found = list(unpacked_packages(_PACKAGES, lambda _: None).path.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*"))
    return re.sub(r".*-", "", found[0].name) if found else "?"


def _environment(folder: Path, erts: Path, port: int) -> dict[str, Any]:
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "rabbitmq.conf").touch()
    (folder / "plugins").write_text("[].\n")
    # Debian's own `erl` looks for Erlang in /usr alone.
    erl = folder / "bin" / "erl"
    erl.write_text(
        f'#!/bin/sh\nexport ROOTDIR="{erts.parent}" BINDIR="{erts}/bin" EMU=beam PROGNAME=erl\n'
        f'exec "{erts}/bin/erlexec" "$@"\n'
    )
    erl.chmod(0o755)
    return {
        "PATH": f"{folder}/bin:{erts}/bin:{os.environ.get('PATH', os.defpath)}",
        "HOME": str(folder),  # of the cookie
        "ERL_EPMD_PORT": str(choose_port()),
        "ERL_EPMD_ADDRESS": HOST,
        "RUNNING_UNDER_SYSTEMD": "1",  # no shell between us and the process
        # A scheduler without work sleeps: else the processor time of waiting would count for messages.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": HOST,
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(choose_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "env"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
    }

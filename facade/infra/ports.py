"""Chooses TCP ports that keep working over a restart of the service."""

import errno
import secrets
import socket
from typing import Final

from facade.errors import InfraError

HOST: Final = "127.0.0.1"

# Below the range from which Linux takes ports for outgoing connections (32768 and up): while a
# service is down, the reconnecting clients themselves would otherwise take its port sooner or later.
_LOWEST: Final = 15_000
_HIGHEST: Final = 32_000
_ATTEMPTS: Final = 200


def is_free(port: int, host: str = HOST) -> bool:
    """Return whether a server could listen on this port of an address of this machine now."""
    with socket.socket() as probe:
        # As the servers do it: connections of a previous life that still linger are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def choose_port(host: str = HOST) -> int:
    """Return a port that is free now, and that no other call on this machine has returned whose process still runs.

    Raises
    ------
    InfraError
        No free port was found.
    """
    for _ in range(_ATTEMPTS):
        port = _LOWEST + secrets.randbelow(_HIGHEST - _LOWEST)
        if is_free(port, host) and _claim(port):
            return port
    raise InfraError(f"no free TCP port between {_LOWEST} and {_HIGHEST} on {host} in {_ATTEMPTS} attempts")


def _claim(port: int) -> bool:
    """Claim a port, which seems free until its server listens, until this process ends; return whether nobody has it.

    The claim is a name that is bound in the kernel. Its descriptor stays open.
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0sdp-facade-port-{port}")
    except OSError as error:
        claim.close()
        return error.errno != errno.EADDRINUSE  # a system without such names
    claim.detach()
    return True

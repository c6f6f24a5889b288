"""Chooses TCP ports that keep working over a restart of the service."""

import errno
import secrets
import socket
from typing import Final

from facade.kernel.errors import InfraError

HOST: Final = "127.0.0.1"

# Below the range of Linux's ports for outgoing connections (32768 and up): otherwise reconnecting clients would take
# the port of a stopped service sooner or later.
_LOWEST: Final = 15_000
_HIGHEST: Final = 32_000
_ATTEMPTS: Final = 200


def is_free(port: int, host: str = HOST) -> bool:
    """Return whether a server could listen on this port of an address of this machine now.

    Raises
    ------
    InfraError
        This user may not listen there.
    """
    with socket.socket() as probe:
        # As the servers do it: lingering connections of an earlier process are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except PermissionError as error:
            raise InfraError(
                f"port {port} of {host}: expected one on which this user may listen, got: {error.strerror}; choose one"
                " from 1024 on"
            ) from error
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
    """Claim a port until this process ends, as it seems free until its server listens; return whether it was unclaimed.

    The claim is a socket name bound in the kernel. Its descriptor stays open.
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0sdp-facade-port-{port}")
    except OSError as error:
        claim.close()
        return error.errno != errno.EADDRINUSE  # a system without such names
    claim.detach()
    return True

"""An address where nobody answers, and where nobody can begin to."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from facade.infra.ports import HOST


@contextmanager
def nobody() -> Iterator[str]:
    """Give host and port of a socket that is bound and does not listen: each connection to it is refused."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        yield f"{HOST}:{taken.getsockname()[1]}"

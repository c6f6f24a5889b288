"""The server of the operator's page in the process of the test."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import uvicorn

from tests.support.waiting import HANG, until


@contextmanager
def in_background(app: Any, port: int) -> Iterator[None]:
    """Serve the page in a thread until the end of the block."""
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, timeout_graceful_shutdown=1))

    async def serve() -> None:
        await server.serve()
        # The event stream of a browser that is still open was cancelled. Its connection is closed only now; otherwise a
        # later test, in which Python finds the socket, would fail.
        await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
        for _ in range(2):
            await asyncio.sleep(0)

    thread = Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    until(lambda: server.started, "the page is served")
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(HANG)

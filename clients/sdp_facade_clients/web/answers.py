"""How the page's server answers: JSON, errors in words, one answer for many browsers, and threads with a bound."""

import asyncio
import html
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response

from facade.kernel.errors import CommandRefused, FacadeError, InfraError
from sdp_facade_clients.web.doors import RequestRefused, TooManyRequests
from sdp_facade_clients.web.oidc import SignInRefused

_MOST_CALLS: Final = 9
"""Most calls that one place takes: it serves one, and the others wait."""
_SHARED: Final = 0.5
"""Time during which the same question gets the same answer [s]."""

Endpoint = Callable[[Request], Awaitable[Response]]


class Places:
    """Threads for questions and acts; those for signed-in people are reserved for them."""

    def __init__(self, *, anybody: int, people: int) -> None:
        self._limiters = {False: CapacityLimiter(anybody), True: CapacityLimiter(people)}
        self._calls = {False: 0, True: 0}

    async def run(self, call: Callable[[], Any], *, is_person: bool) -> Any:
        """Return what a call does in a thread, when there is a place; `TooManyRequests` if too many wait."""
        limiter = self._limiters[is_person]
        if self._calls[is_person] >= _MOST_CALLS * limiter.total_tokens:
            raise TooManyRequests
        self._calls[is_person] += 1
        try:
            return await to_thread.run_sync(call, limiter=limiter)
        finally:
            self._calls[is_person] -= 1


class Shared:
    """Asks once for all browsers that have the same question within half a second: devices are not asked by each."""

    def __init__(self, call: Callable[..., Any], places: Places) -> None:
        self._call, self._places = call, places
        self._under_way: dict[object, asyncio.Task[bytes]] = {}

    async def answer(self, asked: tuple[str, ...], version: int, *, is_person: bool) -> Response:
        """Return the answer; one of another version of the device in question is not shared."""
        task = self._under_way.get(key := (asked, version, is_person))
        if task is None:
            task = self._under_way[key] = asyncio.create_task(self._ask(asked, is_person=is_person))
            task.add_done_callback(lambda _: asyncio.get_running_loop().call_later(_SHARED, self._under_way.pop, key))
        return _encoded(await asyncio.shield(task))

    async def _ask(self, asked: tuple[str, ...], *, is_person: bool) -> bytes:
        return _encode(await self._places.run(lambda: self._call(*asked), is_person=is_person))


def answered(handler: Endpoint) -> Endpoint:
    """Turn what a handler raises into an answer with a text for the person."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestRefused as refused:
            return json_answer({"error": str(refused)}, refused.status)
        except SignInRefused as refused:
            return json_answer({"error": str(refused)}, 403)
        except TooManyRequests:
            return json_answer({"error": "too many requests; nothing was done, try again in a moment"}, 429)
        except CommandRefused as error:
            return json_answer({"error": str(error)}, 409)
        except (InfraError, OSError) as error:
            return json_answer({"error": str(error)}, 502)
        except (FacadeError, TypeError, ValueError) as error:
            return json_answer({"error": str(error)}, 400)

    return answer


def as_page(handler: Endpoint, home: str) -> Endpoint:
    """Show the person the errors of a handler to which the provider sends the browser."""

    async def answer(request: Request) -> Response:
        given = await handler(request)
        if given.status_code < 400:
            return given
        why, to = (html.escape(one) for one in (msgspec.json.decode(given.body)["error"], home))
        page = f"<!doctype html><title>Not signed in</title><h1>Not signed in</h1><p>{why}<p><a href='{to}'>Back</a>"
        return Response(page, given.status_code, {"Cache-Control": "no-store"}, media_type="text/html")

    return answer


_encode = msgspec.json.Encoder(enc_hook=str).encode


def json_answer(content: Any, status: int = 200) -> Response:
    """Return an answer in JSON that no cache keeps."""
    return _encoded(_encode(content), status)


def _encoded(content: bytes, status: int = 200) -> Response:
    return Response(content, status, media_type="application/json", headers={"Cache-Control": "no-store"})

"""How the page's server answers: JSON, errors in words, one answer for many browsers, and threads with a bound."""

import asyncio
import html
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response

from facade.kernel.errors import CommandRefused, FacadeError, InfraError
from sdp_facade_clients.web.doors import RequestRefused, TooManyRequests
from sdp_facade_clients.web.oidc import SignInRefused

_MOST_CALLS: Final = 9
"""Most calls of one address or person that one place takes: it serves one, and the others wait."""
_MOST_OF_ALL: Final = 400
"""Most calls that the places for anybody, or those for people, take together."""
_LONGEST_WAIT: Final = 35.0
"""Longest wait of a question for a place [s]; the page itself waits for 40 s."""
_SHARED: Final = 0.5
"""Time during which the same question gets the same answer [s]."""

Endpoint = Callable[[Request], Awaitable[Response]]
Wanted = Callable[[], Awaitable[bool]]


class Places:
    """Threads for questions and acts; those for signed-in people are reserved for them."""

    def __init__(self, *, anybody: int, people: int) -> None:
        self._limiters = {False: CapacityLimiter(anybody), True: CapacityLimiter(people)}
        self._calls = {False: Counter[str](), True: Counter[str]()}
        self._threads = CapacityLimiter(math.inf)  # a call with a place never waits for a thread

    async def run(
        self, call: Callable[[], Any], *, is_person: bool, who: str = "", is_wanted: Wanted | None = None
    ) -> Any:
        """Return what a call does in a thread, when there is a place.

        `TooManyRequests` if too many calls wait, in all or of this address or person, or if `is_wanted` denies.
        """
        limiter, calls = self._limiters[is_person], self._calls[is_person]
        if calls[who] >= _MOST_CALLS * limiter.total_tokens or calls.total() >= _MOST_OF_ALL:
            raise TooManyRequests
        calls[who] += 1
        try:
            async with limiter:
                if is_wanted is not None and not await is_wanted():
                    raise TooManyRequests
                return await to_thread.run_sync(call, limiter=self._threads)
        finally:
            calls[who] -= 1
            calls += Counter()  # removes counts of zero


class Shared:
    """Asks once for all browsers that have the same question within half a second: devices are not asked by each."""

    def __init__(self, call: Callable[..., Any], places: Places) -> None:
        self._call, self._places = call, places
        self._under_way: dict[object, tuple[asyncio.Task[bytes], list[Request]]] = {}

    async def answer(
        self, request: Request, asked: tuple[str, ...], version: int, who: str, *, is_person: bool
    ) -> Response:
        """Return the answer; one of another version of the device in question is not shared."""
        key, loop = (asked, version, is_person), asyncio.get_running_loop()
        task, askers = self._under_way.get(key, (None, []))
        if task is None:
            task = asyncio.create_task(self._ask(asked, who, askers, is_person=is_person))
            task.add_done_callback(lambda _: loop.call_later(_SHARED, self._under_way.pop, key))
            self._under_way[key] = task, askers
        askers.append(request)
        return _encoded(await asyncio.shield(task))

    async def _ask(self, asked: tuple[str, ...], who: str, askers: list[Request], *, is_person: bool) -> bytes:
        now = asyncio.get_running_loop().time
        until = now() + _LONGEST_WAIT

        async def is_wanted() -> bool:
            return now() <= until and not all([await one.is_disconnected() for one in askers])

        call = partial(self._call, *asked)
        return _encode(await self._places.run(call, is_person=is_person, who=who, is_wanted=is_wanted))


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

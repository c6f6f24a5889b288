"""Answers the browser: the stream of frames, single questions, and actions of people who have signed in."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clients.web import STATIC
from clients.web.doors import COOKIE, LONGEST_SESSION, Doors, PageRole, Person, TooManyRequests, headers, is_own_origin
from clients.web.feed import Feed, Points
from clients.web.site import Site
from facade.errors import CommandRefused, FacadeError, InfraError

_LARGEST_BODY: Final = 1_000_000
"""Of a request [bytes]: an argument of a whole telescope's size fits in."""
_SHARED: Final = 0.5
"""How long an answer is given to others who ask the same [s]."""
_RECONNECT_MS: Final = 500
"""After which a browser tries again when the stream has broken [ms]."""

Endpoint = Callable[[Request], Awaitable[Response]]


class RequestRefused(Exception):
    """A request that is answered with an HTTP status and a text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def make_app(
    feed: Feed,
    site: Site,
    doors: Doors,
    *,
    hosts: Sequence[str],
    secure: bool = False,
    follow: Callable[[str], None] = lambda device: None,
    problem: Callable[[], str] = lambda: "",
    before: Callable[[str, str, float], Points] = lambda device, attribute, time: ([], []),
) -> Starlette:
    """Make the web application.

    Parameters
    ----------
    hosts
        Names under which browsers may reach it: a page of another name cannot read through it.
    secure
        Whether it is served by TLS.
    follow
        Called with a device that somebody looks at.
    problem
        Says why the list of devices may be old; empty text: it is not.
    before
        Gives what a scalar showed before a time, as of `clients.web.past.ArchivedTrends.before`.
    """
    pages = _Pages(feed, site, doors, follow, problem, before)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(feed.run())
        yield
        task.cancel()

    return Starlette(
        routes=[
            *(Route(f"/api/{name}", _answered(handler)) for name, handler in pages.questions().items()),
            *(Route(f"/api/{name}", _answered(handler), methods=["POST"]) for name, handler in pages.acts().items()),
            Mount("/", StaticFiles(directory=STATIC, html=True)),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
            Middleware(_SecurityHeaders, secure=secure),
            Middleware(_Events, feed=feed),
        ],
        lifespan=lifespan,
    )


class _Pages:
    def __init__(
        self,
        feed: Feed,
        site: Site,
        doors: Doors,
        follow: Callable[[str], None],
        problem: Callable[[], str],
        before: Callable[[str, str, float], Points],
    ) -> None:
        self._feed, self._site, self._doors = feed, site, doors
        self._follow, self._problem, self._before = follow, problem, before

    def questions(self) -> Mapping[str, Endpoint]:
        """Return the answers to GET, by path."""
        site = self._site

        def asked(call: Callable[..., Any], *names: str, about: Callable[..., str] | None = None) -> Endpoint:
            """Answer by a call; an answer from before a change of the device that `about` names is not shared."""
            shared = _Shared(call)

            async def answer(request: Request) -> Response:
                given = tuple(request.query_params.get(name, "") for name in names)
                return await shared.answer(given, 0 if about is None else self._feed.changed(about(*given)))

            return answer

        return {
            "site": asked(lambda: {**site.description(), "problem": self._problem()}),
            "me": self._me,
            "follow": asked(self._follow, "device"),
            "trend": asked(self._trend, "device", "attribute"),
            "alarms": asked(site.alarms, about=lambda: site.alerts_device),
            "alarm-history": asked(site.alarm_history, "condition", "source"),
            "commands": asked(site.commands, "device"),
            "waiting": asked(site.waiting, "device", about=str),
            "schemas": asked(site.schemas, "family"),
            "read": asked(site.read, "device", "attribute"),
            "dead-letters": asked(site.dead_letters, "since"),
            "dead-letter": asked(site.dead_letter, "letter"),
        }

    def acts(self) -> Mapping[str, Endpoint]:
        """Return the answers to POST, by path."""
        site = self._site

        def acted(role: PageRole, call: Callable[..., Any], *names: str) -> Endpoint:
            async def answer(request: Request) -> Response:
                person, body = await self._may(request, role)
                return _json(await run_in_threadpool(call, person, *(str(body.get(name) or "") for name in names)))

            return answer

        async def alarm(request: Request) -> Response:
            person, body = await self._may(request, PageRole.OPERATOR)
            return _json(await run_in_threadpool(site.alarm_action, person, str(body.get("action")), body))

        async def redrive(request: Request) -> Response:
            body = await self._own(request)
            put_back = body.get("put_back") is True
            person = self._require(request, PageRole.EXPERT if put_back else PageRole.VIEWER)
            letters = [str(one) for one in body.get("letters", ())]
            return _json(await run_in_threadpool(partial(site.redrive, person, letters, put_back=put_back)))

        return {
            "redrive": redrive,
            "sign-in": self._sign_in,
            "sign-out": self._sign_out,
            "check": acted(PageRole.VIEWER, lambda _, *asked: site.check(*asked), "device", "command", "argument"),
            "command": acted(PageRole.OPERATOR, site.command, "device", "command", "argument"),
            "decide": acted(PageRole.OPERATOR, site.decide, "device", "decision", "id"),
            "alarm": alarm,
            "admin-mode": acted(PageRole.EXPERT, site.admin_mode, "device", "mode"),
        }

    def _trend(self, device: str, attribute: str) -> Points:
        self._site.require(device, attribute)
        times, values = self._feed.trend(device, attribute)
        earlier, earlier_values = self._before(device, attribute, times[0] if times else math.inf)
        return earlier + times, earlier_values + values

    async def _me(self, request: Request) -> Response:
        person = self._person(request)
        role = person.role.name.lower()
        return _json({"name": person.name, "role": role, "can_sign_in": self._doors.anybody_may_act})

    async def _sign_in(self, request: Request) -> Response:
        body = await self._own(request)
        session = self._doors.sign_in(str(body.get("token", "")))
        if session is None:
            raise RequestRefused(403, "token: expected one of this server's tokens, got another one")
        person = self._doors.who(session)
        answer = _json({"name": person.name, "role": person.role.name.lower()})
        answer.set_cookie(
            COOKIE,
            session,
            max_age=int(LONGEST_SESSION),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",  # also behind a proxy on this host that says so
        )
        return answer

    async def _sign_out(self, request: Request) -> Response:
        await self._own(request)
        self._doors.sign_out(request.cookies.get(COOKIE, ""))
        answer = _json(None)
        answer.delete_cookie(COOKIE)
        return answer

    def _person(self, request: Request) -> Person:
        return self._doors.who(request.cookies.get(COOKIE, ""))

    async def _may(self, request: Request, role: PageRole) -> tuple[Person, dict[str, Any]]:
        body = await self._own(request)
        return self._require(request, role), body

    def _require(self, request: Request, role: PageRole) -> Person:
        person = self._person(request)
        if person.role < role:
            had = f"{person.name} is {person.role.name.lower()}" if person.name else "nobody has signed in"
            raise RequestRefused(403, f"expected the role {role.name.lower()}, but {had}; nothing was done")
        return person

    async def _own(self, request: Request) -> dict[str, Any]:
        """Return the body of a request that our own page has sent."""
        head = request.headers
        if not is_own_origin(head.get("origin", ""), head.get("host", ""), head.get("sec-fetch-site", "")):
            raise RequestRefused(403, "Origin: expected this page, got another site; nothing was done")
        if head.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise RequestRefused(415, "Content-Type: expected application/json; nothing was done")
        self._doors.count(self._person(request).name or (request.client.host if request.client else ""))
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _LARGEST_BODY:
                raise RequestRefused(413, f"expected at most {_LARGEST_BODY} bytes; nothing was done")
        try:
            return msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise RequestRefused(400, f"expected a JSON object, got {error}; nothing was done") from error


class _Shared:
    """Asks once for all browsers that have the same question within half a second: devices are not asked by each."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._under_way: dict[object, asyncio.Task[bytes]] = {}

    async def answer(self, asked: tuple[str, ...], version: int) -> Response:
        task = self._under_way.get(key := (asked, version))
        if task is None:
            task = self._under_way[key] = asyncio.create_task(self._ask(asked))
            task.add_done_callback(lambda _: asyncio.get_running_loop().call_later(_SHARED, self._under_way.pop, key))
        return _encoded(await asyncio.shield(task))

    async def _ask(self, asked: tuple[str, ...]) -> bytes:
        return _encode(await run_in_threadpool(self._call, *asked))


class _Events:
    """Answers a browser with the stream of frames, from the one on that it names.

    It stands before the routes, and each stream is one task: what a browser costs counts, as there may be thousands.
    """

    def __init__(self, app: ASGIApp, *, feed: Feed) -> None:
        self._app, self._feed = app, feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/events":
            await self._app(scope, receive, send)
            return
        seen = dict(scope["headers"]).get(b"last-event-id", b"").decode("latin-1")
        head = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        head.append((b"x-accel-buffering", b"no"))
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send(_part(b"retry: %d\n\n" % _RECONNECT_MS))
        async with aclosing(self._feed.stream(seen)) as frames:
            async for text in frames:
                await send(_part(text))
                if _has_gone(receive):
                    return


def _part(content: bytes) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": True}


def _has_gone(receive: Receive) -> bool:
    """Return whether a browser has gone, without waiting for it."""
    asked: Any = receive()
    try:
        asked.send(None)
    except StopIteration as answer:
        return bool(answer.value["type"] == "http.disconnect")
    asked.close()
    return False


class _SecurityHeaders:
    """Adds the headers of `doors.headers` to every answer."""

    def __init__(self, app: ASGIApp, *, secure: bool) -> None:
        self._app, self._secure = app, secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = MutableHeaders(scope=message)
                for name, value in headers(scope["path"], secure=self._secure):
                    known[name] = value
                known.setdefault("Cache-Control", "no-cache")
            await send(message)

        await self._app(scope, receive, sent if scope["type"] == "http" else send)


def _answered(handler: Endpoint) -> Endpoint:
    """Turn what a handler raises into an answer with a text for the person."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestRefused as refused:
            return _json({"error": str(refused)}, refused.status)
        except TooManyRequests:
            return _json({"error": "too many requests; nothing was done, try again in a moment"}, 429)
        except CommandRefused as error:
            return _json({"error": str(error)}, 409)
        except InfraError as error:
            return _json({"error": str(error)}, 502)
        except (FacadeError, TypeError, ValueError) as error:
            return _json({"error": str(error)}, 400)

    return answer


_encode = msgspec.json.Encoder(enc_hook=str).encode


def _json(content: Any, status: int = 200) -> Response:
    return _encoded(_encode(content), status)


def _encoded(content: bytes, status: int = 200) -> Response:
    return Response(content, status, media_type="application/json", headers={"Cache-Control": "no-store"})

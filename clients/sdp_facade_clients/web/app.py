"""Answers the browser: the stream of frames, single questions, and actions of signed-in people."""

import asyncio
import logging
import math
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import msgspec
from anyio import BrokenWorkerProcess, CapacityLimiter, fail_after, to_process, to_thread
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from facade.flows.commands.arguments import mistakes
from facade.kernel.clock import SystemClock
from facade.kernel.errors import InfraError
from facade.sdp.messages import PageAct
from sdp_facade_clients.web import STATIC
from sdp_facade_clients.web.answers import Endpoint, Places, Shared, answered, as_page, json_answer
from sdp_facade_clients.web.displays import Displays
from sdp_facade_clients.web.doors import (
    COOKIE,
    LONGEST_SESSION,
    SIGN_IN_COOKIE,
    Doors,
    PageRole,
    Person,
    RequestRefused,
    TooManyRequests,
    cookie,
    headers,
    host_in_url,
    is_foreign,
    is_own_origin,
    network,
    require,
)
from sdp_facade_clients.web.feed import HOUR, SPANS, Events, Feed, Points
from sdp_facade_clients.web.journal import LONGEST_NAME, LONGEST_NOTE, Journal
from sdp_facade_clients.web.oidc import BACK, LONGEST_SIGN_IN, SignOn
from sdp_facade_clients.web.openapi import document
from sdp_facade_clients.web.site import Site
from sdp_facade_clients.web.timeline import Timelines

if TYPE_CHECKING:  # its libraries are of another extra
    from sdp_facade_clients.web.archived import ArchivedAnswers

_log = logging.getLogger(__name__)

_LARGEST_BODY: Final = 1_000_000
"""Largest body of a request [bytes]: an argument for a whole telescope fits in."""
_LARGEST_SIGN_IN: Final = 4_000
"""Largest body of a request without a sign-in [bytes]."""
_LONGEST_CHECK: Final = 30.0
"""Longest check of an argument, with the start of the process that checks it [s]."""
_STEP: Final = 2.0
"""Time between two looks whether the provider has to confirm a person [s]."""


def make_app(
    feed: Feed,
    site: Site,
    doors: Doors,
    *,
    hosts: Sequence[str],
    follow: Callable[[str], None] = lambda device: None,
    problem: Callable[[], str] = lambda: "",
    before: Callable[[str, str, float, float], Points] = lambda device, attribute, time, span: ([], []),
    answers: "ArchivedAnswers | None" = None,
    keep: Callable[[PageAct], None] = lambda act: None,
    comment: Callable[[PageAct], None] | None = None,
    sign_on: SignOn | None = None,
    displays: Displays | None = None,
) -> Starlette:
    """Make the web application.

    Parameters
    ----------
    hosts
        Names under which browsers may reach it: a page of another name cannot read through it.
    follow
        Called with a device that somebody looks at.
    problem
        Says why the list of devices may be old; empty text: it is not.
    before
        Gives what a scalar showed before a time, as of `sdp_facade_clients.web.past.ArchivedTrends.before`.
    answers
        Answers from an archive; None: the page has none, and says so.
    keep
        Called with each act that no record of another program has with its person; without waiting for anything.
    comment
        Called with each comment; it returns when the record is durable, or raises. None: comments are refused.
    sign_on
        Signs people in by a provider, beside tokens; None: there is none.
    displays
        Displays that all browsers share; None: each browser keeps its own.
    """
    journal = Journal(keep, SystemClock())
    pages = _Pages(feed, site, doors, follow, problem, before, answers, journal, comment, sign_on, displays)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(one) for one in (feed.run(), pages.confirm())]
        yield
        for task in tasks:
            task.cancel()

    return Starlette(
        routes=[
            *(Route(f"/api/{name}", answered(pages.asked(one))) for name, one in pages.questions().items()),
            *(Route(f"/api/{name}", answered(one), methods=["POST"]) for name, one in pages.acts().items()),
            *pages.of_provider(),
            Mount("/", StaticFiles(directory=STATIC, html=True)),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=[*map(host_in_url, hosts)], www_redirect=False),
            Middleware(_SecurityHeaders),
            Middleware(Events, feed=feed),
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
        before: Callable[[str, str, float, float], Points],
        answers: "ArchivedAnswers | None",
        journal: Journal,
        comment: Callable[[PageAct], None] | None,
        sign_on: SignOn | None,
        displays: Displays | None,
    ) -> None:
        self._feed, self._site, self._doors, self._journal = feed, site, doors, journal
        self._follow, self._problem, self._before = follow, problem, before
        self._answers, self._keep_comment, self._sign_on, self._displays = answers, comment, sign_on, displays
        self._timelines = Timelines(feed, site, SystemClock(), answers.timeline if answers else None)
        self._of_devices, self._of_bus = Places(anybody=8, people=32), Places(anybody=1, people=2)
        self._of_archive, self._of_timelines = Places(anybody=2, people=2), Places(anybody=2, people=2)
        self._of_reports = Places(anybody=1, people=1)
        self._of_displays = Places(anybody=8, people=8)
        self._of_provider = Places(anybody=4, people=1)
        self._checks = CapacityLimiter(1)

    def asked(self, handler: Endpoint) -> Endpoint:
        """Refuse a question of another site, and one too many."""

        async def answer(request: Request) -> Response:
            if is_foreign(request.headers.get("sec-fetch-site", "")):
                raise RequestRefused(403, "Sec-Fetch-Site: expected this page, got another site")
            self._doors.questions.count(self._who(request))
            return await handler(request)

        return answer

    def questions(self) -> Mapping[str, Endpoint]:
        """Return the answers to GET, by path."""
        site = self._site

        def asked(
            call: Callable[..., Any],
            *names: str,
            about: Callable[..., str] | None = None,
            places: Places = self._of_devices,
        ) -> Endpoint:
            """Answer by a call; an answer from before a change of the device that `about` names is not shared."""
            shared = Shared(call, places)

            async def answer(request: Request) -> Response:
                given = tuple(",".join(request.query_params.getlist(name)) for name in names)
                version = 0 if about is None else self._feed.changed(about(*given))
                is_person = bool(self._person(request).name)
                return await shared.answer(request, given, version, self._who(request), is_person=is_person)

            return answer

        more = {"archive": bool(self._answers), "provider": self._sign_on.name if self._sign_on else ""}
        more["displays"] = bool(self._displays)
        return {
            "site": asked(lambda: {**site.description(), "problem": self._problem(), **more}),
            "openapi.json": asked(document),
            "at": asked(self._at, "time", "device", "step", "count", "post_mortem", places=self._of_archive),
            "post-mortems": asked(self._post_mortems, "condition", "source", "raised_at", places=self._of_archive),
            "differences": asked(self._differences, "time", "against", places=self._of_archive),
            "history": asked(
                self._history, "device", "attribute", "begin", "end", "points", "post_mortem", places=self._of_archive
            ),
            "timeline": asked(self._timeline, "device", "begin", "end", "post_mortem", places=self._of_timelines),
            "execution-blocks": asked(self._timelines.execution_blocks, "days", places=self._of_timelines),
            "execution-block": asked(self._timelines.execution_block, "id", places=self._of_timelines),
            "report": self._report,
            "display": self._display,
            "display-versions": asked(lambda id: self._shared().versions(id), "id", places=self._of_displays),
            "me": self._me,
            "follow": asked(self._follow, "device"),
            "trend": asked(self._trend, "device", "attribute", "hours"),
            "alarms": asked(site.alarms, about=lambda: site.alerts_device),
            "judgement": asked(site.judgement, about=lambda: site.alerts_device),
            "alarm-history": asked(site.alarm_history, "condition", "source"),
            "commands": asked(site.commands, "device"),
            "waiting": asked(site.waiting, "device", about=str),
            "nodes": asked(site.nodes),
            "schemas": asked(site.schemas, "family"),
            "read": asked(site.read, "device", "attribute"),
            "acts": asked(site.acts, "since", places=self._of_bus),
            "dead-letters": asked(site.dead_letters, "since", places=self._of_bus),
            "dead-letter": asked(site.dead_letter, "letter", places=self._of_bus),
        }

    def acts(self) -> Mapping[str, Endpoint]:
        """Return the answers to POST, by path."""
        site = self._site

        def acted(
            role: PageRole, call: Callable[[Person, Mapping[str, Any]], Any], places: Places = self._of_devices
        ) -> Endpoint:
            async def answer(request: Request) -> Response:
                person, asked = await self._may(request, role)
                return json_answer(await places.run(lambda: call(person, asked), is_person=True))

            return self._logged(answer)

        def redrive(person: Person, asked: Mapping[str, Any]) -> Any:
            put_back = asked.get("put_back") is True
            require(person, PageRole.EXPERT if put_back else PageRole.VIEWER)
            return site.redrive([str(one) for one in asked.get("letters", ())], put_back=put_back)

        def save(person: Person, asked: Mapping[str, Any]) -> Any:
            id, base, model = (asked.get(name) for name in ("id", "version", "model"))
            if not (isinstance(id, str) and type(base) is int and isinstance(model, dict)):
                raise RequestRefused(400, "expected id, version and model of a display; nothing was done")
            return self._shared().save(person, id, base, model)

        def text(asked: Mapping[str, Any], *names: str) -> Sequence[str]:
            return [str(asked.get(name) or "") for name in names]

        command, decision, mode = ("device", "command", "argument"), ("device", "decision", "id"), ("device", "mode")
        return {
            "sign-in": self._logged(self._sign_in),
            "sign-out": self._logged(self._sign_out),
            "check": self._check,
            "comment": self._logged(self._comment),
            "display": acted(PageRole.OPERATOR, save, self._of_displays),
            "redrive": acted(PageRole.VIEWER, redrive, self._of_bus),
            "command": acted(PageRole.OPERATOR, lambda person, asked: site.command(person, *text(asked, *command))),
            "decide": acted(PageRole.OPERATOR, lambda person, asked: site.decide(person, *text(asked, *decision))),
            "alarm": acted(
                PageRole.OPERATOR, lambda person, asked: site.alarm_action(person, str(asked.get("action")), asked)
            ),
            "admin-mode": acted(PageRole.EXPERT, lambda person, asked: site.admin_mode(person, *text(asked, *mode))),
        }

    def _logged(self, handler: Endpoint) -> Endpoint:
        """Log each request of a handler, with person, address and result."""

        async def answer(request: Request) -> Response:
            request.state.person, request.state.asked = self._person(request), {}
            try:
                given = await handler(request)
            except TooManyRequests:
                raise  # a refused flood of requests must not flood the log
            except Exception as error:
                if not request.state.person.name:
                    self._doors.refusals.count(_address(request))
                self._journal.note(request, error)
                raise
            told = getattr(request.state, "told", bytes(given.body).decode())
            self._journal.note(request, None, told)
            return given

        return answer

    def _archived(self) -> "ArchivedAnswers":
        if self._answers is None:
            what = "expected a page with an archive, got one without: start its server with --archive FOLDER"
            raise RequestRefused(404, what)
        return self._answers

    def _shared(self) -> Displays:
        if self._displays is None:
            what = "expected a page that keeps displays, got one without: start its server with --displays FOLDER"
            raise RequestRefused(404, what)
        return self._displays

    async def _display(self, request: Request) -> Response:
        """Answer with a display as it is now: an answer of half a second ago may have another version."""
        id, version = (request.query_params.get(name, "") for name in ("id", "version"))
        is_person = bool(self._person(request).name)
        return json_answer(await self._of_displays.run(lambda: self._shared().read(id, version), is_person=is_person))

    def _at(self, *asked: str) -> Any:
        return self._archived().of(asked[-1]).at(*asked[:-1])

    def _timeline(self, device: str, begin: str, end: str, post_mortem: str) -> Any:
        of = self._timelines
        if post_mortem:
            archive = self._archived().of(post_mortem).timeline
            of = Timelines(self._feed, self._site, SystemClock(), archive, is_kept=True)
        return of.between(device, begin, end)

    def _post_mortems(self, condition: str, source: str, raised_at: str) -> Any:
        return self._archived().post_mortems(condition, source, raised_at)

    def _differences(self, time: str, against: str) -> Any:
        return self._archived().differences(time, against)

    def _history(self, *asked: str) -> Any:
        return self._archived().of(asked[-1]).history(*asked[:-1])

    def _trend(self, device: str, attribute: str, hours: str) -> Points:
        self._site.require(device, attribute)
        spans = {f"{span / HOUR:g}": span for span in SPANS} | {"": HOUR}
        if (span := spans.get(hours)) is None:
            raise ValueError(f"hours: expected one of {', '.join(filter(None, spans))}, got {hours!r:.50}")
        times, values = self._feed.trend(device, attribute, span)
        earlier, earlier_values = self._before(device, attribute, times[0] if times else math.inf, span)
        return earlier + times, earlier_values + values

    async def _report(self, request: Request) -> Response:
        """Answer with the report of an execution block as a file; it takes long, so only people may ask for it."""
        self._allowed(request, PageRole.VIEWER)
        id = request.query_params.get("id", "")
        page = await self._of_reports.run(lambda: self._archived().report(id), is_person=True)
        head = {"Content-Disposition": 'attachment; filename="execution-block.html"', "Cache-Control": "no-store"}
        return Response(page, media_type="text/html", headers=head)

    async def _comment(self, request: Request) -> Response:
        person, asked = await self._may(request, PageRole.OPERATOR)
        about, text = (str(asked.get(name) or "").strip() for name in ("about", "text"))
        for name, given, most in (("about", about, LONGEST_NAME), ("text", text, LONGEST_NOTE)):
            if not 0 < len(given) <= most:
                raise RequestRefused(
                    400, f"{name}: expected 1 to {most} characters, got {len(given)}; nothing was done"
                )
        if (keep := self._keep_comment) is None:
            what = "expected a page with the settings of the bus, where comments are kept; got one without"
            raise RequestRefused(404, f"{what}; nothing was done")
        act = self._journal.act(request, about, text)
        await self._of_bus.run(lambda: keep(act), is_person=bool(person.name))
        return json_answer(None)

    async def _check(self, request: Request) -> Response:
        _, asked = await self._may(request, PageRole.VIEWER)
        family = self._site.argument(str(asked.get("device")), str(asked.get("command")))
        if family is None:
            return json_answer([])
        try:
            with fail_after(_LONGEST_CHECK):  # in a process of its own: no thread can be stopped
                argument = str(asked.get("argument"))
                return json_answer(
                    await to_process.run_sync(mistakes, family, argument, cancellable=True, limiter=self._checks)
                )
        except (TimeoutError, BrokenWorkerProcess) as error:
            raise InfraError(f"the argument could not be checked within {_LONGEST_CHECK:g} s") from error

    async def _me(self, request: Request) -> Response:
        person, unconfirmed = self._person(request, used="used" in request.query_params), self._is_unconfirmed(request)
        shown = {"name": person.name, "role": person.role.name.lower(), "can_sign_in": self._doors.anybody_may_act}
        ended = bool(_session(request)) and not (person.name or unconfirmed)
        return json_answer({**shown, "unconfirmed": unconfirmed, "ended": ended})

    async def _sign_in(self, request: Request) -> Response:
        body = await self._own(request, _LARGEST_SIGN_IN)
        session = self._doors.sign_in(str(body.get("token", "")), _session(request))
        if session is None:
            raise RequestRefused(403, "the token is not valid; ask who maintains the tokens of this page")
        person = request.state.person = self._doors.who(session)
        answer = json_answer({"name": person.name, "role": person.role.name.lower()})
        _give(request, answer, session, int(LONGEST_SESSION))
        return answer

    async def _sign_out(self, request: Request) -> Response:
        await self._own(request, _LARGEST_SIGN_IN)
        key, to = self._doors.sign_out(_session(request)), None
        if self._sign_on is not None and (to := self._sign_on.leave(key)) is not None:
            self._doors.sign_out_everywhere(key)
        request.state.told = "null"  # the address has the person's ID token
        answer = json_answer(to and {"to": to})
        _give(request, answer, "", 0)
        return answer

    def of_provider(self) -> Sequence[Route]:
        """Return the routes by which people sign in and out by the provider."""
        if (sign_on := self._sign_on) is None:
            return ()

        async def begin(request: Request) -> Response:
            """Answer with the address at the provider, and end the session before."""
            await self._own(request, _LARGEST_SIGN_IN)
            if (own := request.headers["origin"]) != sign_on.origin:
                raise RequestRefused(409, f"expected the page at {sign_on.home}, got {own}; sign in there")
            self._doors.questions.count(_address(request))
            secret = secrets.token_urlsafe(32)
            answer = json_answer({"to": await self._of_provider.run(lambda: sign_on.begin(secret), is_person=False)})
            self._doors.sign_out(_session(request))
            _give(request, answer, secret, int(LONGEST_SIGN_IN), SIGN_IN_COOKIE)
            return answer

        async def back(request: Request) -> Response:
            """Finish a sign-in by the provider; the cookie shows that this browser began it."""
            self._doors.questions.count(_address(request))  # each asks the provider, also one with a forged cookie
            secret, given = request.cookies.get(cookie(request.url.scheme, SIGN_IN_COOKIE), ""), request.query_params
            key = await self._of_provider.run(lambda: sign_on.finish(secret, given), is_person=False)
            session = self._doors.open(key)
            request.state.person = self._doors.who(session)
            answer = RedirectResponse(sign_on.home, 303, {"Cache-Control": "no-store"})
            _give(request, answer, session, int(LONGEST_SESSION))
            _give(request, answer, "", 0, SIGN_IN_COOKIE)
            return answer

        async def signed_out(request: Request) -> Response:
            """End a person's sessions after a sign-out at the provider."""
            self._doors.questions.count(_address(request))
            asked = parse_qs((await _body(request, _LARGEST_SIGN_IN)).decode(errors="replace"))
            (token,) = asked.get("logout_token", [""])
            key, name = await self._of_provider.run(lambda: sign_on.signed_out(token), is_person=False)
            self._doors.sign_out_everywhere(key)
            request.state.person = Person(name, PageRole.VIEWER)
            return json_answer(None)

        return (
            Route("/api/provider", answered(begin), methods=["POST"]),
            Route(f"/{BACK}", as_page(answered(self._logged(back)), sign_on.home)),
            Route("/sso/sign-out", answered(self._logged(signed_out)), methods=["POST"]),
        )

    async def confirm(self) -> None:
        """Ask the provider periodically to confirm its sessions."""
        while (sign_on := self._sign_on) is not None:
            await asyncio.sleep(_STEP)
            try:
                while (key := await to_thread.run_sync(sign_on.step, self._doors.present())) is not None:
                    self._doors.sign_out_everywhere(key)
            except Exception:
                _log.exception("the rights of people who signed in by %s were not confirmed", sign_on.name)

    def _person(self, request: Request, *, used: bool = False) -> Person:
        return self._doors.who(_session(request), used=used)

    def _who(self, request: Request) -> str:
        return self._person(request).name or _address(request)

    def _is_unconfirmed(self, request: Request) -> bool:
        return self._sign_on is not None and self._sign_on.is_unconfirmed(self._doors.key_of(_session(request)))

    def _allowed(self, request: Request, role: PageRole, *, used: bool = False) -> Person:
        person = self._person(request, used=used)
        if self._is_unconfirmed(request):
            what = "expected a role that the provider has confirmed within a minute, but it cannot be reached"
            raise RequestRefused(403, f"{what}; sign in with a token instead; nothing was done")
        require(person, role)
        return person

    async def _may(self, request: Request, role: PageRole) -> tuple[Person, dict[str, Any]]:
        """Return the person and the body of a request, which is not even read without the role."""
        if "at" in request.query_params:  # a page that shows the past says so
            what = f"expected a page that shows now, got one that shows {request.query_params['at']:.50}"
            raise RequestRefused(409, f"at: {what}; nothing was done")
        person = self._allowed(request, role, used=True)
        self._doors.acts.count(person.name)
        request.state.asked = await self._own(request, _LARGEST_BODY)
        return person, request.state.asked

    async def _own(self, request: Request, largest: int) -> dict[str, Any]:
        """Return the body of a request that our own page has sent."""
        head = request.headers
        own = f"{request.url.scheme}://{head.get('host', '')}"
        if not is_own_origin(origin := head.get("origin", ""), own, head.get("sec-fetch-site", "")):
            behind = "; the proxy must be named by --proxy" if origin.partition(":")[2] == own.partition(":")[2] else ""
            raise RequestRefused(403, f"Origin: expected {own}, got {origin or 'none'}{behind}; nothing was done")
        if head.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise RequestRefused(415, "Content-Type: expected application/json; nothing was done")
        try:
            return msgspec.json.decode(await _body(request, largest), type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RequestRefused(400, f"expected a JSON object, got {error}; nothing was done") from error


def _session(request: Request) -> str:
    return request.cookies.get(cookie(request.url.scheme), "")


def _give(request: Request, answer: Response, value: str, lasts: int, name: str = COOKIE) -> None:
    """Give the browser a cookie for some time [s], or take it; a sign-in comes back from another site."""
    scheme = request.url.scheme
    answer.set_cookie(
        cookie(scheme, name),
        value,
        max_age=lasts,
        httponly=True,
        samesite="strict" if name == COOKIE else "lax",
        secure=scheme == "https",  # also behind a proxy that is trusted to say so
    )


async def _body(request: Request, largest: int) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > largest:
            raise RequestRefused(413, f"expected at most {largest} bytes; nothing was done")
    return body


def _address(request: Request) -> str:
    return network(request.client.host) if request.client else ""


class _SecurityHeaders:
    """Adds the headers of `doors.headers` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = MutableHeaders(scope=message)
                for name, value in headers(scope["path"], scope["scheme"]):
                    known[name] = value
                known.setdefault("Cache-Control", "no-cache")
            await send(message)

        await self._app(scope, receive, sent if scope["type"] == "http" else send)

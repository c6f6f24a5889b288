"""The sub-command ``web`` of ``sdp-facade``: serves the operator's page."""

import gc
import ipaddress
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from facade.flows.overview.page_acts import act_record
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.cli.tango_host import TangoHost, require_tango_database
from facade.kernel.clock import Clock, SystemClock
from facade.kernel.config import load_client_settings, load_settings
from facade.kernel.console import say
from facade.kernel.errors import ConfigError, FacadeError
from facade.kernel.icd.load import load
from facade.kernel.logs import start_logging
from facade.kernel.names import SERVER
from facade.kernel.runtime.steps import StepThread
from sdp_facade_clients.web import how_to_install
from sdp_facade_clients.web.doors import LOCAL

if TYPE_CHECKING:
    from facade.kernel.icd.model import Icd
    from sdp_facade_clients.web.site import Site

TOKENS = "SDP_WEB_TOKENS"
ARCHIVE = "SDP_WEB_ARCHIVE"
POST_MORTEMS = "SDP_WEB_POST_MORTEMS"
PROXIES = "SDP_WEB_PROXY"
OIDC = "SDP_WEB_OIDC"
DISPLAYS = "SDP_WEB_DISPLAYS"
_LONGEST_WRITE = 10.0
"""Time in which brokers confirm a comment [s]."""
_POLLED_EACH = 1.0
"""Time between two looks at the reports of Kafka's client [s]."""
_LONGEST_END = 2.0
"""Time in which queued records leave when the server ends [s]."""


def web(
    tango_host: TangoHost = "",
    host: Annotated[
        str, typer.Option(help="Address to listen at; others than localhost can be reached by others.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: a free one.")] = 8800,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Name under which browsers reach it, such as sdp.example.org; may be repeated."),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            envvar=f"{TOKENS}_FILE",
            help="File with a line `ROLE NAME TOKEN` for each person who may act; roles: viewer, operator, expert.",
        ),
    ] = None,
    oidc: Annotated[
        Path | None,
        typer.Option(
            envvar=f"{OIDC}_FILE",
            help=f"Settings (TOML) of OpenID Connect, by which people sign in; {OIDC}_SECRET may have the secret.",
        ),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            envvar=PROXIES,
            help="Address or network of the site's proxy: its headers name scheme and browser. May be repeated.",
        ),
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="PEM file of the certificate chain, for TLS.")] = None,
    key: Annotated[Path | None, typer.Option(help="PEM file of the certificate's key.")] = None,
    archive: Annotated[
        str,
        typer.Option(
            envvar=ARCHIVE,
            metavar="FOLDER",
            help="Archive, a folder or its URL: the page then also shows the past.",
        ),
    ] = "",
    post_mortems: Annotated[
        str,
        typer.Option(
            envvar=POST_MORTEMS,
            metavar="FOLDER",
            help="Post-mortems that `archive run --post-mortems` keeps: an alarm has links to its own.",
        ),
    ] = "",
    displays: Annotated[
        Path | None,
        typer.Option(
            envvar=DISPLAYS,
            metavar="FOLDER",
            help="Where displays of Explore are kept for all browsers; without it, each browser keeps its own.",
        ),
    ] = None,
    banner: Annotated[str, typer.Option(help="Text on every page, such as: simulated data.")] = "",
) -> None:
    """Serve the operator's page: state, alarms, commands and trends in a browser.

    Every visitor may look. To act, a person signs in with a token of the file, or by the site's provider of
    OpenID Connect.

    Example: TANGO_HOST=localhost:10000 sdp-facade web --tokens tokens.txt
    """
    require_tango_database(tango_host)
    if (certificate is None) != (key is None):
        raise ConfigError("--certificate and --key: expected both or neither, got one")
    if certificate is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        except OSError as error:  # which names no file
            files = f"--certificate {certificate}, --key {key}"
            raise ConfigError(f"{files}: expected a certificate chain and its key in PEM, got: {error}") from error
    if post_mortems and not archive:
        raise ConfigError("--post-mortems: expected --archive as well, got none")
    proxies = [_network(one) for one in proxy or ()]
    if how := how_to_install():
        raise ConfigError(f"the operator's page is not installed; install it by: {how}")
    import uvicorn  # in the extra `web`

    from sdp_facade_clients.alert_subscription import AlertSubscription  # imports Tango, which takes a second
    from sdp_facade_clients.web.app import make_app
    from sdp_facade_clients.web.displays import Displays
    from sdp_facade_clients.web.doors import Doors, TokenFile, host_in_url, read_tokens
    from sdp_facade_clients.web.feed import KEPT_ALERTS, Feed
    from sdp_facade_clients.web.following import Following
    from sdp_facade_clients.web.oidc import make_sign_on
    from sdp_facade_clients.web.site import ALERTS, Site

    # An answer from the archive makes thousands of objects, and they hold no cycles.
    gc.set_threshold(100_000)
    icd, clock = load(), SystemClock()
    given = read_tokens(os.environ.get(TOKENS, ""), TOKENS)
    by_token = TokenFile(tokens, clock) if tokens is not None else lambda: given
    sign_on = make_sign_on(oidc, os.environ.get(f"{OIDC}_SECRET", ""), clock) if oidc is not None else None
    people = by_token if sign_on is None else lambda: {**by_token(), **sign_on.people()}
    doors = Doors(people, clock, has_provider=sign_on is not None)
    start_logging("component:web")
    following = Following(
        tango_host,
        SERVER,
        icd,
        clock,
        on_change=lambda device, attribute: feed.mark(device, attribute),
        on_forget=lambda device, attributes: feed.forget(device, attributes),
    )
    feed = Feed(following.recorder, following, clock)
    site = Site(
        *(tango_host, icd, lambda: following.devices, clock),
        instances=lambda: following.instances,
        silent=following.silent,
        banner=banner,
    )
    with _kept(clock) as kept:
        app = make_app(
            feed,
            site,
            doors,
            hosts=[*LOCAL, host, *(name or ())],
            follow=following.ask,
            problem=lambda: following.problem,
            sign_on=sign_on,
            displays=Displays(displays, clock) if displays is not None else None,
            **kept,
            **(_archived(archive, post_mortems, icd, site, clock) if archive else {}),
        )
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            log_config=None,  # of start_logging
            log_level="warning",
            proxy_headers=bool(proxies),
            forwarded_allow_ips=proxies,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            timeout_graceful_shutdown=1,
            server_header=False,
            access_log=False,
        )
        server = uvicorn.Server(config)
        sockets = [_listening(host, port)]
        shown = sockets[0].getsockname()[1]
        scheme = "https" if certificate else "http"
        say(f"the operator's page: {scheme}://{'localhost' if host in LOCAL else host_in_url(host)}:{shown}/")
        if not doors.anybody_may_act:
            say("read-only, as there are no tokens; see --tokens and --oidc")
        following.start()
        alerts = AlertSubscription(
            f"tango://{tango_host}/{icd.classes[ALERTS].device}", feed.take_alert, recent=KEPT_ALERTS
        )
        with closing(following), closing(alerts):
            server.run(sockets)


def _listening(host: str, port: int) -> socket.socket:
    """Return the socket of the server; uvicorn's own error names no port, and ends the process."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen()
    except OSError as error:
        found.close()
        what = f"expected an address of this host and a free port, got: {error.strerror}"
        raise ConfigError(
            f"--host {host} --port {port}: {what}; end the program that has the port, or name another one"
        ) from error
    return found


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ConfigError(f"--proxy: expected an address or a network such as 192.0.2.0/28, got {error}") from error


@contextmanager
def _kept(clock: Clock) -> Iterator[dict[str, Any]]:
    """Give what writes acts for the audit; without the settings of a broker, the log alone has them."""
    try:
        settings = load_client_settings()
    except ConfigError as error:
        say(f"who signs in is in the log only, not in `sdp-facade audit`, and no comment is taken: {error}")
        yield {}
        return
    writer = KafkaBus(Connection(settings, clock=clock), client="web").writer()
    # Between acts, which may be hours apart: otherwise the event loop would serve all reports of that time at once.
    polling = StepThread(writer.poll, "acts", each=_POLLED_EACH)
    polling.start()
    try:
        yield {
            "keep": lambda act: writer.send(act_record(act)),
            "comment": lambda act: writer.send_durably(act_record(act), _LONGEST_WRITE),
        }
    finally:
        polling.end(_LONGEST_END)
        writer.close(_LONGEST_END)


def _archived(place: str, post_mortems: str, icd: "Icd", site: "Site", clock: Clock) -> dict[str, Any]:
    """Return what the application takes from an archive."""
    try:
        from facade.archive.history import HistoryArchive
        from sdp_facade_clients.web.archived import ArchivedAnswers
        from sdp_facade_clients.web.past import ArchivedTrends
    except ImportError as error:
        raise ConfigError("--archive needs pyarrow and duckdb: pip install 'sdp-tango-facade[archive]'") from error
    from facade.archive.stores import open_store

    store = open_store(place)
    answers = ArchivedAnswers(store, icd, site, clock, load_settings().rack_size, post_mortems)

    def warm_up() -> None:
        with suppress(FacadeError, OSError):  # the next question has the error in its answer
            answers.at("", "")

    Thread(target=warm_up, daemon=True).start()  # the first answer reads the times of all files
    return {"before": ArchivedTrends(HistoryArchive(store), clock).before, "answers": answers}

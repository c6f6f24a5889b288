"""`sdp-facade reservations`: the reservations, read from the bus."""

import json
from typing import Annotated

import typer

from facade.flows.reservations.ledger import RESERVATIONS, ReservationLedger, as_dict, owner_of
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.clock import SystemClock, Time
from facade.kernel.config import MOST_SUBARRAYS, load_settings
from facade.kernel.console import ERR, OUT, AsJson, moment, table, wide
from facade.kernel.outcome import RecordRejected
from facade.sdp.messages import Reservation

_WIDE = 500
_EXPIRED = "expired"


def list_reservations(
    subarray: Annotated[
        list[int] | None, typer.Option(min=1, max=MOST_SUBARRAYS, help="Only of this subarray; repeatable.")
    ] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only of this kind, such as receptors; repeatable.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also those that have expired.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show reservations with their owners, states and expiries, and conflicts of owners.

    Example: sdp-facade reservations list --subarray 1
    """
    now = SystemClock().now_us()
    ledger, unreadable = ReservationLedger(lambda: now), 0
    for record in KafkaBus(Connection(load_settings()), client="reservations-list").read_all(RESERVATIONS):
        unreadable += isinstance(ledger.fold(record, count=True), RecordRejected)
    chosen = sorted(
        (
            one
            for one in (ledger.all() if all_ else ledger.current(now))
            if (not subarray or one.subarray in subarray) and (not kind or one.kind in kind)
        ),
        key=lambda one: (one.subarray, owner_of(one), one.kind, one.id),
    )
    conflicts = {
        f"{of} {name}": list(dict.fromkeys(map(owner_of, held)))
        for (of, name), held in sorted(ledger.conflicts(now))
        if any(one in chosen for one in held)
    }
    if as_json:
        shown = [{**as_dict(one), "names": one.names, _EXPIRED: one.expires <= now} for one in chosen]
        typer.echo(json.dumps({"reservations": shown, "conflicts": conflicts, "unreadable": unreadable}, indent=2))
        return
    titles = ("owner", "kind", "resources", "state", "expires", "id", "text")
    wide(_WIDE).print(table(titles, (_row(one, now) for one in chosen), whole=titles))
    for resource, owners in conflicts.items():
        OUT.print(f"conflict: {resource} is reserved by {' and '.join(owners)}", markup=False)
    ERR.print(f"{len(chosen)} reservations, {len(conflicts)} conflicts, times in UTC")
    if left_out := ledger.left_out(now):
        ERR.print(f"{left_out} more are not shown: there are too many")
    if unreadable:
        ERR.print(f"{unreadable} records could not be read; see `sdp-facade dead-letters list`")


def _row(one: Reservation, now: Time) -> tuple[str, ...]:
    quantity = "" if one.quantity is None else f"{one.quantity:g} {one.unit}".strip()
    what = ", ".join(filter(None, (quantity, " ".join(one.names))))
    state = one.state if one.expires > now else f"{one.state}, {_EXPIRED}"
    return owner_of(one), one.kind, what or "any", state, moment(one.expires), one.id, one.text

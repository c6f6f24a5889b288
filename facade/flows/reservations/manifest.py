"""Reservations of controllers, by subarray and for SDP as a whole, and conflicts of owners."""

from facade.kernel.manifest import FlowPage, Isolation, Manifest, Subcommand

MANIFEST = Manifest(
    name="reservations",
    summary="Reservations of resources, with an owner and an expiry, and conflicts between owners.",
    topics={"reservations": Isolation.READ_COMMITTED},
    set_aside_by={"reservations": "subarray"},
    compose="facade.flows.reservations.flow:compose",
    for_commands=True,
    health="facade.flows.reservations.flow:ReservationsHealth",
    subcommands=(
        Subcommand(("reservations",), "", "Look at reservations of resources."),
        Subcommand(
            ("reservations", "list"),
            "facade.flows.reservations.cli:list_reservations",
            "Show who holds what until when.",
        ),
    ),
    page=FlowPage(
        title="Reservations",
        attributes=dict.fromkeys(
            ("SdpMaster", "SdpSubarray"),
            (
                *("reservations", "reservationsHeld", "reservationsRequested", "reservationsRefused"),
                *("nextReservationExpiryUtc", "reservationConflicts", "conflictingReservations"),
            ),
        ),
    ),
)

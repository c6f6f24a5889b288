"""What the AsyncAPI document says of reservations."""

from facade.manifest import Part, Words

WORDS = Words(
    introduction=(
        "You reserve resources, or manage them: write each change of a reservation to `reservations`, and read there "
        "who holds what.",
    ),
    parts=(
        Part(
            "send",
            "reservations",
            "Request, renew and release reservations, and remove those that nobody needs.",
            who=("controller",),
        ),
        Part("send", "reservations", "Grant or refuse what was requested.", who=("platform-services",)),
        Part("receive", "reservations", "Show the reservations of each subarray, and conflicts of their owners."),
    ),
    examples={
        "reservation": {
            "schema": "reservation/1",
            "id": "subarray-01/receptors",
            "kind": "receptors",
            "names": ["SKA001", "SKA036"],
            "subarray": 1,
            "state": "GRANTED",
            "expires": 1795286030808302,
            "sequence": 1795282430808302,
            "time": 1795282430808302,
            "source": "subarray-controller",
        },
    },
    keys={"reservation": "subarray-01/receptors"},
)

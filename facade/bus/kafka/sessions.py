"""Whether a fenced member of a consumer group ends, as another process has its name, or joins its group again."""

from facade.bus.port import Fenced

HEARTBEAT = 0.25
"""Time between two signs of life to the group [s]. Their answers tell a member that partitions are dealt out anew, and
until the last one has heard of it nobody takes any."""
FENCE = 1.5
"""So soon a member is told that its name was taken, also by a busy broker [s]."""
_OUTAGE = 30.0
"""For so long after an outage the broker's answers may still be about what was before [s]."""


def joins_anew(fenced_at: float, *, joined_at: float, down_at: float, lost_at: float) -> bool:
    """Return whether a member that was fenced joins its group again, once.

    A member that loses its session while the broker is away or hangs joins again under a new id. The broker then
    answers its requests under the old id as if another process had its name. Where another process does have it, the
    session is lost with the fence, not before. Two real holders of a name still end with one of them.

    Parameters
    ----------
    fenced_at, joined_at, down_at, lost_at
        Monotonic times at which the member was fenced, joined, last failed to reach a broker, and lost its session [s].
    """
    was_down = joined_at < down_at and fenced_at - down_at < _OUTAGE
    had_lost = joined_at < lost_at and FENCE < fenced_at - lost_at < _OUTAGE
    return was_down or had_lost


def fenced(group: str, member: str) -> Fenced:
    """Return the error of a member whose name another process has taken; both names are those on the brokers."""
    return Fenced(
        f"another process has joined group {group} as {member}: this one ends, and does nothing more. Give each process"
        " a name of its own (--slot of a worker, --name of a controller). If no other process has this name, the broker"
        " hung for longer than a session: start this one again"
    )

"""What mypy refuses about times: each line that is marked is a mistake, and a line that it lets pass is an error too.

Nothing imports this module; `make lint` checks it, and `warn_unused_ignores` reports a mark without a mistake.
"""

from facade.kernel.clock import SECOND, Duration, SystemClock, Time, as_duration, as_seconds

now: Time = SystemClock().now_us()
later: Time = now + SECOND
between: Duration = later - now
share: float = between / SECOND
second: int = now // SECOND
in_window: Duration = now % (60 * SECOND)

now + now  # type: ignore[operator]
now + 1.5  # type: ignore[operator]
1.5 + now  # type: ignore[operator]
now + 1  # type: ignore[operator]
now - 0.5  # type: ignore[operator]
now * 1e-6  # type: ignore[operator]
now / 1e6  # type: ignore[operator]
round(now * 1e6)  # type: ignore[operator]
between + 1.5  # type: ignore[operator]
between * 1.5  # type: ignore[operator]
between - now  # type: ignore[operator]
assert now < 5.0  # type: ignore[operator]
assert now < between  # type: ignore[operator]
assert between > 2.5  # type: ignore[operator]
as_seconds(1.5)  # type: ignore[call-overload]
as_duration(now)  # type: ignore[arg-type]
Time(1.5)  # type: ignore[arg-type]
SystemClock().sleep(between)  # type: ignore[arg-type]

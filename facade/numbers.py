"""Number types of the messages' structs, with the bounds of the JSON Schemas."""

from typing import Annotated

import msgspec

from facade.microseconds import Duration, Time

LARGEST = 2**53 - 1
"""Greatest integer that is exact in every JSON reader."""

Natural = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Instant = Annotated[Time, msgspec.Meta(ge=0, le=LARGEST, title="time")]
"""Unix time [us]."""
Length = Annotated[Duration, msgspec.Meta(ge=0, le=LARGEST, title="duration")]
"""[us]"""
Positive = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Integer = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
OrNone = Annotated[int, msgspec.Meta(ge=-1, le=LARGEST)]
"""A natural number; -1: there is none."""

"""Number types of the messages' structs, with the bounds of the JSON Schemas, and numbers that JSON does not have."""

import math
from typing import Annotated, Any

import msgspec

from facade.kernel.microseconds import Duration, Time

LARGEST = 2**53 - 1
"""Greatest integer that is exact in every JSON reader."""

Natural = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Instant = Annotated[Time, msgspec.Meta(ge=0, le=LARGEST, title="time")]
"""Unix time [us]."""
Length = Annotated[Duration, msgspec.Meta(ge=0, le=LARGEST, title="duration")]
"""[us]"""
Seconds = Annotated[float, msgspec.Meta(ge=-1e10, le=1e10)]
"""Unix time [s] of a snapshot: beyond it no `Time` fits into 64 bits."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Integer = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that an array of NumPy takes."""
OrNone = Annotated[int, msgspec.Meta(ge=-1, le=LARGEST)]
"""A natural number; -1: there is none."""


def json_value(value: Any) -> Any:
    """Return a value, or an array of values, in JSON's types: NaN and the infinities become texts."""
    if type(value) is float:
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    if isinstance(value, tuple | list):
        return [json_value(one) for one in value]
    return json_value(value.tolist()) if hasattr(value, "tolist") else value  # NumPy's arrays and scalars

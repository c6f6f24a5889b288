"""What a controller has told last of each device, so that an older state behind it is found and written over.

Records of two controllers come to ``state`` in any order: one that was killed, or stood still, may have sent a state
that arrives behind what the next owner of the device has told. The topic is compacted, so the older one would stay.
"""

import threading

from facade.runtime.device_state import StateMessage


class OwnStates:
    """May be used from several threads."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], tuple[StateMessage, bool]] = {}
        """By device and attribute: what was told last, and whether it was read on the log."""
        self._lock = threading.Lock()

    def tell(self, message: StateMessage) -> None:
        """Note what is about to be written."""
        with self._lock:
            self._told[message.device, message.attribute] = message, False

    def is_older(self, state: StateMessage) -> bool:
        """Return whether a state of the log is older than what was told here."""
        with self._lock:
            own = self._told.get((state.device, state.attribute))
            return own is not None and state.time < own[0].time

    def read(self, state: StateMessage) -> StateMessage | None:
        """Take a state of the log; return what must be written once more, as an older state is behind it."""
        key = (state.device, state.attribute)
        with self._lock:
            if (own := self._told.get(key)) is None:
                return None
            message, there = own
            if state.time > message.time:
                del self._told[key]  # another controller has told something since
            elif state == message:
                self._told[key] = message, True
            elif there and state.time < message.time:
                self._told[key] = message, False
                return message
            return None

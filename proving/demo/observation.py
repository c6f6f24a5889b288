"""The observation of a demo: TM's process, the role `tm`. It commands all subarrays at the same time."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import tango

from facade.errors import FacadeError
from proving.demo.journal import JournalWriter
from proving.demo.plan import AFTER, BEFORE, OBSERVATION, SWITCHED_ON, Step
from proving.demo.tm import ATTRIBUTES, LONGEST, Commanded
from proving.roles import RoleContext

_APART = 1.0
"""Time between the starts of two subarrays [s]."""


def observe(
    context: RoleContext,
    *,
    journal: str,
    seconds: float,
    devices: list[str],
    held_back: dict[str, str],
    sdp: str = "",
    longest: float = LONGEST,
) -> None:
    """Observe with all subarrays at the same time; commands are held back with the first one only.

    Parameters
    ----------
    sdp
        Device of SDP as a whole, which is switched on before and off after it; empty: each subarray is.
    longest
        Longest wait of TM for anything [s].
    """
    clock, written = context.clock, JournalWriter(Path(journal))

    def go_through(device: str, steps: Sequence[Step], held_back: Mapping[str, str], attributes: Sequence[str]) -> None:
        with tango.EnsureOmniThread():
            try:
                commanded = Commanded(context.tango_host, device, written, clock, attributes, longest)
                commanded.go_through(steps, seconds, held_back)
            except FacadeError as error:
                written.note(error=str(error))
            except tango.DevFailed as failed:
                written.note(error=f"{device}: {failed.args[0].reason}: {failed.args[0].desc}")

    def switch(steps: Sequence[Step]) -> None:
        if sdp:
            go_through(sdp, steps, {}, ATTRIBUTES[1:])

    def observe_with(device: str) -> None:
        steps = SWITCHED_ON if sdp else OBSERVATION
        go_through(device, steps, held_back if device == devices[0] else {}, ATTRIBUTES)

    switch(BEFORE)
    threads = [threading.Thread(target=observe_with, args=(device,), name=device) for device in devices]
    for thread in threads:
        thread.start()
        clock.sleep(_APART)
    for thread in threads:
        thread.join()
    switch(AFTER)
    written.note(finished=True)

"""`sdp-facade simulate controller`: the reference controller as a process."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from facade.kernel.clock import SystemClock
from facade.kernel.config import MOST_SUBARRAYS
from facade.kernel.errors import ConfigError
from facade.kernel.icd.expand import names_of
from facade.kernel.icd.load import load
from facade.kernel.runtime.stopping import end_process
from facade.sdk.controller.process import run
from facade.sdk.controller.simulator.controller import SimulatedController
from facade.sdk.controller.simulator.faults import KINDS, ControllerFault
from facade.simulate.sending import Bootstrap, Prefix, deployment

_executing: Callable[..., Any] = partial(typer.Option, rich_help_panel="How to execute")
_faults: Callable[..., Any] = partial(typer.Option, rich_help_panel="Faults")

EPILOG = (
    """
Faults: KIND, KIND:COMMAND or KIND:COMMAND:PROBABILITY, the kinds being
"""
    + "\n".join(f"\n{kind}: {what}" for kind, what in KINDS.items())
    + """

Examples:

sdp-facade simulate controller --subarrays 2
# until Ctrl-C, as a real SDP would, with its delays

sdp-facade simulate controller --fault fail:Scan:0.1 --fault slow --speed 10
# every tenth Scan fails; everything takes as long as it would
"""
)


def controller(
    subarrays: Annotated[int | None, _executing(min=1, max=MOST_SUBARRAYS, help="Default: the deployment's.")] = None,
    speed: Annotated[float, _executing(min=0.001, help="Speed relative to a real SDP.")] = 1.0,
    name: Annotated[
        str, _executing(help="Name in acknowledgements and heartbeats; each running controller needs its own.")
    ] = "simulated-controller",
    report: Annotated[
        Path | None, _executing(help="File with a JSON line for each execution, written before its effect.")
    ] = None,
    fault: Annotated[
        list[str] | None, _faults(metavar="KIND[:COMMAND[:PROBABILITY]]", help="See below. Repeatable.")
    ] = None,
    orders: Annotated[
        bool,
        _executing("--orders", help="On, Off and Standby go on to the subarrays, Configure to their processing."),
    ] = False,
    only: Annotated[
        list[str] | None,
        _executing(metavar="CLASS", help="Device class or executor whose commands it executes. Repeatable."),
    ] = None,
    receptors: Annotated[
        list[str] | None,
        _executing(
            metavar="NAME[..NAME]",
            help="Receptors that there are, such as SKA001..SKA133: others, and those that another subarray has, are"
            " refused. Repeatable. Default: nobody looks.",
        ),
    ] = None,
    seed: Annotated[int, _faults(min=0, help="Seed; the same seed and command id give the same fault.")] = 1,
    bootstrap: Bootstrap = None,
    prefix: Prefix = None,
) -> None:
    """Execute the commands for SDP and its subarrays, as SDP's own controllers do.

    It may be killed and started again at any time, as it stores nothing.
    """
    there = [(text, names_of(text)) for text in receptors or ()]
    if wrong := [text for text, names in there if not names]:
        raise ConfigError(f"--receptors: expected a range with its lower number first, got {wrong[0]}")
    settings = deployment(bootstrap, prefix, subarrays=subarrays)
    simulated = SimulatedController(
        load(),
        component=name,
        faults=[ControllerFault.parse(text) for text in fault or ()],
        report=report,
        seed=seed,
        speed=speed,
        clock=SystemClock(),
        executes=only or (),
        orders=orders,
        receptors=[name for _, names in there for name in names],
    )
    run(simulated.controller, settings, through=simulated.through)
    end_process()  # all outcomes are written

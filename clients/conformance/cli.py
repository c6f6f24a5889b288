"""The command ``sdp-facade conformance``."""

from pathlib import Path
from typing import Annotated

import typer

from clients.conformance.checks import CheckOptions
from clients.conformance.runner import run
from facade.clock import SystemClock
from facade.console import wide


def conformance(
    tango_host: Annotated[str, typer.Option(envvar="TANGO_HOST", help="Tango database, host:port.")] = "",
    bus: Annotated[
        str, typer.Option(envvar="KAFKA_BOOTSTRAP", help="Kafka brokers, host:port with commas between.")
    ] = "127.0.0.1:9092",
    prefix: Annotated[str, typer.Option(envvar="SDP_TOPIC_PREFIX", help="Prefix of all topic names.")] = "local.",
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only these entries, such as SdpMaster, SdpMaster/healthState, 'topics/*/partitions'."),
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Compare each device of a family, not only the first.")
    ] = False,
    active: Annotated[
        bool, typer.Option("--active", help="Also command --subarray and raise one test alert; both are put back.")
    ] = False,
    subarray: Annotated[str, typer.Option(help="Device to command; it must be OFF and EMPTY.")] = "mid-sdp/subarray/01",
    outcome: Annotated[
        str,
        typer.Option(
            metavar="COMMAND=OUTCOME",
            help="With --active: the controller is set to end COMMAND so (REJECTED, FAILED, TIMED_OUT), "
            "and the observation ends there.",
        ),
    ] = "",
    nodes: Annotated[int | None, typer.Option(min=1, help="Ingest nodes. Default: as SDP says.")] = None,
    subarrays: Annotated[int | None, typer.Option(min=1, help="Subarrays. Default: as many as there are.")] = None,
    window: Annotated[float, typer.Option(min=1, help="Time for which events are observed, in seconds.")] = 10.0,
    icd: Annotated[Path | None, typer.Option(help="Folder of another ICD than the installed one.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the results as JUnit XML.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the results as one page.")] = None,
) -> None:
    """Compare a running system with the ICD, entry by entry, through its Tango database and its brokers.

    Nothing is changed without --active. What the deployment leaves out (SDP_WITHOUT) is not shown. The exit code is 0
    when all passed, 1 when something failed, and 2 when the database or the brokers do not answer.

    Examples: sdp-facade conformance --only SdpMaster

    sdp-facade conformance --active --outcome AssignResources=FAILED, beside a controller that was started by
    sdp-facade simulate controller --fault fail:AssignResources
    """
    command, _, ending = outcome.partition("=")
    options = CheckOptions(
        tango_host=tango_host,
        bootstrap=bus,
        prefix=prefix,
        only=tuple(only or ()),
        thorough=thorough,
        active=active,
        subarray=subarray.lower(),
        outcome=(command, ending) if outcome else None,
        nodes=nodes,
        subarrays=subarrays,
        window=window,
        icd=icd,
        junit=junit,
        html=html,
    )
    raise typer.Exit(run(options, wide(120), SystemClock()))

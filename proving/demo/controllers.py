"""The controllers of a demo: that of SDP and its subarrays, and where it gives orders those below it."""

from pathlib import Path

from proving.demo.options import DemoOptions
from proving.deployment import Deployment

CONTROLLER = "controller"
_NAME = "simulated-controller"
"""Under which it is known on the bus."""
_PROCESSING, _WORKER = "processing", "processing-worker"


def start_controllers(deployment: Deployment, options: DemoOptions, report: Path) -> None:
    """Start them; each adds to the report what it executes."""

    def start(name: str, *more: str) -> None:
        own = [f"--subarrays={options.subarrays}", f"--report={report}"]
        deployment.launch(name, "simulate", "controller", *own, *more)

    executes = ["--orders", "--only=SdpMaster", "--only=SdpSubarray"] if options.orders else []
    start(CONTROLLER, f"--name={_NAME}", *executes, *(["--fault=fail-block:EndScan"] if options.blocks else []))
    if options.orders:
        start(_PROCESSING, "--orders", "--only=ProcessingController", f"--name={_PROCESSING}")
        start(_WORKER, "--only=ProcessingWorker", f"--name={_WORKER}")


def controller_components(options: DemoOptions) -> list[str]:
    """Return under which names they are known on the bus."""
    return [_NAME, *((_PROCESSING, _WORKER) if options.orders else ())]

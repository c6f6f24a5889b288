"""What can be done with a demo that stays."""

import shlex

from proving.demo.system import Demo


def what_to_try(demo: Demo) -> str:
    """Say what can be done with a demo that stays."""
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in demo.deployment.variables.items())
    device, subarray = demo.tango_side.devices["SdpIngestNode"][0], demo.tango_side.subarrays[0]
    return f"""The demo stays until Ctrl-C. Point another shell at it:

    export {variables}

(`sdp-facade infra env --state-dir {shlex.quote(str(demo.options.state_dir))}` prints the same, but for the topics.)
Then try:

    sdp-facade watch
    sdp-facade status             # and: alerts list, commands list, dead-letters list, bus check
    jive
    itango3
    python
    >>> import tango
    >>> node = tango.DeviceProxy("{device}")
    >>> print(node.heapRate, node.heapsTotal, node.read_attribute("latencyP99"))
    >>> subarray = tango.DeviceProxy("{subarray}")
    >>> print(subarray.On(), subarray.State(), subarray.lastCommand)

    tangogql                      # GraphQL for Taranta, where it is installed
    sdp-facade simulate --help

The account in the end is the simulator's: what you send on ingest.heaps, or put back there, shows as a difference.
Logs: {demo.options.folder}"""

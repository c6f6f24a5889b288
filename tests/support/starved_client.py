"""A client whose thread that closes ZMQ's sockets gets no processor: ``python starved_client.py HOST:PORT``.

Prints the most sockets that it had open while it ended its subscriptions.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import tango

from facade.kernel.clock import SystemClock
from sdp_facade_clients.events import EventRecorder, open_sockets
from tests.support.many_attributes import ATTRIBUTES, DEVICE
from tests.support.waiting import until

_BUSY = """
import os, time
os.sched_setaffinity(0, {%d})
end = time.monotonic() + 2.0
while time.monotonic() < end:
    pass
"""
_CLOSES_SOCKETS = "Reaper"
"""In the name of libzmq's thread."""


def main(address: str) -> None:
    device = f"{DEVICE}#dbase=no"
    recorder = EventRecorder(address, SystemClock())
    recorder.subscribe(device, ATTRIBUTES)
    processor = min(os.sched_getaffinity(0))
    for thread in Path("/proc/self/task").iterdir():
        if _CLOSES_SOCKETS in (thread / "comm").read_text():
            os.sched_setaffinity(int(thread.name), {processor})
            os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY % processor]) for _ in range(3)]
    most, ended = [0], threading.Event()
    watcher = threading.Thread(target=_look, args=(most, ended))
    watcher.start()
    recorder.close()
    ended.set()
    watcher.join()
    for process in busy:
        process.wait()
    tango.DeviceProxy(f"tango://{address}/{device}").Push()  # to nobody any more
    until(lambda: open_sockets() < 20, "all sockets are closed")
    print(most[0], flush=True)
    os._exit(0)


def _look(most: list[int], ended: threading.Event) -> None:
    while not ended.wait(0.001):
        most[0] = max(most[0], open_sockets())


if __name__ == "__main__":
    main(sys.argv[1])

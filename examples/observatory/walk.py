"""Start the observatory on this machine: ``python examples/observatory/walk.py``.

It needs the environment of the source tree. The observatory is installed into ``.run/observatory``, beside a broker and
a Tango database of its own. Everything ends with Ctrl-C. With ``--prepare`` it only makes topics and devices, for the
broker and the database that the environment names.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

HERE, FOLDER = Path(__file__).parent, Path(".run", "observatory").resolve()
BIN = Path(sys.executable).parent
PROCESSES = {
    "weather-worker": ["observatory", "weather"],
    "dome-controller": ["observatory", "dome"],
    "weather": ["Observatory", "weather"],
    "control": ["Observatory", "control"],
    "stations": ["observatory", "simulate"],
}


def main() -> None:
    """Start all parts, and wait."""
    sys.path.insert(0, str(HERE))
    import observatory  # noqa: F401 - before the kernel: its names and its interface count from then on

    from devices.registration import register
    from facade.admin.topics import create_topics
    from facade.infra import local
    from facade.infra.processes import Process
    from facade.kernel.bus.kafka.connection import Connection
    from facade.kernel.config import load_settings
    from facade.kernel.icd.load import load
    from facade.kernel.runtime.stopping import terminable

    def prepare() -> None:
        settings = load_settings()
        create_topics(Connection(settings), load().topics)
        register(load(), settings, os.environ["TANGO_HOST"])

    if sys.argv[1:] == ["--prepare"]:
        return prepare()
    site = FOLDER / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", site, HERE], check=True)
    endpoints = local.up(local.LocalOptions(state_dir=FOLDER))
    os.environ |= {"KAFKA_BOOTSTRAP": endpoints.bootstrap, "TANGO_HOST": endpoints.tango_host, "PYTHONPATH": str(site)}
    running: dict[str, Process] = {}
    try:
        with terminable():
            prepare()
            print(f"The observatory runs until Ctrl-C; its logs are in {FOLDER}. In another shell:\n")
            print(
                f"  export TANGO_HOST={endpoints.tango_host} KAFKA_BOOTSTRAP={endpoints.bootstrap} PYTHONPATH={site}\n"
            )
            while True:  # as a supervisor does: what has ended is started again
                for name, (program, *rest) in PROCESSES.items():
                    if name not in running or not running[name].is_alive:
                        argv, log = [str(site / "bin" / program), *rest], FOLDER / f"{name}.log"
                        running[name] = Process.start(name, argv, log=log, env=os.environ, append=True)
                        print(f"{name}: process {running[name].pid}", flush=True)
                time.sleep(1)
    except KeyboardInterrupt:
        pass
    finally:
        for one in reversed([*running.values()]):
            one.stop()
        local.down(FOLDER, wipe=True)


if __name__ == "__main__":
    main()

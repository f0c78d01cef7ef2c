"""A plugin that suspends processes, so that any machine behaves like a loaded one.

    python -m pytest -p tests.support.stops -n 4 tests/contract

While tests run, one process after another (of the tests, or started by them) is suspended for a
moment with SIGSTOP, as happens on a machine with more work than cores. Stops are shorter than the
heartbeat timeout. A test that fails only with this plugin limits a time that it does not control.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STOP_MAX_S = float(os.environ.get("STOPS_MAX_S", "2"))
PAUSE_MAX_S = 0.6
LOG_FILE = os.environ.get("STOPS_LOG", os.devnull)
STOPPER = pytest.StashKey["subprocess.Popen[bytes]"]()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None):
        return  # Each worker of xdist calls this function
    command = [sys.executable, "-m", __name__, str(os.getpid())]
    config.stash[STOPPER] = subprocess.Popen(command, start_new_session=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    if stopper := config.stash.get(STOPPER, None):
        stopper.terminate()
        stopper.wait()


def parent_of(pid: int) -> tuple[int, str]:
    """Return the parent's pid and the state, or 0 for a process that has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0, "X"
    state, parent = stat.rpartition(")")[2].split()[:2]
    return int(parent), state


def family_of(root: int) -> list[int]:
    """Return the process and its descendants, except this process and processes that are stopped or
    have ended.
    """
    parents = {
        int(entry.name): parent_of(int(entry.name))
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
    }
    found = [root]
    for pid in found:
        found += [child for child, (parent, _) in parents.items() if parent == pid]
    states = {pid: parents.get(pid, (0, "X"))[1] for pid in found if pid != os.getpid()}
    return [pid for pid, state in states.items() if state not in "ZXT"]


def stop(pid: int, for_s: float) -> None:
    """Suspend the process for this time."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, signal.SIGSTOP)
            time.sleep(for_s)
        finally:
            signal.pidfd_send_signal(handle, signal.SIGCONT)
            os.close(handle)


def main(root: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # No process remains suspended
    rng = random.Random(root)
    with Path(LOG_FILE).open("a", buffering=1) as log:
        while parent_of(root)[0]:
            pid, for_s = rng.choice(family_of(root) or [root]), rng.uniform(0.1, STOP_MAX_S)
            with contextlib.suppress(OSError):
                title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                log.write(f"{time.strftime('%X')} {pid} {for_s:.2f} {title:.60}\n")
            stop(pid, for_s)
            time.sleep(rng.uniform(0, PAUSE_MAX_S))


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""The program ``topics`` with a front whose garbage collector is off.

At each SIGUSR1 it logs the reference cycles that were created since the previous signal, as the
event ``cycles N``.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import sys

from topics.cli import main
from topics.process import front


def found_cycles() -> list[str]:
    """Return the types of the project's objects that only the cyclic collector finds."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = sorted({type(each).__qualname__ for each in gc.garbage if _is_ours(each)})
    gc.garbage.clear()
    gc.collect()
    return found


def _is_ours(found: object) -> bool:
    return type(found).__module__.startswith("topics.")


NUMBERS = itertools.count(1)


def _log_cycles(_signal: int, _frame: object) -> None:
    line = json.dumps({"event": f"cycles {next(NUMBERS)}", "kinds": found_cycles()})
    # One write, so that no line of another process is inserted before the line end.
    os.write(sys.stderr.fileno(), f"{line}\n".encode())


def _instead_of_freezing() -> None:
    gc.disable()
    signal.signal(signal.SIGUSR1, _log_cycles)


if __name__ == "__main__":
    vars(front).update(freeze_survivors=_instead_of_freezing)
    raise SystemExit(main())

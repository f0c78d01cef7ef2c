"""``topics``, whose front says at SIGUSR1 which circles of references it has left since the last
time, as a line of the log. Its collector is off.
"""

from __future__ import annotations

import gc
import json
import signal
import sys

from topics.cli import main
from topics.process import front


def found_circles() -> list[str]:
    """Kinds of the objects of ours that are found by a look alone."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = sorted({type(each).__qualname__ for each in gc.garbage if _is_ours(each)})
    gc.garbage.clear()
    gc.collect()
    return found


def _is_ours(found: object) -> bool:
    return type(found).__module__.startswith("topics.")


def _tell(_signal: int, _frame: object) -> None:
    print(json.dumps({"event": "circles", "kinds": found_circles()}), file=sys.stderr, flush=True)


def _instead_of_freezing() -> None:
    gc.disable()
    signal.signal(signal.SIGUSR1, _tell)


if __name__ == "__main__":
    vars(front).update(freeze_survivors=_instead_of_freezing)
    raise SystemExit(main())

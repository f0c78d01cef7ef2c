"""Garbage collection in the shards and the front: keeps its pauses at a few milliseconds.

Python's cyclic garbage collector scans all objects of the oldest generation whenever that
generation has grown by a quarter. Such a scan takes 0.2 s with 100,000 topics or 0.4 s with 10,000
clients, and the process serves no request during the scan. To avoid this, objects that survive a
full collection are frozen as soon as there are at least FREEZE_OBJECTS of them. The collector never
scans frozen objects (decision 0053).

    young --survives--> old --survives with FREEZE_OBJECTS others or more--> frozen

Reference counting frees a frozen object as usual when its last reference is deleted. A frozen
reference cycle would never be freed, so no object that a worker keeps may be part of a cycle
(``tests/process/test_collector.py``).
"""

from __future__ import annotations

import gc
from typing import Final

FREEZE_OBJECTS: Final = 20_000
# The third argument of `gc.set_threshold`. With this value, the oldest generation contains at most
# about 40,000 objects that are not frozen.
OLD_THRESHOLD: Final = 2


def freeze_survivors() -> None:
    """Freeze all existing objects, and later the objects that survive a full collection."""
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], OLD_THRESHOLD)
    gc.callbacks.append(_freeze)


def _freeze(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2 and len(gc.get_objects(2)) >= FREEZE_OBJECTS:
        gc.freeze()

"""The cyclic collector in shards and the front. Python looks at all that is old whenever a quarter
has come anew: 0.2 s with 100,000 topics, 0.4 s with 10,000 clients, for which nobody is served. So
what survives such a look is frozen once there is much of it, and is not looked at again: no look
takes longer than some milliseconds (decision 0053).

    young --survives--> old --survives, with FREEZE_OBJECTS others--> frozen

What is frozen goes as anything does when nothing refers to it. Circles of references would stay, so
nothing that a worker keeps may be in one (``tests/process/test_collector.py``).
"""

from __future__ import annotations

import gc
from typing import Final

FREEZE_OBJECTS: Final = 20_000
OLD_THRESHOLD: Final = 2  # of `gc.set_threshold`: so some 40,000 are old at most


def freeze_survivors() -> None:
    """Freeze what is there, and what survives from now on."""
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], OLD_THRESHOLD)
    gc.callbacks.append(_freeze)


def _freeze(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2 and len(gc.get_objects(2)) >= FREEZE_OBJECTS:
        gc.freeze()

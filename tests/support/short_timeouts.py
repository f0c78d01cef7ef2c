"""The command ``topics`` with a server whose long timeouts take seconds: ``python -m
tests.support.short_timeouts serve``.
"""

from __future__ import annotations

import sys
from types import ModuleType

from topics.actors.link import liveness
from topics.cli import main
from topics.formats.api import limits
from topics.front import held_memory

WAIT_MAX_S = 2.0
STALL_MAX_S = 3.0
DISK_STALLED_S = 4.0

# The promised timeouts, and those of this server.
TIMES: list[tuple[ModuleType, str, float, float]] = [
    (limits, "WAIT_MS_MAX", 30_000, int(WAIT_MAX_S * 1000)),
    (held_memory, "STALL_MAX_S", 30, STALL_MAX_S),
    (liveness, "DISK_STALLED_S", 10, DISK_STALLED_S),
]


def shorten(owner: ModuleType, name: str, promised: float, value: float) -> None:
    """Replace the value, also in modules that have imported it already."""
    assert getattr(owner, name) == promised
    for key, module in sys.modules.copy().items():
        if key.startswith("topics.") and getattr(module, name, None) == promised:
            setattr(module, name, value)


if __name__ == "__main__":
    for each in TIMES:
        shorten(*each)
    sys.exit(main())

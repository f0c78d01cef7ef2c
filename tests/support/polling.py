"""Wait for a descriptor of any number, because `select.select` accepts none above 1,023."""

from __future__ import annotations

import select


def is_readable(fd: int, timeout_s: float) -> bool:
    """Return whether the descriptor becomes readable or its other end is closed within
    ``timeout_s``.
    """
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))

"""Waiting for a descriptor of any number: `select.select` takes none above 1,023."""

from __future__ import annotations

import select


def is_readable(fd: int, timeout_s: float) -> bool:
    """Whether there is something to read within ``timeout_s``, or the other end is gone."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))

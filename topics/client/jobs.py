"""A job that a worker holds, without I/O."""

from __future__ import annotations

import logging
import os
import socket
from time import monotonic
from typing import Any, Final

from topics.client import calls
from topics.client.values import JobRecord

LOG = logging.getLogger("topics.client")

ERROR_MAX_BYTES: Final = 1024
DELAY_MAX_S: Final = 300.0
EXTEND_PART: Final = 3.0  # of a lease, between two extensions
EXTEND_AGAIN_S: Final = 1.0  # after an extension that failed


class HeldJob:
    """A job that a worker holds until ``until``, of the monotonic clock."""

    def __init__(self, record: JobRecord, until: float) -> None:
        self.record, self.until = record, until
        self.is_settled = self._is_lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.record, name)

    @property
    def lost(self) -> bool:
        """Whether somebody else may have it by now."""
        return self._is_lost or monotonic() >= self.until

    def lose(self) -> None:
        """The server says that this worker does not hold it."""
        self._is_lost = True

    def nack_fields(self, error: str | None, delay: float | None) -> dict[str, Any]:
        """What is sent with a nack. Without ``delay`` it is 1, 2, 4 ... s, and some chance."""
        if delay is None:
            doubled = 2.0 ** min(self.record.deliveries - 1, 16)
            delay = min(doubled, DELAY_MAX_S) * calls.CHANCE.uniform(0.8, 1.2)
        fields: dict[str, Any] = {"delay_ms": int(1000 * delay)}
        if error is not None:
            fields["error"] = _cut(error)
        return fields

    def failed(self, error: Exception) -> dict[str, Any]:
        """The nack of a job whose handler has raised."""
        LOG.warning("job %s#%d failed", self.record.topic, self.record.seq, exc_info=error)
        return self.nack_fields(f"{type(error).__name__}: {error}", None)


def worker_name() -> str:
    """A name that no other worker has."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}:{calls.CHANCE.randrange(1 << 32):08x}"


def _cut(text: str) -> str:
    return text.encode("utf-8", "replace")[:ERROR_MAX_BYTES].decode("utf-8", "ignore")

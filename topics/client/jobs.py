"""A job that a worker holds, without I/O."""

from __future__ import annotations

import os
import socket
from time import monotonic
from typing import Any, Final

from topics.client import calls
from topics.client.calls import LOG
from topics.client.values import JobRecord

ERROR_MAX_BYTES: Final = 1024
DELAY_MAX_S: Final = 300.0
EXTEND_DIVISOR: Final = 3.0  # leases are extended after their duration divided by this number
EXTEND_RETRY_S: Final = 1.0  # the pause after a failed extension


class HeldJob:
    """A job that a worker holds until ``until`` (monotonic clock). ``record`` is the claimed
    record.
    """

    def __init__(self, record: JobRecord, until: float) -> None:
        self.record, self.until = record, until
        self._is_lost = False
        self._settled: bool | None = None  # the result of the first ack or nack

    @property
    def topic(self) -> str:
        """The name of the queue."""
        return self.record.topic

    @property
    def seq(self) -> int:
        """The seq of the job."""
        return self.record.seq

    @property
    def ts(self) -> int:
        """The time of the append in ms since 1970."""
        return self.record.ts

    @property
    def data(self) -> Any:
        """The payload as Python objects."""
        return self.record.data

    @property
    def meta(self) -> dict[str, Any] | None:
        """The job's ``meta`` object, or None."""
        return self.record.meta

    @property
    def tag(self) -> str | None:
        """The job's tag, or None."""
        return self.record.tag

    @property
    def node(self) -> str | None:
        """The node that appended the job, or None."""
        return self.record.node

    @property
    def deliveries(self) -> int:
        """The number of times that the job has been claimed, including this time."""
        return self.record.deliveries

    @property
    def last_error(self) -> str | None:
        """The error text of the last nack, or None."""
        return self.record.last_error

    @property
    def is_settled(self) -> bool:
        """Whether an ack or a nack has been sent."""
        return self._settled is not None

    @property
    def lost(self) -> bool:
        """Whether another worker may hold the job."""
        return self._is_lost or monotonic() >= self.until

    def lose(self) -> None:
        """Record that the server refused to extend the lease."""
        self._is_lost = True

    def nack_fields(self, error: str | None, delay: float | None) -> dict[str, Any]:
        """Return the fields of a nack. The default ``delay`` is 1, 2, 4, … s, varied at random."""
        if delay is None:
            doubled = 2.0 ** min(self.record.deliveries - 1, 16)
            delay = min(doubled, DELAY_MAX_S) * calls.RANDOM.uniform(0.8, 1.2)
        fields: dict[str, Any] = {"delay_ms": int(1000 * delay)}
        if error is not None:
            fields["error"] = _truncated(error)
        return fields

    def failed(self, error: Exception) -> dict[str, Any]:
        """Log the exception of a handler and return the fields of the nack."""
        LOG.warning("job %s#%d failed", self.record.topic, self.record.seq, exc_info=error)
        return self.nack_fields(f"{type(error).__name__}: {error}", None)


def worker_name() -> str:
    """Return a unique node name."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}:{calls.RANDOM.randrange(1 << 32):08x}"


def _truncated(text: str) -> str:
    return text.encode("utf-8", "replace")[:ERROR_MAX_BYTES].decode("utf-8", "ignore")

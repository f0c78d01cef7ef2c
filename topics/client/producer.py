"""Producer: single appends that are sent as few requests.

    send --> waiting --linger s, or a full batch--> one append --> the future of each
               '-- more than max_unacked bytes: `send` waits

One request is under way at a time, so records keep the order of their sends. Each batch has the key
``NAME:NUMBER`` for all its tries: a name must be new in each run of a program.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from topics.client import calls

if TYPE_CHECKING:
    from topics.client.sync.pool import Caller


class _Waiting(NamedTuple):
    record: msgspec.Raw
    size: int
    future: Future[int]


class Producer:
    """A thread that appends to one topic. Closing it sends what is left."""

    def __init__(
        self,
        client: Caller,
        topic: str,
        *,
        linger: float,
        max_records: int,
        max_bytes: int,
        max_unacked: int,
        name: str,
    ) -> None:
        self._client, self._topic, self._name, self._linger = client, topic, name, linger
        self._max_records, self._max_bytes = max_records, max_bytes
        self._max_unacked = max_unacked
        self._waiting: list[_Waiting] = []
        self._unacked = 0  # bytes
        self._batches = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"producer {topic}")
        self._thread.daemon = True  # an interpreter that ends without `close` does not wait
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: Any, **fields: Any) -> Future[int]:
        """Append a payload; ``fields``: ``tag``, ``meta`` and others of a record (§2). The future
        is the record's seq, or the `TopicsError` of its batch. Waits while too much is unacked.
        """
        record = msgspec.Raw(msgspec.json.encode({"data": data, **fields}))
        future: Future[int] = Future()
        size = len(bytes(record))
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not self._unacked or self._fits(size))
            if self._is_closed:
                raise ValueError("the producer is closed")
            self._unacked += size
            self._waiting.append(_Waiting(record, size, future))
            self._changed.notify_all()
        return future

    def _fits(self, size: int) -> bool:
        return self._unacked + size <= self._max_unacked

    def flush(self) -> None:
        """Wait until all that was sent before is acknowledged, or has failed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unacked)

    def close(self) -> None:
        """Send what is left, and wait for it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            self._send(batch)
            with self._changed:
                self._unacked -= sum(each.size for each in batch)
                self._changed.notify_all()

    def _next_batch(self) -> list[_Waiting]:
        """What goes next; nothing when all is sent after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            until = monotonic() + self._linger
            while not (self._is_closed or self._is_full()) and (left := until - monotonic()) > 0:
                self._changed.wait(left)
            count, size = 0, 0
            for each in self._waiting[: self._max_records]:
                if count and size + each.size > self._max_bytes:
                    break
                count, size = count + 1, size + each.size
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            return batch

    def _is_full(self) -> bool:
        held = sum(each.size for each in self._waiting[: self._max_records])
        return (
            len(self._waiting) >= self._max_records
            or held >= self._max_bytes
            or self._unacked >= self._max_unacked
        )

    def _send(self, batch: list[_Waiting]) -> None:
        self._batches += 1
        body = {"records": [each.record for each in batch]}
        key = f"{self._name}:{self._batches}"
        try:
            receipt = self._client.call(calls.append(self._topic, body, key, self._client.node))
        except BaseException as error:
            for each in batch:
                each.future.set_exception(error)
        else:
            for seq, each in enumerate(batch, receipt.first_seq):
                each.future.set_result(seq)

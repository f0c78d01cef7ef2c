"""Producer: single appends that are sent as few requests.

    send --> a chunk --linger s, or it is complete--> one append --> the future of each
               '-- more than max_unacked bytes: `send` waits

One request is under way at a time, so records keep the order of their sends. Each chunk has the key
``NAME:NUMBER`` for all its tries: a name must be new in each run of a program.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, NamedTuple, Self

import msgspec

from topics.client import calls
from topics.client.calls import Caller
from topics.client.chunks import Chunk, Chunker, run_key


class _Sent(NamedTuple):
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
        self._max_unacked, self._unacked = max_unacked, 0  # bytes
        self._chunker = Chunker[_Sent](max_records, max_bytes)
        self._complete: deque[Chunk[_Sent]] = deque()
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
        record = msgspec.json.encode({"data": data, **fields})
        sent = _Sent(len(record), Future())
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._fits(sent.size))
            if self._is_closed:
                raise ValueError("the producer is closed")
            self._unacked += sent.size
            self._complete.extend(self._chunker.add(record, sent))
            self._changed.notify_all()
        return sent.future

    def _fits(self, size: int) -> bool:
        return not self._unacked or self._unacked + size <= self._max_unacked

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
        while chunk := self._next_chunk():
            self._append(chunk)
            with self._changed:
                self._unacked -= sum(sent.size for sent in chunk.marks)
                self._changed.notify_all()

    def _next_chunk(self) -> Chunk[_Sent] | None:
        """What goes next; None when all is sent after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._unacked or self._is_closed)
            self._changed.wait_for(self._is_due, self._linger)
            if not self._complete:
                self._complete.extend(self._chunker.flush())
            return self._complete.popleft() if self._complete else None

    def _is_due(self) -> bool:
        """Whether there is nothing to wait for."""
        return bool(self._complete) or self._is_closed or self._unacked >= self._max_unacked

    def _append(self, chunk: Chunk[_Sent]) -> None:
        body = {"records": msgspec.Raw(chunk.records)}
        key = run_key(self._name, chunk)
        try:
            receipt = self._client.call(calls.append(self._topic, body, key, self._client.node))
        except BaseException as error:
            for sent in chunk.marks:
                sent.future.set_exception(error)
        else:
            for seq, sent in enumerate(chunk.marks, receipt.first_seq):
                sent.future.set_result(seq)

"""A watcher of one topic: an SSE stream in a thread of its own (§7)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import urllib3


class LiveWatch:
    """Counts the records of a topic as they come and gives the first ``shown`` to ``show``."""

    def __init__(self, url: str, topic: str, shown: int, show: Callable[[Any], None]) -> None:
        self._pool = urllib3.PoolManager(maxsize=2)
        body = msgspec.json.encode({"topics": {topic: {"from_seq": 0}}})
        json_type = {"Content-Type": "application/json"}
        answer = self._pool.request("POST", f"{url}/v0/watch", body=body, headers=json_type)
        if answer.status != 200:
            raise OSError(f"the watch was refused with {answer.status}: {answer.data.decode()}")
        self._stream = self._pool.request(
            "GET",
            url + msgspec.json.decode(answer.data)["stream_url"],
            preload_content=False,
            timeout=urllib3.Timeout(connect=5.0, read=None),
        )
        self._left, self._show = shown, show
        self.count = 0
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the stream."""
        with suppress(RuntimeError):  # the server has ended it
            self._stream.shutdown()
        self._thread.join()
        self._pool.clear()

    def _run(self) -> None:
        event, rest = b"", b""
        try:
            for part in self._stream.stream(65_536):
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    name, _, text = line.partition(b": ")
                    if name == b"event":
                        event = text
                    elif name == b"data" and event == b"record":
                        self._take(msgspec.json.decode(text)["records"])
        except (urllib3.exceptions.HTTPError, OSError):
            pass  # closed

    def _take(self, records: list[dict[str, Any]]) -> None:
        for record in records[: self._left]:
            self._show(record["data"])
        self._left = max(0, self._left - len(records))
        self.count += len(records)

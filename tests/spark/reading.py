"""Reading a topic back from a real server."""

from __future__ import annotations

from typing import Any

import msgspec
import urllib3


def read_back(url: str, topic: str) -> list[dict[str, Any]]:
    """Every record of the topic, through diff, with its tag."""
    records: list[dict[str, Any]] = []
    body: dict[str, Any] = {"from_seq": 0, "limit": 10_000, "include_tags": True}
    with urllib3.PoolManager() as pool:
        while True:
            answer = pool.request("POST", f"{url}/v0/topics/{topic}/diff", json=body)
            assert answer.status == 200, answer.data
            page = msgspec.json.decode(answer.data)
            assert page["tombstone"] is None
            records.extend(page["records"])
            if page["caught_up"]:
                return records
            body["from_seq"] = page["next_from_seq"]

"""Reading a topic back from a real server."""

from __future__ import annotations

from typing import Any

import httpx


def read_back(url: str, topic: str) -> list[dict[str, Any]]:
    """Every record of the topic, through diff, with its tag."""
    records: list[dict[str, Any]] = []
    body: dict[str, Any] = {"from_seq": 0, "limit": 10_000, "include_tags": True}
    while True:
        page = httpx.post(f"{url}/v0/topics/{topic}/diff", json=body).raise_for_status().json()
        assert page["tombstone"] is None
        records.extend(page["records"])
        if page["caught_up"]:
            return records
        body["from_seq"] = page["next_from_seq"]

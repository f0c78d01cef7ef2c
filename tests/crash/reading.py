"""Read back the records that a server stores."""

from __future__ import annotations

from typing import Any

from tests.support.api import Api


def data_of(api: Api, topic: str) -> list[Any]:
    """Return the data of every record of a topic."""
    return [record["data"] for record in api.read(topic, max_batch_bytes=8 << 20)]

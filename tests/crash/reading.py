"""Reading back what a server holds."""

from __future__ import annotations

from typing import Any

from tests.support.api import Api


def data_of(api: Api, topic: str) -> list[Any]:
    """The data of every record of a topic."""
    return [record["data"] for record in api.read(topic, max_batch_bytes=8 << 20)]

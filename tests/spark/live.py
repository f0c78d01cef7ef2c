"""A running server with topics of numbered records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from tests.support.api import Api
from tests.support.server import Server
from topics.spark.client.http import TopicsClient
from topics.spark.client.servers import Server as SparkServer
from topics.spark.source.connection import Clients, Connection, RetryBudget


class Live:
    """Writes topics to a server and reads them."""

    def __init__(self, server: Server, api_key: str | None = None) -> None:
        self.server, self._api_key = server, api_key

    @property
    def url(self) -> str:
        return f"http://{self.server.host}:{self.server.port}"

    def client(self) -> TopicsClient:
        return TopicsClient(self.url, key=self._api_key or "")

    def make(self, topic: str, count: int = 0, **config: Any) -> str:
        """Create a topic with the records 1 to ``count``, whose seqs are their numbers."""
        with self.client() as client:
            client.put_topic(topic, config)
        if count:
            self.append(topic, range(1, count + 1))
        return topic

    def append(self, topic: str, numbers: Iterable[int], **fields: Any) -> int:
        """Append records in one request and return the last seq."""
        records = [{"data": {"id": number}, **fields} for number in numbers]
        body = json.dumps({"records": records}).encode()
        with self.client() as client:
            return client.append(topic, body, len(records), uuid4().hex).last_seq

    def delete(self, topic: str) -> None:
        """Delete the topic."""
        with Api(self.server.address) as api:
            answer = api.delete(topic)
        assert answer.status == 200, answer

    def remove(self, topic: str, before: int) -> None:
        """Delete the records with a seq below ``before``."""
        with Api(self.server.address) as api:
            answer = api.call("POST", f"/v0/topics/{topic}/delete", {"before_seq": before})
        assert answer.status == 200, answer

    def read(self, topic: str) -> list[dict[str, Any]]:
        """Return all records with their tags."""
        with Api(self.server.address) as api:
            return api.read(topic, include_tags=True)


def located(connection: Connection, topic: str) -> SparkServer:
    """Return the server of a topic, by requests over new connections."""
    with Clients(connection, RetryBudget.PLANNING) as clients:
        return clients.server_of(topic)

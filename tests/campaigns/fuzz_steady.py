"""Requests between the fuzzed ones that must be answered as ever."""

from __future__ import annotations

import gzip
import json
import random
from typing import Any

from tests.campaigns.fuzz_inputs import JSON_CHUNKED
from tests.support.api import Wire, ok, request
from tests.support.ws import Socket


class SteadyAppends:
    """Appends and diffs on one connection."""

    def __init__(self, address: tuple[str, int], number: int) -> None:
        self.topic, self.records = f"steady.fast.{number}", list[Any]()
        self.wire = Wire(address)

    def ask(self, source: random.Random) -> None:
        path = f"/v0/topics/{self.topic}"
        record = {"number": len(self.records), "filler": "é" * source.choice((0, 10, 3000))}
        body = json.dumps({"records": [{"data": record}]}).encode()
        whole = source.choice(
            (
                request("POST", path, body),
                request("POST", path, gzip.compress(body), "Content-Encoding: gzip"),
                request("POST", path, None, *JSON_CHUNKED)
                + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
            )
        )
        at = source.randrange(1, len(whole))
        self.wire.send(whole[:at], whole[at:])
        answer = self.wire.answer()
        self.records.append(record)
        assert (answer.status, answer.json()["first_seq"]) == (
            200 if len(self.records) > 1 else 201,
            len(self.records),
        ), answer
        start = source.randrange(len(self.records))
        self.wire.send(request("POST", f"{path}/diff", b'{"from_seq":%d,"limit":3}' % start))
        seen = [record["data"] for record in ok(self.wire.answer())["records"]]
        assert seen == self.records[start : start + 3], seen

    def told(self) -> dict[str, list[Any]]:
        return {self.topic: self.records}

    def close(self) -> None:
        self.wire.socket.close()


class SteadyConfigs:
    """The control plane on one connection."""

    def __init__(self, address: tuple[str, int], number: int) -> None:
        self.topic = f"steady.cold.{number}"
        self.wire = Wire(address)

    def ask(self, source: random.Random) -> None:
        ttl_ms, path = source.randint(10**6, 10**9), f"/v0/topics/{self.topic}"
        put = request("PUT", path, b'{"ttl_ms":%d}' % ttl_ms)
        at = source.randrange(1, len(put))
        page = request("GET", f"/v0/topics?prefix={self.topic}&page_size=1")
        self.wire.send(put[:at], put[at:], request("GET", path), page)
        answer = self.wire.answer()
        assert answer.status in (200, 201), answer
        state = ok(self.wire.answer())
        assert (state["config"]["ttl_ms"], state["head_seq"]) == (ttl_ms, 0), state
        assert [row["topic"] for row in ok(self.wire.answer())["topics"]] == [self.topic]

    def told(self) -> dict[str, list[Any]]:
        return {self.topic: []}

    def close(self) -> None:
        self.wire.socket.close()


class SteadySocket:
    """Publishes on one WebSocket."""

    def __init__(self, address: tuple[str, int], number: int) -> None:
        self.topic, self.records = f"steady.socket.{number}", list[Any]()
        self.socket = Socket(address)

    def ask(self, source: random.Random) -> None:
        record = {"number": len(self.records), "filler": "é" * source.choice((0, 10, 3000))}
        answer = self.socket.ask("publish", "p", topic=self.topic, records=[{"data": record}])
        self.records.append(record)
        assert (answer["op"], answer["first_seq"]) == ("ack", len(self.records)), answer
        assert self.socket.ask("ping", "q")["op"] == "pong"

    def told(self) -> dict[str, list[Any]]:
        return {self.topic: self.records}

    def close(self) -> None:
        self.socket.socket.close()


STEADY: dict[str, type[SteadyAppends | SteadyConfigs | SteadySocket]] = {
    "fast": SteadyAppends,
    "cold": SteadyConfigs,
    "socket": SteadySocket,
}

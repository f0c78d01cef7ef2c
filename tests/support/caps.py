"""Helpers for caps over all shards (§11): a server with small caps, counted usage, and checks that
the server counts the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.api import Answer, Api, listed, ok, refused
from tests.support.routers import delete as delete_router
from tests.support.routers import names as router_names
from tests.support.server import Server

TOPICS, TOTAL_BYTES = "max_topics", "max_total_bytes"
FILL_RECORD_BYTES = 900_000  # Bytes of a record that helps to fill the server


@contextmanager
def capped_server(folder: Path, topics: int, total_bytes: int) -> Iterator[Server]:
    """Run a server of two shards. At the end, check that it charges nothing that does not exist."""
    with Server(
        folder / "data", shards=2, max_topics=topics, max_total_bytes=total_bytes
    ) as server:
        yield server
        with Api(server.address) as api:
            clear(api)
            counts_agree(api, topics, total_bytes)


def capped(answer: Answer, limit: str, most: int) -> None:
    """Check that the response is the rejection by this cap."""
    detail = refused(answer, 429, "throttled")["detail"]
    assert (detail["limit"], detail["max"]) == (limit, most)
    assert int(answer.headers["retry-after"]) >= 1


def held(api: Api) -> tuple[int, int]:
    """Return the number of topics and the bytes of their records."""
    names = listed(api)
    return len(names), sum(api.state(name)["bytes"] for name in names)


def clear(api: Api) -> None:
    """Delete all routers and topics."""
    for router in router_names(api):
        ok(delete_router(api, router))
    for topic in listed(api):
        ok(api.delete(topic))


def fill(api: Api, topic: str, most: int) -> None:
    """Append to ``topic`` until the server holds exactly ``most`` bytes."""
    before = api.state(topic)["bytes"]
    seq = ok(api.append(topic, "x"))["seqs"][0]
    frame = api.state(topic)["bytes"] - before - 1 - len(str(seq))
    while (left := most - held(api)[1]) > 0:
        seq += 1
        size = left if left <= FILL_RECORD_BYTES else FILL_RECORD_BYTES - 200
        ok(api.append(topic, "x" * (size - frame - len(str(seq)))))
    assert held(api)[1] == most


def counts_agree(api: Api, max_topics: int, max_bytes: int) -> None:
    """Check that the server accepts exactly as many topics and bytes as the counted usage
    leaves.
    """
    topics, _ = held(api)
    probes = [f"probe-{number}" for number in range(topics, max_topics)]
    for name in probes:
        ok(api.put(name), 201)
    capped(api.put("one-more"), TOPICS, max_topics)
    filled = probes[0] if probes else listed(api)[0]
    fill(api, filled, max_bytes)
    for name in {*probes, filled}:
        capped(api.append(name, 1), TOTAL_BYTES, max_bytes)
    for name in probes:
        ok(api.delete(name))


def at_once(
    address: tuple[str, int], count: int, work: Callable[[Api, int], list[Answer]]
) -> list[Answer]:
    """Return the responses of this number of parallel clients, each on its own connection."""

    def one(number: int) -> list[Answer]:
        with Api(address) as api:
            return work(api, number)

    with ThreadPoolExecutor(count) as pool:
        return [answer for found in pool.map(one, range(count)) for answer in found]


def statuses(answers: Iterable[Answer]) -> dict[int, int]:
    """Return the number of responses by status."""
    found: dict[int, int] = {}
    for answer in answers:
        found[answer.status] = found.get(answer.status, 0) + 1
    return found


def body_of(size: int, **fields: Any) -> dict[str, Any]:
    """Return the body of an append whose records have about ``size`` bytes in total."""
    count = max(size // FILL_RECORD_BYTES, 1)
    return {"records": [{"data": "x" * (size // count)}] * count, **fields}

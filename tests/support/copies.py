"""What the tests of forwarding ask with (§6): routers that are made, and topics that are read until
their copies are there.
"""

from __future__ import annotations

from typing import Any

from tests.support.api import Api, data, ok
from tests.support.queues import until
from tests.support.routers import delete, get, put

CLASSES = ("ephemeral", "memory", "disk", "fsync")
STAMP = "_topics_router"


def route(api: Api, source: str, dest: str, name: str | None = None, **fields: Any) -> str:
    """Make a router; its name."""
    chosen = f"{source}->{dest}" if name is None else name
    body = ok(put(api, chosen, source, dest, **fields), 201)
    assert (body["router"], body["created"]) == (chosen, True)
    assert (body["source"], body["dest"]) == (source, dest)
    return chosen


def reroute(api: Api, name: str, source: str, dest: str, **fields: Any) -> None:
    """Change a router that exists."""
    assert ok(put(api, name, source, dest, **fields))["created"] is False


def drop(api: Api, name: str) -> bool:
    """Delete a router; whether it was there."""
    return bool(ok(delete(api, name))["deleted"])


def shown(api: Api, name: str) -> Any:
    """The router as GET shows it."""
    return ok(get(api, name))


def forwarded(api: Api, name: str) -> int:
    """``forwarded_total``."""
    return int(shown(api, name)["forwarded_total"])


def lag(api: Api, name: str) -> int:
    """``lag_records``."""
    return int(shown(api, name)["lag_records"])


def passed(api: Api, *names: str) -> None:
    """These routers have done all that their sources hold."""
    for name in names:
        until(lambda name=name: lag(api, name), lambda left: left == 0)  # type: ignore[misc]


def kept(api: Api, topic: str) -> list[Any]:
    """All records of a topic, tags included."""
    return api.read(topic, include_tags=True, max_batch_bytes=8 << 20)


def arrived(api: Api, topic: str, *expected: Any) -> list[Any]:
    """The records of a topic, once their data is this."""
    return until(lambda: kept(api, topic), lambda found: data(found) == [*expected])


def untouched(record: dict[str, Any]) -> dict[str, Any]:
    """What a copy has in common with its origin."""
    return {name: value for name, value in record.items() if name not in ("$seq", "$ts")}

"""Helpers for forwarding (§6): create routers, and read topics until their copies have arrived."""

from __future__ import annotations

from typing import Any

from tests.support.api import Api, data, ok
from tests.support.queues import until
from tests.support.routers import delete, get, put

CLASSES = ("ephemeral", "memory", "disk", "fsync")
STAMP = "_topics_router"


def route(api: Api, source: str, dest: str, name: str | None = None, **fields: Any) -> str:
    """Create a router and return its name."""
    chosen = f"{source}->{dest}" if name is None else name
    body = ok(put(api, chosen, source, dest, **fields), 201)
    assert (body["router"], body["created"]) == (chosen, True)
    assert (body["source"], body["dest"]) == (source, dest)
    return chosen


def reroute(api: Api, name: str, source: str, dest: str, **fields: Any) -> None:
    """Change an existing router."""
    assert ok(put(api, name, source, dest, **fields))["created"] is False


def drop(api: Api, name: str) -> bool:
    """Delete a router and return whether it existed."""
    return bool(ok(delete(api, name))["deleted"])


def shown(api: Api, name: str) -> Any:
    """Return the router as GET shows it."""
    return ok(get(api, name))


def forwarded(api: Api, name: str) -> int:
    """Return ``forwarded_total`` of a router."""
    return int(shown(api, name)["forwarded_total"])


def lag(api: Api, name: str) -> int:
    """Return ``lag_records`` of a router."""
    return int(shown(api, name)["lag_records"])


def passed(api: Api, *names: str) -> None:
    """Wait until these routers have forwarded everything that their sources contain."""
    for name in names:
        until(lambda name=name: lag(api, name), lambda left: left == 0)  # type: ignore[misc]


def kept(api: Api, topic: str) -> list[Any]:
    """Return all records of a topic, including tags."""
    return api.read(topic, include_tags=True, max_batch_bytes=8 << 20)


def arrived(api: Api, topic: str, *expected: Any) -> list[Any]:
    """Wait until a topic contains exactly this data, and return its records."""
    return until(lambda: kept(api, topic), lambda found: data(found) == [*expected])


def untouched(record: dict[str, Any]) -> dict[str, Any]:
    """Return the members that a copy has in common with its original."""
    return {name: value for name, value in record.items() if name not in ("$seq", "$ts")}

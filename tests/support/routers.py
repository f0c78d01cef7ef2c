"""Helpers for router calls (§6), and default ends of routers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from tests.support.api import Answer, Api, ok
from topics.formats.names import shard_of

# The config of a router for which only the ends are specified, without the ends.
DEFAULTS: dict[str, Any] = {
    "preserve_node": True,
    "preserve_tag": True,
    "filter": None,
    "allow_cycle": False,
    "guarantee": "at_least_once",
}
OTHERS: dict[str, Any] = {
    "preserve_node": False,
    "preserve_tag": False,
    "filter": ["tag", "Glob", "public:*"],
    "allow_cycle": True,
    "guarantee": "exactly_once",
}


def path_of(router: str) -> str:
    return f"/v0/routers/{quote(router)}"


def put(api: Api, router: str, source: str, dest: str, **fields: Any) -> Answer:
    return api.call("PUT", path_of(router), {"source": source, "dest": dest, **fields})


def get(api: Api, router: str) -> Answer:
    return api.call("GET", path_of(router))


def delete(api: Api, router: str) -> Answer:
    return api.call("DELETE", path_of(router))


def listing(api: Api, **query: object) -> Answer:
    return api.call("GET", f"/v0/routers?{urlencode(query)}")


def pages(api: Api, **query: object) -> list[list[Any]]:
    """Return all pages of a list."""
    found: list[list[Any]] = []
    while True:
        page = ok(listing(api, **query))
        found.append(page["routers"])
        if "next_cursor" not in page:
            return found
        assert page["routers"], "an empty page with a next cursor"
        query["cursor"] = page["next_cursor"]


def named(routers: Iterable[Any]) -> list[str]:
    return [router["router"] for router in routers]


def names(api: Api, **query: object) -> list[str]:
    """Return the names of all routers from all pages."""
    return [name for page in pages(api, **query) for name in named(page)]


def config_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the config in a response to PUT or GET: the ends and the members of `DEFAULTS`."""
    return {name: body[name] for name in ("source", "dest", *DEFAULTS)}


def chain(api: Api, ends: Iterable[str], **fields: Any) -> list[str]:
    """Create a router from each topic to the next and return the names of the routers."""
    made: list[str] = []
    for source, dest in itertools.pairwise(ends):
        made.append(f"{source}->{dest}")
        ok(put(api, made[-1], source, dest, **fields), 201)
    return made


def names_for(base: str, shards: Sequence[int], count: int = 2) -> list[str]:
    """Return names that begin with ``base``, one in each of these shards."""
    found: list[str] = []
    numbers = itertools.count()
    for shard in shards:
        names = (f"{base}.{number}" for number in numbers)
        found.append(next(name for name in names if shard_of(name, count) == shard))
    return found

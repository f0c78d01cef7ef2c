"""JSON answers to router requests (§6), rendered as bytes up to ``performance`` (`answers`)."""

from __future__ import annotations

from topics.formats.api.router_bodies import RouterConfig
from topics.formats.json_text import json_bytes


def configured(router: str, config: RouterConfig, *, created: bool) -> bytes:
    """Answer to a router PUT."""
    return json_bytes({"router": router, "created": created, **config.as_json()})[:-1]


def state(
    router: str, config: RouterConfig, *, forwarded_total: int, lag_records: int, lag_ms: int
) -> bytes:
    """Answer to a router GET."""
    fields = {
        "router": router,
        **config.as_json(),
        "forwarded_total": forwarded_total,
        "lag_records": lag_records,
        "lag_ms": lag_ms,
    }
    return json_bytes(fields)[:-1]


def item(router: str, config: RouterConfig, *, forwarded_total: int) -> bytes:
    """A router in the list of routers; the whole object."""
    fields = {
        "router": router,
        "source": config.source,
        "dest": config.dest,
        "guarantee": config.guarantee,
        "forwarded_total": forwarded_total,
    }
    return json_bytes(fields)


def deleted(router: str, *, existed: bool) -> bytes:
    """Answer to a router DELETE."""
    return json_bytes({"router": router, "deleted": existed})[:-1]

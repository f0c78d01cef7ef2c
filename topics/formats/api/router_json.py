"""Routers as JSON (§6): decodes the body of a PUT, merges it with the existing config, and renders
the responses to router requests up to ``performance`` (`answers`).

``source`` and ``dest`` are required in every body. Any other field that is absent keeps its value.
In a new router, it has its default value.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from topics.errors import InvalidRequest
from topics.formats.api.decoding import decode
from topics.formats.api.diff_body import TagMatch, tag_match
from topics.formats.api.limits import Limits
from topics.formats.buffers import Buffer
from topics.formats.json_text import json_bytes
from topics.formats.names import valid_topic_name

Guarantee = Literal["at_least_once", "exactly_once"]
GUARANTEES: tuple[str, ...] = get_args(Guarantee)


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A router's resolved settings. Written to disk as a map by field name: never rename a field,
    only add with a default.
    """

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: TagMatch | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"

    def as_json(self) -> dict[str, Any]:
        """Return the config as in responses, in the order of the API document. ``filter`` has its
        request form.
        """
        return {**msgspec.structs.asdict(self), "filter": _tuple_of(self.filter)}


class RouterPatch(msgspec.Struct, kw_only=True):
    """Body of ``PUT /v0/routers/:router`` (§6), checked. ``create_dest`` only applies to this
    request and is not stored.
    """

    source: str
    dest: str
    create_dest: bool = True
    preserve_node: bool | UnsetType = UNSET
    preserve_tag: bool | UnsetType = UNSET
    filter: Any = UNSET  # after the check: TagMatch | UnsetType | None
    allow_cycle: bool | UnsetType = UNSET
    guarantee: str | UnsetType = UNSET


_router = msgspec.json.Decoder(RouterPatch)


def decode_router(body: Buffer, limits: Limits) -> RouterPatch:
    """Decode and check the body of a router PUT. Raises `InvalidRequest`."""
    request = decode(_router.decode, body or b"{}")
    for field, name in (("source", request.source), ("dest", request.dest)):
        if not valid_topic_name(name):
            raise InvalidRequest(f"{field} is not a valid topic name", field=field)
    if request.source == request.dest:
        raise InvalidRequest("dest must differ from source", field="dest")
    if request.filter is not UNSET and request.filter is not None:
        request.filter = tag_match(request.filter, "filter", limits.tag_bytes)
    if request.guarantee is not UNSET and request.guarantee not in GUARANTEES:
        raise InvalidRequest(
            f"guarantee must be one of {', '.join(GUARANTEES)}",
            field="guarantee",
            allowed=[*GUARANTEES],
        )
    return request


def merge(base: RouterConfig | None, patch: RouterPatch) -> RouterConfig:
    """Return ``base`` with the fields of ``patch``. If ``base`` is None, use the defaults."""
    fields = {
        name: value
        for name in RouterConfig.__struct_fields__
        if (value := getattr(patch, name)) is not UNSET
    }
    return RouterConfig(**fields) if base is None else msgspec.structs.replace(base, **fields)


def _tuple_of(match: TagMatch | None) -> list[str] | None:
    if match is None:
        return None
    return ["tag", match.op, match.text + ("*" if match.op == "Glob" else "")]


def configured(router: str, config: RouterConfig, *, created: bool) -> bytes:
    """Render the response to a router PUT."""
    return json_bytes({"router": router, "created": created, **config.as_json()})[:-1]


def state(
    router: str, config: RouterConfig, *, forwarded_total: int, lag_records: int, lag_ms: int
) -> bytes:
    """Render the response to a router GET."""
    fields = {
        "router": router,
        **config.as_json(),
        "forwarded_total": forwarded_total,
        "lag_records": lag_records,
        "lag_ms": lag_ms,
    }
    return json_bytes(fields)[:-1]


def item(router: str, config: RouterConfig, *, forwarded_total: int) -> bytes:
    """Render a router for the list of routers, as a complete object."""
    fields = {
        "router": router,
        "source": config.source,
        "dest": config.dest,
        "guarantee": config.guarantee,
        "forwarded_total": forwarded_total,
    }
    return json_bytes(fields)


def deleted(router: str, *, existed: bool) -> bytes:
    """Render the response to a router DELETE."""
    return json_bytes({"router": router, "deleted": existed})[:-1]

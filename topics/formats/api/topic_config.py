"""Topic config (§0.10): defaults, limits and clamps, and the merge of a request into a config."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from topics.errors import InvalidRequest, TopicExistsIncompatible
from topics.formats.api.limits import LEASE_MS_BOUNDS, check_u64
from topics.formats.json_text import json_bytes
from topics.formats.names import valid_topic_name

PRIORITY_LIMIT = 1000
CLAIM_JITTER_MS_BOUNDS = (0, 5000)

Durability = Literal["ephemeral", "memory", "disk", "fsync"]
Kind = Literal["log", "queue"]
Discard = Literal["old", "reject"]


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's resolved settings. Written to disk as a map by field name: never rename a field,
    only add with a default.
    """

    type: Kind = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = "old"
    durability: Durability = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False

    @property
    def durable(self) -> bool:
        """Whether the durability is ``fsync`` (the shorthand field of §0.10)."""
        return self.durability == "fsync"

    def as_json(self) -> dict[str, Any]:
        """Return the config as in responses, with the fields in the order of the API document."""
        fields = msgspec.structs.asdict(self)
        head = {
            name: fields.pop(name)
            for name in ("type", "ttl_ms", "cap_records", "cap_bytes", "discard")
        }
        return {**head, "durable": self.durable, **fields}


_DEFAULTS = TopicConfig()
SHARED_MAX = 1024  # maximum number of shared configs


@lru_cache(maxsize=SHARED_MAX)
def shared_config(config: TopicConfig) -> TopicConfig:
    """Return an equal config that is already in use, if there is one. This saves memory, because
    many topics have equal configs.
    """
    return config


@lru_cache(maxsize=SHARED_MAX)
def config_json(config: TopicConfig) -> bytes:
    """Return the result of `TopicConfig.as_json` as JSON text."""
    return json_bytes(config.as_json())


class TopicConfigPatch(msgspec.Struct, kw_only=True):
    """The fields of a config that a request sets; all other fields keep their values."""

    type: Kind | UnsetType = UNSET
    ttl_ms: int | UnsetType = UNSET
    cap_records: int | UnsetType = UNSET
    cap_bytes: int | UnsetType = UNSET
    discard: Discard | UnsetType = UNSET
    durable: bool | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    priority: int | UnsetType | None = UNSET
    auto_priority: bool | UnsetType = UNSET
    auto_create: bool | UnsetType = UNSET
    idempotency_window_ms: int | UnsetType = UNSET
    dedupe_node: bool | UnsetType = UNSET
    lease_ms: int | UnsetType = UNSET
    claim_jitter_ms: int | UnsetType = UNSET
    max_deliveries: int | UnsetType = UNSET
    dead_letter: str | UnsetType | None = UNSET
    leases_durable: bool | UnsetType = UNSET


_NO_PATCH = TopicConfigPatch()
_UNSIGNED = (
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
)


def merge(topic: str, base: TopicConfig | None, patch: TopicConfigPatch) -> TopicConfig:
    """Return ``base`` with the fields of ``patch``, clamped. If ``base`` is None, use the
    defaults instead.

    Raises `InvalidRequest` for a value out of range and `TopicExistsIncompatible` for a different
    ``type``.
    """
    if patch == _NO_PATCH:
        return _DEFAULTS if base is None else base
    fields = {
        name: value
        for name in patch.__struct_fields__
        if (value := getattr(patch, name)) is not UNSET
    }
    for name in _UNSIGNED:
        if fields.get(name):  # absent in most requests
            check_u64(name, fields[name])
    durable = fields.pop("durable", None)
    if durable is not None:
        fields.setdefault("durability", "fsync" if durable else "disk")
    if fields.get("priority") is not None:
        fields["priority"] = _clamp(fields["priority"], -PRIORITY_LIMIT, PRIORITY_LIMIT)
    if "lease_ms" in fields:
        fields["lease_ms"] = _clamp(fields["lease_ms"], *LEASE_MS_BOUNDS)
    if "claim_jitter_ms" in fields:
        fields["claim_jitter_ms"] = _clamp(fields["claim_jitter_ms"], *CLAIM_JITTER_MS_BOUNDS)
    _check_dead_letter(topic, fields.get("dead_letter"))
    if base is None:
        return shared_config(TopicConfig(**fields))
    if fields.get("type", base.type) != base.type:
        raise TopicExistsIncompatible(
            f'topic "{topic}" is a {base.type}; its type cannot change', topic=topic, type=base.type
        )
    return shared_config(msgspec.structs.replace(base, **fields))


def _check_dead_letter(topic: str, dead_letter: str | None) -> None:
    if dead_letter is None:
        return
    if not valid_topic_name(dead_letter):
        raise InvalidRequest("dead_letter is not a valid topic name", field="dead_letter")
    if dead_letter == topic:
        raise InvalidRequest("dead_letter must differ from the topic itself", field="dead_letter")


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))

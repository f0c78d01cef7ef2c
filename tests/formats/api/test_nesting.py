"""Nesting: the depth of any JSON is computed exactly, and in steps."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from topics.errors import InvalidRequest
from topics.formats.api import nesting
from topics.formats.api.append_body import RecordIn, decode_append
from topics.formats.api.limits import MOVE_LIMITS
from topics.formats.api.nesting import NESTING_MAX, check_nesting, is_deeper

TEXTS = ("[[", '"[', "\\", '\\"]', "{", "é]", "")


def lists(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def objects(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def among_texts(depth: int) -> bytes:
    """Return JSON with brackets in strings and in keys, and with escapes before quotes."""
    text = b'["\\"]]","\\\\",{"}[\\\\\\"":' * (depth // 2) + b"[]" * (depth % 2)
    return text + b"1" * (depth % 2 == 0) + b"}]" * (depth // 2)


def wide(depth: int) -> bytes:
    """Return JSON with many parts, one of them deep."""
    parts = [b'{"id":1,"x":[{}]}'] * 2000 + [lists(depth - 1)] + [b"[{}]"] * 2000
    return b"[" + b",".join(parts) + b"]"


KINDS = [lists, objects, among_texts, wide]


@pytest.mark.parametrize("kind", KINDS)
def test_a_payload_may_have_the_maximum_depth_but_not_one_level_more(
    kind: Callable[[int], bytes],
) -> None:
    assert not is_deeper(kind(NESTING_MAX), NESTING_MAX)
    assert is_deeper(kind(NESTING_MAX + 1), NESTING_MAX)


def depth_of(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth_of, value.values() if isinstance(value, dict) else value), default=0)


def any_value(rng: random.Random, levels: int) -> Any:
    kind = rng.randrange(5) if levels else 0
    if kind == 0:
        return rng.choice([*TEXTS, None, True, 1, -1.5e9])
    if kind < 3:
        return [any_value(rng, levels - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(TEXTS): any_value(rng, levels - 1) for _ in range(rng.randrange(4))}


def test_any_value_has_the_depth_of_its_lists_and_dicts() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        value = any_value(rng, 6)
        text, depth = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode(), depth_of(value)
        found = [is_deeper(text, levels) for levels in range(8)]
        assert found == [depth > levels for levels in range(8)], text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", [b'{"data":%b}', b'{"data":1,"meta":{"a":%b}}'])
def test_the_depth_of_an_append_is_limited_for_clients_but_not_for_shards(
    kind: Callable[[int], bytes], template: bytes
) -> None:
    def body(depth: int) -> bytes:
        record = template % kind(depth - (b"meta" in template))
        return b'{"records":[{"data":1},%b]}' % record

    limits = MOVE_LIMITS.__class__(*[1 << 30] * 10)
    assert limits.nesting == NESTING_MAX
    decode_append(body(NESTING_MAX), None, limits)
    with pytest.raises(InvalidRequest, match="is nested deeper") as caught:
        decode_append(body(NESTING_MAX + 1), None, limits)
    field = "meta" if b"meta" in template else "data"
    assert caught.value.detail == {"index": 1, "field": field, "max": NESTING_MAX}
    decode_append(body(NESTING_MAX + 100), None, MOVE_LIMITS)


def test_long_payloads_are_checked_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nesting, "STEP_BYTES", 5000)
    records = [RecordIn(Raw(lists(NESTING_MAX + 1)[1:-1] + b" " * 10)) for _ in range(10)]
    assert len([*check_nesting(records, NESTING_MAX)]) == 3

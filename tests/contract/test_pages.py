"""Readers that read a topic page by page. Regardless of changes between two pages, they get the
same page as a new reader, even if the server has read the page ahead.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.support.api import Api, ok

PAGE = 7


def page_of(
    api: Api, topic: str, from_seq: int, *, spaces: int = 0, limit: int = PAGE, **fields: Any
) -> Any:
    """Read a page. ``spaces`` change the bytes of the request, so that it does not match a page
    that the server has read ahead.
    """
    body = json.dumps({"from_seq": from_seq, "limit": limit, **fields}).encode() + b" " * spaces
    page = ok(api.call("POST", f"/v0/topics/{topic}/diff", body))
    page.pop("performance")
    return page


def fresh(api: Api, topic: str, from_seq: int, numbers: random.Random, **fields: Any) -> Any:
    return page_of(api, topic, from_seq, spaces=numbers.randrange(1, 1 << 16), **fields)


def fill(api: Api, topic: str, count: int, start: int = 0) -> None:
    records = [
        {"data": number, "tag": f"tag-{number % 5}", "node": f"n{number % 2}"}
        for number in range(start, start + count)
    ]
    ok(api.append(topic, records=records), 200 if start else 201)


def test_a_reader_gets_every_record_once_and_the_current_head(api: Api, topic: str) -> None:
    fill(api, topic, 1000)
    cursor, seen = 0, list[Any]()
    while True:
        page = page_of(api, topic, cursor)
        assert page["lag"] == page["head_seq"] - page["next_from_seq"]
        assert page["head_seq"] == 1000 + len(seen) // (3 * PAGE)
        seen += [record["data"] for record in page["records"]]
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            break
        if len(seen) % (3 * PAGE) == 0:
            ok(api.append(topic, "more"))
    assert seen[:1000] == list(range(1000))
    assert set(seen[1000:]) == {"more"}
    assert cursor == len(seen)


@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 9))]
)
def test_a_change_between_two_pages_is_visible_in_the_second_page(
    api: Api, topic: str, seed: int
) -> None:
    numbers = random.Random(seed)
    views: list[dict[str, Any]] = [
        {},
        {"node": "n1"},
        {"include_tags": False},
        {"until_seq": 400},
        {"max_batch_bytes": 300},
    ]
    fill(api, topic, 500)
    written, cursors = 500, dict.fromkeys(range(len(views)), 0)

    def change_topic() -> None:
        nonlocal written
        match numbers.randrange(8):
            case 0 | 1:
                fill(api, topic, 20, written)
                written += 20
            case 2:
                ok(
                    api.call(
                        "POST",
                        f"/v0/topics/{topic}/delete",
                        {"match": f"tag-{numbers.randrange(5)}"},
                    )
                )
            case 3:
                ok(
                    api.call(
                        "POST",
                        f"/v0/topics/{topic}/delete",
                        {"before_seq": numbers.randrange(1, written)},
                    )
                )
            case 4:
                ok(api.put(topic, {"cap_records": numbers.choice((0, 100, 300))}))
            case 5:
                ok(api.put(topic, {"dedupe_node": numbers.random() < 0.5}))
            case 6:
                ok(api.put(topic, {"ttl_ms": numbers.choice((0, 3_600_000))}))
            case 7:
                ok(api.delete(topic))
                fill(api, topic, 500)
                written = 500

    for _ in range(80):
        which = numbers.randrange(len(views))
        for _ in range(numbers.randrange(2, 8)):
            page = page_of(api, topic, cursors[which], **views[which])
            assert page == fresh(api, topic, cursors[which], numbers, **views[which])
            cursors[which] = (
                0 if page["next_from_seq"] >= min(page["head_seq"], 400) else page["next_from_seq"]
            )
        if numbers.random() < 0.4:
            change_topic()


def test_pages_that_were_read_ahead_update_last_read_ts(api: Api, topic: str) -> None:
    fill(api, topic, 500)
    cursor = 0
    for _ in range(4):
        cursor = page_of(api, topic, cursor)["next_from_seq"]
    before = api.state(topic)["last_read_ts"]
    while (now := page_of(api, topic, cursor))["next_from_seq"] < 490:
        cursor = now["next_from_seq"]
    assert api.state(topic)["last_read_ts"] >= before

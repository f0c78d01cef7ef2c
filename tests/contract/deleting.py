"""Deletes of records (§5): the request, and topics to delete from."""

from __future__ import annotations

from typing import Any

from tests.support.api import Answer, Api, ok
from tests.support.model import Kept, TopicModel

U64_MAX = 2**64 - 1
TAGS = ["a", "b", None, "ab", "a", None, "b", "abc", "c", "a"]  # of the records 1 to 10
ODD_TAGS = [
    *('say "x"', 'say "', "say ", "\\", "\\\\", "\\u0061", "a", "a/b", "a*", "a*b", "*", "**"),
    *("%61", "a b", "\t", "\n", "\x00", "\x7f", "\x1f", "\u00e9", "e\u0301", "\u00c9", "\u00df"),
    *("\u65e5\u672c", "\u65e5", "\u65e5\u672c\u8a9e", "\U0001f600", "\U0001f600x", "\uffff"),
    *("\U00010000", "\U0010ffff", "\U0010ffff\U0010ffff", "", "k\U0010ffff", "k", "l", "$tag"),
    *("null", '["tag"]'),
]


def erase(api: Api, topic: str, body: Any) -> Answer:
    """Send a delete request."""
    return api.call("POST", f"/v0/topics/{topic}/delete", body)


def fill(api: Api, topic: str, tags: list[str | None], **fields: Any) -> TopicModel:
    """Append a record for each tag in one write."""
    records = [
        {"data": number} | ({} if tag is None else {"tag": tag})
        for number, tag in enumerate(tags, 1)
    ]
    answer = api.append(topic, records=records, **fields)
    ok(answer, answer.status)
    model = TopicModel()
    model.append(Kept(number, tag) for number, tag in enumerate(tags, 1))
    return model

"""Tag index."""

from __future__ import annotations

from topics.engine.tags import PORTION_TAGS, TagIndex
from topics.formats.api.delete_body import TagMatch
from topics.formats.json_text import json_string


def test_tags_are_found_in_every_portion_until_they_are_forgotten() -> None:
    tags = TagIndex()
    texts = [f"tag-{number * 7919 % 20_011:05d}" for number in range(3 * PORTION_TAGS)]
    tags.add([(index, json_string(text)) for index, text in enumerate(texts)], 100)
    for prefix in ("tag-00", "tag-1", "", "tag-20010", "tag-x", "u"):
        expected = {100 + index for index, text in enumerate(texts) if text.startswith(prefix)}
        assert set(tags.find(TagMatch("Glob", prefix))) == expected
    assert list(tags.find(TagMatch("Eq", texts[17]))) == [117]
    tags.add([(0, json_string(texts[17]))], 99_000)
    tags.forget(TagMatch("Eq", texts[17]), 200)
    assert list(tags.find(TagMatch("Glob", texts[17]))) == [99_000]
    tags.forget(TagMatch("Eq", texts[17]), 100_000)
    assert list(tags.find(TagMatch("Eq", texts[17]))) == []

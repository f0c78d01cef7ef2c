"""Tag index."""

from __future__ import annotations

from topics.engine.tags import PORTION_TAGS, TagIndex
from topics.formats.api.diff_body import TagMatch
from topics.formats.json_text import json_string


def test_tags_are_found_in_every_portion_until_they_are_forgotten() -> None:
    tags = TagIndex()
    texts = [f"tag-{number * 7919 % 20_011:05d}" for number in range(3 * PORTION_TAGS)]
    tags.add([(index, json_string(text)) for index, text in enumerate(texts)], 100)
    for prefix in ("tag-00", "tag-1", "", "tag-20010", "tag-x", "u"):
        for first, stop in ((0, 1 << 40), (100, 101), (4000, 4500), (4195, 4197), (9000, 1 << 40)):
            expected = [
                100 + index
                for index, text in enumerate(texts)
                if text.startswith(prefix) and first <= 100 + index < stop
            ]
            found, looked = tags.find(TagMatch("Glob", prefix), first, stop)
            assert sorted(found) == expected
            assert looked <= len(texts) + 1
    one = TagMatch("Eq", texts[17])
    assert tags.find(one, 0, 99_000)[0] == [117]
    tags.add([(0, json_string(texts[17])), (1, json_string(texts[17]))], 99_000)
    tags.forget(one, 0, 200)
    assert tags.find(TagMatch("Glob", texts[17]), 0, 100_000)[0] == [99_000, 99_001]
    tags.forget(one, 200, 99_001)
    assert tags.find(one, 0, 100_000)[0] == [99_001]
    tags.forget(one, 200, 100_000)
    assert tags.find(one, 0, 100_000)[0] == []

"""Delete bodies (§5): by seq, by tag, or both."""

from __future__ import annotations

import pytest

from topics.errors import InvalidRequest
from topics.formats.api.diff_body import TagMatch, decode_delete


@pytest.mark.parametrize(
    ("body", "before_seq", "match"),
    [
        (b'{"before_seq":0}', 0, None),
        (b'{"before_seq":18446744073709551615}', 2**64 - 1, None),
        (b'{"before_seq":7,"match":null,"more":1}', 7, None),
        (b'{"match":"t"}', None, TagMatch("Eq", "t")),
        (b'{"match":"t*"}', None, TagMatch("Eq", "t*")),
        (b'{"match":""}', None, TagMatch("Eq", "")),
        (b'{"match":["tag","Eq","t*"],"before_seq":3}', 3, TagMatch("Eq", "t*")),
        (b'{"match":["tag","Glob","t*"]}', None, TagMatch("Glob", "t")),
        (b'{"match":["tag","Glob","*"],"before_seq":null}', None, TagMatch("Glob", "")),
    ],
)
def test_a_delete_is_by_seq_or_by_tag_or_both(
    body: bytes, before_seq: int | None, match: TagMatch | None
) -> None:
    assert decode_delete(body) == (before_seq, match)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}", b"[]", b"null", b'{"before_seq":null}', b'{"match":null}'),
        *(
            b'{"before_seq":-1}',
            b'{"before_seq":1.5}',
            b'{"before_seq":true}',
            b'{"before_seq":"1"}',
            b'{"before_seq":18446744073709551616}',
        ),
        *(
            *(b'{"match":1}', b'{"match":true}', b'{"match":{}}', b'{"match":[]}'),
            *(b'{"match":["tag","Eq"]}', b'{"match":["tag","Eq","t",1]}'),
        ),
        *(
            b'{"match":["node","Eq","t"]}',
            b'{"match":["tag","eq","t"]}',
            b'{"match":["tag","Regex","t*"]}',
            b'{"match":["tag","Eq",1]}',
        ),
        *(
            b'{"match":["tag","Glob","t"]}',
            b'{"match":["tag","Glob",""]}',
            b'{"match":["tag","Glob","t**"]}',
            b'{"match":["tag","Glob","*t"]}',
        ),
        *(
            b'{"match":["tag","Glob","a*b*"]}',
            b'{"match":["tag",["Eq"],"t"]}',
            b'{"match":"\xff"}',
            b'{"match":' + b"[" * 100_000,
        ),
        b'{"before_seq":1,"match":["tag","Glob","t"]}',
    ],
)
def test_any_other_delete_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_delete(body)

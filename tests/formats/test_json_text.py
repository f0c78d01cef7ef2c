"""JSON text: one form for each text, the one that records keep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.formats.api.test_append_body import one
from tests.support.limits import LIMITS as WIDE
from topics.formats.api.limits import Limits
from topics.formats.json_text import json_bytes, json_string


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_has_one_form_as_json(text: str) -> None:
    rendered = json_string(text)
    assert rendered == json_bytes(text)
    assert bytes(one(b'{"data":%b}' % rendered, WIDE).data) == rendered
    assert (
        one(b'{"data":1,"tag":%b}' % rendered, Limits(1, 1 << 20, 1, 1 << 20, 1, 1, 1)).tag == text
    )

"""JSON text: each text has exactly one form, which records keep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.formats.api.test_append_body import only_record
from tests.support.limits import LIMITS as WIDE
from topics.formats.api.limits import Limits
from topics.formats.json_text import json_bytes, json_string


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_has_exactly_one_json_form(text: str) -> None:
    rendered = json_string(text)
    assert rendered == json_bytes(text)
    assert bytes(only_record(b'{"data":%b}' % rendered, WIDE).data) == rendered
    assert (
        only_record(b'{"data":1,"tag":%b}' % rendered, Limits(1, 1 << 20, 1, 1 << 20, 1, 1, 1)).tag
        == text
    )

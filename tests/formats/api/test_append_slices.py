"""A long body that is decoded slice by slice gives the same request as the complete body."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import BatchTooLarge
from topics.formats.api import append_slices
from topics.formats.api.append_body import AppendBody

DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\{}[],:é ', max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "tag", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
RECORD = st.fixed_dictionaries(
    {"data": DATA},
    optional={
        "tag": st.text(max_size=4),
        "meta": st.just({"a": [1, {"data": 2}]}),
        "delay_ms": st.integers(0, 9),
    },
)


def decode(body: bytes) -> tuple[AppendBody, int]:
    """Return the request and the number of slices in which it was decoded."""
    chunks = list(append_slices.slices(body))
    request = chunks.pop()
    assert request is not None
    assert not any(chunks)
    return request, len(chunks)


def plain(request: AppendBody) -> tuple[Any, ...]:
    records = [
        (
            *(bytes(record.data), record.tag, record.node, bytes(record.meta)),
            *(record.delay_ms, record.deliver_at),
        )
        for record in request.records
    ]
    return records, request.node, request.idempotency_key, request.create, request.config


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_slices, "SLICE_BYTES", 64)


@pytest.mark.slow
@given(
    records=st.lists(RECORD, max_size=30),
    indent=st.sampled_from([None, 0, 2]),
    records_first=st.booleans(),
)
def test_any_body_is_decoded_as_by_the_complete_decoder(
    records: list[Any], indent: int | None, records_first: bool
) -> None:
    others = {"node": "n", "idempotency_key": 'k,{"data":1}', "create": True}
    document = {"records": records, **others} if records_first else {**others, "records": records}
    body = json.dumps(document, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_slices, "SLICE_BYTES", 32)
        request, _ = decode(body)
    assert plain(request) == plain(msgspec.json.decode(body, type=AppendBody))


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("first", ["data", "tag", "node", "meta", "delay_ms", "deliver_at"])
def test_records_are_separated_for_any_first_known_field(first: str) -> None:
    values = {"data": 1, "tag": "t", "node": "n", "meta": {}, "delay_ms": 1, "deliver_at": None}
    record = {first: values[first], "data": 1, "x": "y" * 20}
    _, chunks = decode(json.dumps({"records": [record] * 50}).encode())
    assert chunks > 3


KEYS = st.sampled_from(
    [
        *('"records"', '"records"', '"\\u0072ecords"', '"node"', '"n\\u006fde"'),
        *('"idempotency_key"', '"create"', '"config"', '"x"'),
    ]
)
LISTS = st.lists(RECORD, max_size=12)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "records": LISTS,
    "node": st.none() | st.sampled_from(["n", "m"]),
    "idempotency_key": st.sampled_from(["k", '],"records":[']),
    "create": st.booleans(),
    "config": st.just({"priority": 1}),
    "x": LISTS | st.fixed_dictionaries({"records": LISTS}),
}


@st.composite
def envelopes(draw: st.DrawFn) -> bytes:
    """Draw an object with any number of each key, in any order and spelling."""
    keys = draw(st.lists(KEYS, max_size=8))
    values = [json.dumps(draw(VALUES[json.loads(key)])) for key in keys]
    return (
        "{" + ",".join(f"{key}:{value}" for key, value in zip(keys, values, strict=True)) + "}"
    ).encode()


@pytest.mark.slow
@given(body=envelopes())
def test_the_last_of_duplicate_keys_is_used(body: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_slices, "SLICE_BYTES", 16)
        patch.setattr(append_slices, "HEAD_MAX_BYTES", 100)
        try:
            request, _ = decode(body)
        except msgspec.MsgspecError:
            assert not _decodes(body)
            return
    assert plain(request) == plain(msgspec.json.decode(body, type=AppendBody))


@pytest.mark.parametrize("second", [b"records", b"\\u0072ecords"])
@pytest.mark.usefixtures("small_slices")
def test_a_second_records_member_is_not_mixed_with_the_first(
    monkeypatch: pytest.MonkeyPatch, second: bytes
) -> None:
    monkeypatch.setattr(append_slices, "HEAD_MAX_BYTES", 100)
    lists = [
        b",".join(b'{"data":"%b%d"}' % (name, number) for number in range(50))
        for name in (b"a", b"b")
    ]
    body = b'{"records":[%b],"%b":[%b],"node":"n"}' % (lists[0], second, lists[1])
    request, _ = decode(body)
    assert plain(request) == plain(msgspec.json.decode(body, type=AppendBody))
    assert len(request.records) == 50


@pytest.mark.usefixtures("small_slices")
def test_a_long_body_is_decoded_in_many_slices() -> None:
    body = json.dumps({"records": [{"data": "x" * 20} for _ in range(100)]}).encode()
    request, chunks = decode(body)
    assert len(request.records) == 100
    assert chunks > 10


@pytest.mark.usefixtures("small_slices")
def test_a_boundary_inside_a_record_does_not_split_it() -> None:
    nested = [{"data": 1}, {"data": 2}] * 20
    body = json.dumps({"records": [{"data": nested, "tag": '},{"data":'}] * 5}).encode()
    request, _ = decode(body)
    assert [json.loads(bytes(record.data)) for record in request.records] == [nested] * 5


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("a second records member wins", b'{"records":[%b],"node":"n","records":[{"data":7}]}'),
        ("the bracket is in a string", b'{"node":"\\"records\\":[","records":[%b]}'),
        ("the bracket is nested", b'{"config":{"records":[1]},"records":[%b]}'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.usefixtures("small_slices")
def test_a_misleading_first_bracket_does_not_change_the_result(name: str, document: bytes) -> None:
    body = document % b",".join([b'{"data":"%d"}' % number for number in range(50)])
    assert plain(decode(body)[0]) == plain(msgspec.json.decode(body, type=AppendBody))


@pytest.mark.parametrize("cut", ["]", "}", ""])
@pytest.mark.usefixtures("small_slices")
def test_a_syntax_error_at_any_place_is_detected(cut: str) -> None:
    good = json.dumps({"records": [{"data": "x" * 20} for _ in range(100)]})
    for at in (150, 1500, len(good) - 5):
        bad = good[:at] + "\x01" + good[at:] if cut == "" else good[:at] + cut + good[at:]
        if _decodes(bad.encode()):
            continue  # A bracket inside a string is not an error
        with pytest.raises(msgspec.MsgspecError):
            decode(bad.encode())


def _decodes(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=AppendBody)
    except msgspec.MsgspecError:
        return False
    return True


@pytest.mark.parametrize("cut", ["", "\x01", "]", "}"])
@pytest.mark.usefixtures("small_slices")
def test_a_body_without_most_of_its_records_is_decoded_like_the_complete_one(cut: str) -> None:
    good = json.dumps({"op": "a", "records": [{"data": {"n": n}} for n in range(100)], "node": "n"})
    for at in range(20, len(good), 97):
        body = (good[:at] + cut + good[at:]).encode()
        try:
            *steps, rest = append_slices.without_records(body)
            found = msgspec.json.decode(rest or b"")
        except msgspec.MsgspecError:
            found = None
        try:
            expected = msgspec.json.decode(body)
        except msgspec.MsgspecError:
            assert found is None
            continue
        if "records" not in expected:
            assert found == expected
            continue
        assert not any(steps)
        assert len(steps) > 10
        assert len(rest or b"") < 300
        assert found["records"][-1] == expected["records"][-1]
        del found["records"], expected["records"]
        assert found == expected


@pytest.mark.usefixtures("small_slices")
def test_too_many_records_are_rejected_before_all_are_decoded() -> None:
    body = b'{"records":[' + b'{"data":1},' * 10_000 + b'{"data":1}]}'
    steps: list[object] = []
    with pytest.raises(BatchTooLarge) as refused:
        steps.extend(append_slices.slices(body, 500))
    assert refused.value.detail == {"max": 500}
    assert 0 < len(steps) < decode(body)[1] / 10

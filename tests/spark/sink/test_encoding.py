"""The encoding of rows as records. A value never becomes more than one JSON value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.sink.columns import Columns

pytest.importorskip("pyarrow")

import pyarrow as pa

from topics.spark.sink.encoding import BadRow, encode, topics_of

VALUE_ONLY = Columns(value=0)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


def batch(**columns: list[Any]) -> Any:
    return pa.record_batch(
        {
            name: pa.array(values, pa.binary() if isinstance(values[0], bytes) else pa.string())
            for name, values in columns.items()
        }
    )


def records_of(encoded: Any) -> list[Any]:
    return json.loads("[" + "".join(encoded.to_pylist())[:-1] + "]")  # type: ignore[no-any-return]


def test_all_columns_become_members_and_nulls_are_omitted() -> None:
    rows = batch(
        value=['{"a": 1.10}', None, "[1]"],
        key=['say "a"', None, "tab\t"],
        node=[None, "n", None],
        headers=[None, ' {"h":1}', None],
    )
    encoded = encode(rows, Columns(value=0, key=1, headers=3, node=2), text=False)
    assert encoded.to_pylist() == [
        '{"data":{"a": 1.10},"tag":"say \\"a\\""},',
        '{"data":null,"node":"n","meta": {"h":1}},',
        '{"data":[1],"tag":"tab\\t"},',
    ]


def test_columns_of_nulls_and_batches_without_rows_are_encoded() -> None:
    columns = Columns(value=0, key=1, headers=2)
    nulls = batch(value=["1"], key=[None], headers=[None])
    assert encode(nulls, columns, text=False).to_pylist() == ['{"data":1},']
    assert encode(nulls.slice(0, 0), columns, text=False).to_pylist() == []


def test_a_slice_of_a_batch_is_encoded_alone() -> None:
    rows = batch(value=["bad", "2", "3"], key=["a", 'b"', None]).slice(1)
    columns = Columns(value=0, key=1)
    assert encode(rows, columns, text=False).to_pylist() == [
        '{"data":2,"tag":"b\\""},',
        '{"data":3},',
    ]


@given(rows=st.lists(st.tuples(st.none() | TEXTS, st.none() | TEXTS), min_size=1, max_size=6))
def test_texts_and_keys_are_decoded_to_their_input(
    rows: list[tuple[str | None, str | None]],
) -> None:
    given_batch = pa.record_batch(
        {
            "value": pa.array([value for value, _ in rows], pa.string()),
            "key": pa.array([key for _, key in rows], pa.string()),
        }
    )
    columns = Columns(value=0, key=1)
    found = records_of(encode(given_batch, columns, text=True))
    assert [(record["data"], record.get("tag")) for record in found] == rows


@given(
    values=st.lists(
        st.text(st.sampled_from('{}[]",:1a\\ ') | st.characters(codec="utf-8"), max_size=8),
        min_size=1,
        max_size=4,
    )
)
def test_accepted_values_are_one_json_value_for_each_row(values: list[str]) -> None:
    try:
        encoded = encode(batch(value=values), VALUE_ONLY, text=False)
    except BadRow as error:
        with pytest.raises(ValueError):
            strict(values[error.row])
        return
    assert [record["data"] for record in records_of(encoded)] == [strict(text) for text in values]


def strict(text: str) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    "value",
    [
        '1},{"data":2',  # two records
        '1,"meta":{"a":[{"z":1',  # one with the next
        "1 2",
        "",
        "tru",
        "NaN",
        "01",
        '"\\x"',
        '"\x01"',
        '"\\ud800"',
        '"\\ud800\\u0041"',
        '{"a":1,}',
        "\ufeff1",
        "[" * 100_000,
    ],
)
def test_invalid_json_is_refused_with_its_row_and_an_excerpt(value: str) -> None:
    with pytest.raises(BadRow) as refusal:
        encode(batch(value=["1", None, value, "x"]), VALUE_ONLY, text=False)
    assert refusal.value.row == 2
    assert f"value is not JSON: {value[:80]!r}" in str(refusal.value)
    assert len(str(refusal.value)) < 400


def test_two_fragments_of_one_value_are_refused() -> None:
    pair = ['1,"meta":{"a":[{"z":1', '2}]},{"data":3']
    with pytest.raises(BadRow):
        encode(batch(value=pair), VALUE_ONLY, text=False)


def test_a_complete_surrogate_pair_is_a_character() -> None:
    assert records_of(encode(batch(value=['"\\ud83d\\ude00"']), VALUE_ONLY, text=False)) == [
        {"data": "😀"}
    ]


@pytest.mark.parametrize("text", [False, True])
def test_invalid_utf_8_is_refused_in_binary_and_string_columns(text: bool) -> None:
    binary = batch(value=[b'"a"', b'"\xff"'])
    as_string = pa.Array.from_buffers(pa.string(), 2, binary.column(0).buffers())
    for rows in (binary, pa.record_batch({"value": as_string})):
        with pytest.raises(BadRow, match="value is not UTF-8") as refusal:
            encode(rows, VALUE_ONLY, text=text)
        assert refusal.value.row == 1


@pytest.mark.parametrize("headers", ["[]", '"{"', "1", "null"])
def test_headers_other_than_an_object_are_refused(headers: str) -> None:
    rows = batch(value=["1", "2"], headers=[None, headers])
    columns = Columns(value=0, headers=1)
    with pytest.raises(BadRow, match="headers is not a JSON object") as refusal:
        encode(rows, columns, text=False)
    assert refusal.value.row == 1


def test_a_null_topic_is_refused_with_its_row() -> None:
    assert topics_of(batch(topic=["a", "b"]), 0).to_pylist() == ["a", "b"]
    with pytest.raises(BadRow, match="the column topic is null") as refusal:
        topics_of(batch(topic=["a", None]), 0)
    assert refusal.value.row == 1


def test_a_map_of_headers_is_encoded_as_an_object() -> None:
    maps = pa.array(
        [[("a", 'say "é"\n'), ("b", None)], [], None], pa.map_(pa.string(), pa.string())
    )
    rows = pa.record_batch({"value": pa.array(["1", "2", "3"]), "headers": maps})
    columns = Columns(value=0, headers=1)
    assert encode(rows, columns, text=False).to_pylist() == [
        '{"data":1,"meta":{"a":"say \\"é\\"\\n","b":null}},',
        '{"data":2,"meta":{}},',
        '{"data":3},',
    ]
    assert encode(rows.slice(2), columns, text=False).to_pylist() == ['{"data":3},']
    binary = pa.array([[(b"a", b"x")], [(b"a", b"\xff")]], pa.map_(pa.binary(), pa.binary()))
    bad = pa.record_batch({"value": pa.array(["1", "2"]), "headers": binary})
    with pytest.raises(BadRow, match="headers is not UTF-8") as refusal:
        encode(bad, columns, text=False)
    assert refusal.value.row == 1


def test_delays_and_times_of_delivery_are_in_milliseconds() -> None:
    rows = pa.record_batch(
        {
            "value": pa.array(["1", "2"]),
            "delay_ms": pa.array([None, 5], pa.int32()),
            "deliver_at": pa.array([1_700_000_000_123_999, None], pa.timestamp("us", "UTC")),
        }
    )
    columns = Columns(value=0, delay_ms=1, deliver_at=2)
    assert encode(rows, columns, text=False).to_pylist() == [
        '{"data":1,"deliver_at":1700000000123},',
        '{"data":2,"delay_ms":5},',
    ]
    numbers = pa.record_batch({"value": pa.array(["1"]), "deliver_at": pa.array([1_700_000])})
    columns = Columns(value=0, deliver_at=1)
    assert encode(numbers, columns, text=False).to_pylist() == ['{"data":1,"deliver_at":1700000},']

"""Schema inference: the type that a sample has in common, and that all of the sample fits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from pyspark.sql.types import StructField, StructType

from topics.spark.client.http import Record
from topics.spark.source.columns import Columns
from topics.spark.source.connection import BadOption
from topics.spark.source.inference import DEPTH_MAX, infer_data

NAMES = st.sampled_from(["a", "b", "c d"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def records(*texts: str) -> list[tuple[str, Record]]:
    return [
        ("t", Record(seq=seq, ts=seq, data=Raw(text.encode()))) for seq, text in enumerate(texts, 1)
    ]


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (['{"b":1,"a":"x"}'], "struct<b:bigint,a:string>"),
        (['{"a":1}', '{"a":null}', '{"b":true}', "null"], "struct<a:bigint,b:boolean>"),
        (['{"a":1}', '{"a":1.5}'], "struct<a:double>"),
        (['{"a":1}', '{"a":"1"}'], "struct<a:string>"),
        (['{"a":"1"}', '{"a":{"b":1}}'], "struct<a:string>"),
        (['{"a":9223372036854775808}'], "struct<a:string>"),
        (['{"a":[]}', '{"a":[1,2.5,null]}'], "struct<a:array<double>>"),
        (['{"a":[[],null,{}]}'], "struct<a:array<string>>"),
        (['{"a":{"b":1}}', '{"a":{"c":[]}}'], "struct<a:struct<b:bigint,c:array<string>>>"),
        (['{"a":null,"b":{}}'], "struct<a:string,b:string>"),
        (['{"a":"2024-12-31"}'], "struct<a:string>"),
    ],
)
def test_the_type_of_a_sample(texts: list[str], found: str) -> None:
    assert infer_data(records(*texts)).simpleString() == found


@given(st.lists(st.dictionaries(NAMES, VALUES, min_size=1), min_size=1, max_size=5))
def test_what_the_type_was_made_of_fits_it(sample: list[dict[str, Any]]) -> None:
    given_records = records(*map(json.dumps, sample))
    kind = infer_data(given_records)
    columns = Columns(StructType([StructField("data", kind)]))
    found = columns.batch([record for _, record in given_records], "t", 0)
    for value, row in zip(sample, found.to_pylist(), strict=True):
        assert {name: _seen(row["data"][name], value.get(name)) for name in row["data"]} == {
            name: value.get(name) for name in row["data"]
        }


def _seen(found: Any, value: Any) -> Any:
    """What was found, decoded where the type is STRING and the value is none."""
    if isinstance(found, str) and not isinstance(value, str):
        return json.loads(found)
    if isinstance(found, list):
        return [_seen(*pair) for pair in zip(found, value, strict=True)]
    if isinstance(found, dict):
        # A member that another record has is null here.
        assert all(found[name] is None for name in found.keys() - value.keys())
        return {name: _seen(found[name], value[name]) for name in value}
    return found


def test_an_object_that_is_too_deep_is_a_string() -> None:
    deep = '{"a":' * (DEPTH_MAX + 5) + "1" + "}" * (DEPTH_MAX + 5)
    assert infer_data(records(deep)).simpleString().count("struct") == DEPTH_MAX


def test_an_object_with_too_many_members_is_a_string() -> None:
    wide = json.dumps({"a": {str(number): 1 for number in range(1001)}})
    assert infer_data(records(wide)).simpleString() == "struct<a:string>"


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["{}", "[1]"], 'the data of topic "t" at offset 2 is an array, not an object; read'),
        (["true"], 'the data of topic "t" at offset 1 is a boolean, not an object'),
        ([], "there is no object with members among the first records"),
        (["null", "{}"], "there is no object with members"),
        (['{"a":"\\ud800"}'], 'the data of topic "t" at offset 1 cannot be decoded'),
    ],
)
def test_a_sample_without_a_type_is_refused(texts: list[str], says: str) -> None:
    with pytest.raises(BadOption, match=says):
        infer_data(records(*texts))

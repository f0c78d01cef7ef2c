"""The options of reads, valid and invalid."""

from __future__ import annotations

import pickle
import re
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.live import Live
from topics.spark.source.connection import BadOption
from topics.spark.source.offsets import EARLIEST, LATEST
from topics.spark.source.options import ReadOptions, literal_prefix
from topics.spark.source.survey import Survey


def parse(kind: str = "batch", **options: str) -> ReadOptions:
    return ReadOptions.parse({"servers": "http://h:1", **options}, kind)  # type: ignore[arg-type]


def test_a_batch_starts_at_the_earliest_and_a_stream_at_the_latest_record() -> None:
    batch, stream = parse(subscribe="a, b,a"), parse("stream", topic="a")
    assert (batch.topics, stream.topics) == (("a", "b"), ("a",))
    assert (batch.starting.default, batch.ending.default) == (EARLIEST, LATEST)
    assert stream.starting.default == LATEST
    assert batch.fail_on_data_loss
    assert (batch.max_records_per_partition, batch.max_offsets) == (500_000, None)
    assert (stream.min_offsets, stream.max_delay_s) == (0, 900)
    assert pickle.loads(pickle.dumps(batch)) == batch


def test_names_and_values_are_not_case_sensitive() -> None:
    options = parse(SUBSCRIBE="a", FailOnDataLoss="FALSE", columns="offset, key")
    assert not options.fail_on_data_loss
    assert options.columns == ("offset", "key")


def test_topics_are_assigned_with_the_numbers_of_their_servers() -> None:
    options = parse(assign='{"a": [0], "b": [1, 0]}', valueFormat="TEXT")
    assert (options.topics, options.pattern, options.text) == (("a", "b"), None, True)
    assert [*options.assigned.named["b"]] == [1, 0]


def test_an_assigned_topic_must_be_on_the_server_with_its_number(live: Live) -> None:
    live.make("assigned", 3)
    with closing(Survey(parse(servers=live.url, assign='{"assigned": [0]}'))) as survey:
        assert [topic for _, topic, _ in survey.required()] == ["assigned"]
    with (
        closing(Survey(parse(servers=live.url, assign='{"assigned": [0, 1]}'))) as survey,
        pytest.raises(BadOption, match='assign names partition 1 of topic "assigned", which is'),
    ):
        list(survey.required())


def test_a_pattern_matches_complete_names() -> None:
    options = parse(subscribePattern=r"orders\..*")
    assert options.wants("orders.eu")
    assert not options.wants("my.orders.eu")
    assert not options.wants("orders")
    assert literal_prefix(options.pattern or "") == "orders."


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("10s", 10), ("2 m", 120), ("1h", 3600), ("250", 0.25)]
)
def test_a_delay_has_a_unit(text: str, seconds: float) -> None:
    assert parse("stream", subscribe="a", maxTriggerDelay=text).max_delay_s == seconds


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("orders", "orders"),
        ("orders.*", "orders"),
        (r"a\.b-c:d_\d", "a.b-c:d_"),
        ("ab?c", "a"),
        ("ab*", "a"),
        ("ab{0,2}", "a"),
        ("ab+", "ab"),
        ("abc|abd", ""),
        ("(?i)abc", ""),
        ("[ab]c", ""),
        (".*", ""),
    ],
)
def test_every_match_starts_with_the_prefix(pattern: str, prefix: str) -> None:
    assert literal_prefix(pattern) == prefix


@given(st.from_regex(r"[ab.?*+\\|()]{0,6}", fullmatch=True), st.text("ab.", max_size=5))
def test_the_prefix_excludes_no_match(pattern: str, name: str) -> None:
    try:
        matched = re.fullmatch(pattern, name)
    except re.error:
        return
    assert matched is None or name.startswith(literal_prefix(pattern))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("batch", {}, "no topic is named"),
        ("batch", {"subscribe": "a", "topic": "a"}, "subscribe and topic are both given"),
        ("batch", {"subscribe": " , "}, "names no topic"),
        ("batch", {"subscribe": "a b"}, "'a b' is no name of a topic"),
        ("batch", {"subscribePattern": "("}, "option subscribePattern is '('"),
        ("batch", {"subscribe": "a", "startingOffsets": "latest"}, "cannot be latest"),
        ("batch", {"subscribe": "a", "startingOffsets": '{"a":-1}'}, "cannot be latest"),
        ("batch", {"subscribe": "a", "endingOffsets": "earliest"}, "cannot be earliest"),
        ("batch", {"subscribe": "a", "startingOffsets": '{"b":1}'}, 'names topic "b"'),
        ("stream", {"subscribe": "a", "endingOffsets": '{"a":9}'}, "a stream has no end"),
        ("stream", {"subscribe": "a", "endingTimestamp": "9"}, "a stream has no end"),
        ("stream", {"subscribe": "a", "endingOffsetsByTimestamp": '{"a":9}'}, "a stream has no"),
        ("batch", {"subscribe": "a", "startingTimestamp": "soon"}, "is not an integer"),
        ("batch", {"subscribe": "a", "startingOffsetsByTimestamp": "{}"}, "earliest, latest or JS"),
        (
            "batch",
            {"subscribe": "a", "startingTimestamp": "1", "startingOffsets": "earliest"},
            "options startingOffsets and startingTimestamp are both given",
        ),
        (
            "batch",
            {"subscribe": "a", "startingOffsets": '{"a": 9}', "endingOffsets": '{"a": {"0": 5}}'},
            'startingOffsets of topic "a" is 9, which is above endingOffsets, 5',
        ),
        (
            "batch",
            {"subscribe": "a", "startingTimestamp": "9", "endingTimestamp": "5"},
            "startingTimestamp is 9, which is above endingTimestamp, 5",
        ),
        (
            "batch",
            {"subscribe": "a", "startingTimestamp": "9", "endingOffsetsByTimestamp": '{"a": 5}'},
            'startingTimestamp of topic "a" is 9, which is above endingOffsetsByTimestamp, 5',
        ),
        (
            "stream",
            {"subscribe": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"},
            "minOffsetsPerTrigger is above",
        ),
        ("stream", {"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "it is at least 1"),
        ("stream", {"subscribe": "a", "maxTriggerDelay": "soon"}, "a time as 500ms"),
        ("batch", {"subscibe": "a"}, "there is no option subscibe; is it subscribe?"),
        ("batch", {"subscribe": "a", "startingOffset": "1"}, "is it startingOffsets?"),
        ("batch", {"subscribe": "a", "maxOffsetPerTrigger": "1"}, "is it maxOffsetsPerTrigger?"),
        ("batch", {"subscribe": "a", "assign": "{}"}, "subscribe and assign are both given"),
        ("batch", {"assign": "{}"}, "option assign names no topic"),
        ("batch", {"assign": '{"a": 0}'}, 'it is JSON as {"TOPIC": [0]}'),
        ("batch", {"assign": '{"a": []}'}, 'it is JSON as {"TOPIC": [0]}'),
        ("batch", {"assign": '{"a b": [0]}'}, "'a b' is no name of a topic"),
        ("batch", {"subscribe": "a", "valueFormat": "avro"}, "one of: json, text"),
        ("batch", {"subscribe": "a", "kafka.group.id": "g"}, "leave it out"),
        ("stream", {"subscribe": "a", "groupIdPrefix": "g"}, "there are no groups"),
        (
            "stream",
            {"subscribe": "a", "startingOffsetsByTimestampStrategy": "latest"},
            "begins at the end, as latest does",
        ),
        ("batch", {"path": "a"}, "give .option('subscribe', 'a') and call .load()"),
    ],
)
def test_an_invalid_option_is_reported_in_one_line(
    kind: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(BadOption) as caught:
        parse(kind, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_options_are_ignored() -> None:
    parse(subscribe="a", includeHeaders="true", mergeSchema="true", header="true")

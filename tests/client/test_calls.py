"""Calls, errors and retries of the client, without a server."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from topics.client import calls, values
from topics.client.calls import Attempts, Retry
from topics.client.errors import (
    Conflict,
    ConnectionLost,
    Invalid,
    NotFound,
    Refused,
    Throttled,
    TopicsError,
    Unavailable,
    error_of,
)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, Invalid), (401, Refused), (403, Refused), (404, NotFound), (405, Invalid)),
        *((409, Conflict), (413, Invalid), (422, Conflict), (429, Throttled), (500, Unavailable)),
        *((502, Unavailable), (503, Unavailable)),
    ],
)
def test_each_status_maps_to_its_own_error_class(status: int, kind: type[TopicsError]) -> None:
    body = b'{"error":{"code":"c","message":"m","detail":{"retry_after_ms":1500}}}'
    error = error_of(status, {"x-request-id": "r", "retry-after": "7"}, body)
    assert type(error) is kind
    assert (error.code, error.message, error.status, error.request_id) == ("c", "m", status, "r")
    assert error.retry_after_s == 1.5
    assert str(error) == "c: m"


def test_an_error_response_of_a_proxy_raises_an_error() -> None:
    error = error_of(502, {"retry-after": "3"}, b"<html>Bad \xff Gateway</html>")
    assert (type(error), error.code, error.retry_after_s) == (Unavailable, "http_502", 3.0)
    assert "Bad" in error.message
    page = error_of(404, {}, b"<!DOCTYPE html>\n<html>" + b"x" * 9999)
    assert page.message == "the response is not from a topics server: <!DOCTYPE html>"
    assert error_of(418, {}, b"").message


def test_a_response_of_another_kind_of_server_raises_an_error() -> None:
    with pytest.raises(TopicsError, match="not a response from a topics server"):
        calls.get_topic("t").result(200, {}, b'{"hello": 1}')


class Clock:
    def __init__(self) -> None:
        self.now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(calls, "monotonic", lambda: clock.now)
    return clock


def failed(status: int, retry_after_s: float | None = None) -> TopicsError:
    error = error_of(status, {}, b"")
    error.retry_after_s = retry_after_s
    return error


def test_retry_pauses_double_with_jitter_up_to_the_maximum(clock: Clock) -> None:
    attempts = Attempts(Retry(deadline=1000.0, first=0.1, most=1.0))
    for longest_s in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert longest_s / 2 <= attempts.pause_after(failed(503)) <= longest_s


def test_retry_after_is_obeyed_until_the_deadline(clock: Clock) -> None:
    attempts = Attempts(Retry(deadline=60.0))
    assert attempts.pause_after(failed(429, 50.0)) == 50.0
    clock.now += 50
    assert attempts.pause_after(failed(503, 10.0)) == 10.0
    with pytest.raises(Unavailable):
        attempts.pause_after(failed(503, 10.1))
    attempts.succeeded()
    assert attempts.pause_after(failed(503, 60.0)) == 60.0


def test_a_limit_on_retries_also_limits_the_time(clock: Clock) -> None:
    """Pauses grow even if the server repeatedly specifies the same short Retry-After."""
    attempts = Attempts(Retry(deadline=600.0, first=1.0, most=8.0, tries=5, connects=2))
    unreachable = ConnectionLost("refused", was_sent=False)
    for longest_s in (1.0, 2.0):
        assert longest_s / 2 <= attempts.pause_after(unreachable) <= longest_s
    for longest_s in (4.0, 8.0, 8.0):
        assert max(longest_s / 2, 3.0) <= attempts.pause_after(failed(429, 3.0)) <= longest_s
    with pytest.raises(Throttled):
        attempts.pause_after(failed(429, 3.0))
    attempts.succeeded()
    assert [attempts.pause_after(unreachable) > 0 for _ in range(2)] == [True, True]
    with pytest.raises(ConnectionLost):
        attempts.pause_after(unreachable)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
def test_permanent_errors_are_not_retried(status: int, clock: Clock) -> None:
    with pytest.raises(TopicsError):
        Attempts(Retry()).pause_after(failed(status))


def test_an_append_without_a_key_is_not_resent_if_it_may_have_arrived(clock: Clock) -> None:
    lost = ConnectionLost("reset")
    with pytest.raises(ConnectionLost):
        Attempts(Retry()).pause_after(lost, is_repeatable=False)
    assert Attempts(Retry()).pause_after(lost) > 0
    refused = ConnectionLost("refused", was_sent=False)
    assert Attempts(Retry()).pause_after(refused, is_repeatable=False) > 0
    assert Attempts(Retry()).pause_after(failed(503), is_repeatable=False) > 0
    assert not calls.append("t", {}, None).is_repeatable
    assert calls.append("t", {}, "k").body == {"idempotency_key": "k"}
    keys = {calls.append("t", {}).body["idempotency_key"] for _ in range(9)}
    assert len(keys) == 9


def test_the_error_for_an_unknown_option_suggests_the_nearest_name() -> None:
    with pytest.raises(TypeError, match="no option 'durabilty'; did you mean 'durability'"):
        calls.put_topic("t", {"durabilty": "fsync"})
    with pytest.raises(TypeError, match="no option 'garantee'; did you mean 'guarantee'"):
        calls.put_router("r", "a", "b", {"garantee": "exactly_once"})


def test_names_are_quoted_in_paths() -> None:
    assert calls.get_router("a->b:c").path == "/v0/routers/a-%3Eb:c"
    assert calls.drop_topic("a/b").path == "/v0/topics/a%2Fb"


def page(*seqs: int, head: int = 9, caught_up: bool = False, **fields: object) -> bytes:
    body = {
        "topic": "t",
        "records": [{"$seq": seq, "$ts": seq, "data": seq} for seq in seqs],
        "next_from_seq": seqs[-1] if seqs else 0,
        "head_seq": head,
        "earliest_seq": 1,
        "epoch": 5,
        "caught_up": caught_up,
        **fields,
    }
    return msgspec.json.encode(body)


def taken(reading: calls.Reading, answer: bytes) -> list[values.Event]:
    return reading.take(reading.call().result(200, {}, answer))


def test_a_read_continues_after_each_page_and_stops_at_its_limit() -> None:
    reading = calls.Reading("t", 3, 3, "me", follow=False)
    assert reading.call().body["from_seq"] == 3
    assert reading.call().body["limit"] == 3
    assert "epoch" not in reading.call().body
    assert [event.seq for event in taken(reading, page(4, 5)) if isinstance(event, values.Record)]
    body = reading.call().body
    assert (body["from_seq"], body["limit"], body["epoch"], body["node"]) == (5, 1, 5, "me")
    assert not reading.is_done
    taken(reading, page(6))
    assert reading.is_done


def test_a_gap_is_returned_before_the_records_after_it() -> None:
    gap: dict[str, Any] = {"gap_from": 1, "gap_to": 3, "reason": "cap", "missed_estimate": 3}
    tombstone = {**gap, "earliest_seq": 4, "head_seq": 9}
    reading = calls.Reading("t", 0, None, None, follow=False)
    events = taken(reading, page(4, 9, caught_up=True, tombstone=tombstone))
    assert events[0] == values.Tombstone(topic="t", **tombstone)
    assert [type(event) for event in events[1:]] == [values.Record, values.Record]
    assert reading.is_done


def test_a_following_reader_waits_at_the_end_and_reports_once_that_it_has_caught_up() -> None:
    reading = calls.Reading("t", 0, None, None, follow=True)
    assert reading.call().wait_s == 0
    events = taken(reading, page(9, caught_up=True))
    assert events[-1] == values.CaughtUp(topic="t", head_seq=9)
    assert reading.call().wait_s == calls.WAIT_S
    assert taken(reading, page(caught_up=True, next_from_seq=9)) == []
    assert len(taken(reading, page(10, head=10, caught_up=True))) == 2
    assert not reading.is_done


@pytest.mark.parametrize("raw", [b"1E400", b'{"a":1.10,"a":2}', b"123456789012345678901"])
def test_numbers_beyond_a_double_are_read_and_keep_their_bytes(raw: bytes) -> None:
    body = page(caught_up=True).replace(b"[]", b'[{"$seq":1,"$ts":1,"data":%b}]' % raw)
    (record,) = calls.diff("t", 0).result(200, {}, body).records
    assert bytes(record.raw_data) == raw
    assert record.data == json.loads(raw)
    assert record.meta is None
    assert record.topic == "t"


def test_a_redrive_with_a_limit_is_not_resent_if_it_may_have_been_executed() -> None:
    assert calls.redrive("q.dead").is_repeatable
    assert not calls.redrive("q.dead", limit=5).is_repeatable

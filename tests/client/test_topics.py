"""The client for threads against a server: topics, watches and cursors."""

from __future__ import annotations

import copy
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice, takewhile
from pathlib import Path

import msgspec
import pytest

from tests.client.conftest import url_of
from tests.support.server import Server
from topics.client import (
    TAIL,
    CaughtUp,
    ClientClosed,
    Conflict,
    ConnectionLost,
    Event,
    Invalid,
    NotFound,
    Record,
    Refused,
    Retry,
    Tombstone,
    TopicDeleted,
    Topics,
    TopicsError,
    calls,
)

ONCE = Retry(deadline=0.0)


def data(events: Iterator[Event] | list[Event]) -> list[object]:
    return [event.data for event in events if isinstance(event, Record)]


def until_caught_up(events: Iterator[Event], times: int = 1) -> list[Event]:
    received: list[Event] = []
    while times:
        received += takewhile(lambda event: not isinstance(event, CaughtUp), events)
        times -= 1
    return received


def test_appended_records_are_read(client: Topics, name: str) -> None:
    topic = client.topic(name)
    assert topic.put(durability="fsync", ttl_ms=10**9).config["durability"] == "fsync"
    receipt = topic.append({"a": 1.5}, None, node="me")
    assert (receipt.first_seq, receipt.last_seq, receipt.created) == (1, 2, False)
    topic.append(records=[{"data": "x", "tag": "t", "meta": {"m": [1]}}])
    first, second, third = (event for event in topic.read() if isinstance(event, Record))
    assert (first.data, first.node, first.topic, first.tag) == ({"a": 1.5}, "me", name, None)
    assert second.data is None
    assert (third.data, third.tag, third.meta) == ("x", "t", {"m": [1]})
    assert data(topic.read(1, limit=1)) == [None]
    assert topic.state().head_seq == 3
    assert name in [info.name for info in client.topics(name)]
    assert topic.delete(tag="t*").deleted == 1
    assert topic.delete(before=2).count == 1
    assert topic.drop()
    assert not topic.drop()


def test_all_attempts_of_an_append_use_the_same_key(client: Topics, name: str) -> None:
    topic = client.topic(name)
    assert not topic.append(1, key="k").deduped
    assert topic.append(1, key="k").deduped
    topic.append(1)
    topic.append(1)
    assert topic.state().head_seq == 3


def test_a_reader_does_not_receive_the_records_of_its_own_node(url: str, name: str) -> None:
    with Topics(url, node="me") as me, Topics(url, node="you") as you:
        me.topic(name).append("mine")
        you.topic(name).append("yours")
        assert data(me.topic(name).read()) == ["yours"]
        assert data(until_caught_up(iter(you.watch(name)))) == ["mine"]


def test_metrics_are_available_as_json(client: Topics) -> None:
    assert client.call(calls.metrics())["topics_ready"] == 1


def test_one_read_returns_all_pages_and_gaps(client: Topics, name: str) -> None:
    topic = client.topic(name)
    topic.put(cap_records=1500)
    topic.append(*range(2000))
    gap, *records = topic.read()
    assert isinstance(gap, Tombstone)
    assert (gap.gap_from, gap.gap_to) == (1, 500)
    assert data(records) == [*range(500, 2000)]


def test_a_following_reader_receives_the_end_marker_and_later_records(
    client: Topics, name: str
) -> None:
    topic = client.topic(name)
    topic.append(1)
    events = topic.read(follow=True, limit=2)
    assert data([next(events)]) == [1]
    assert next(events) == CaughtUp(topic=name, head_seq=1)
    topic.append(2)
    assert data(events) == [2]


def test_since_finds_the_seq_before_a_time(client: Topics, name: str) -> None:
    topic = client.topic(name)
    times = []
    for number in range(12):
        times.append(datetime.now(UTC))
        topic.append(number)
        time.sleep(0.003)
    topic.delete(before=4)
    for number in (5, 8, 11):
        assert topic.since(times[number]) == number
    assert topic.since(0) == 3
    assert topic.since(time.time() + 60) == 12


def test_each_refusal_raises_its_own_exception_class(
    client: Topics, name: str, tmp_path: Path
) -> None:
    with pytest.raises(NotFound) as missing:
        client.topic(name).state()
    assert (missing.value.code, missing.value.status) == ("topic_not_found", 404)
    assert missing.value.request_id
    client.topic(name).put(cap_records=1, discard="reject")
    client.topic(name).append(1)
    with pytest.raises(Conflict):
        client.topic(name).append(2)
    with pytest.raises(Invalid):
        client.topic("no name").put()
    with pytest.raises(Conflict):
        client.queue(name).claim("me")
    with Server(tmp_path / "data", api_keys="k") as server:
        for key in (None, "wrong"):
            with Topics(url_of(server), key=key) as other, pytest.raises(Refused):
                next(other.topics())
        with Topics(url_of(server), key="k") as other:
            assert [*other.topics()] == []


def test_an_unreachable_server_is_reported_at_the_deadline() -> None:
    pauses = []
    with Topics(
        "http://127.0.0.1:1",
        retry=Retry(deadline=0.3),
        on_pause=lambda failure, pause_s: pauses.append((failure, pause_s)),
    ) as unreachable:
        with pytest.raises(ConnectionLost, match=r"http://127\.0\.0\.1:1"):
            unreachable.topic("t").append(1)
        with pytest.raises(ConnectionLost):
            next(iter(unreachable.watch("t")))
    assert pauses


def test_routers_are_created_listed_and_deleted(client: Topics, name: str) -> None:
    router = client.put_router(f"{name}>r", name, f"{name}.copy", guarantee="exactly_once")
    assert (router.source, router.guarantee, router.preserve_tag) == (name, "exactly_once", True)
    assert [found.name for found in client.routers(source=name)] == [f"{name}>r"]
    assert client.router(f"{name}>r").lag_records == 0
    assert client.drop_router(f"{name}>r")
    assert [*client.routers(source=name)] == []


def test_a_list_of_many_pages_is_returned_as_one(
    client: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.client.calls.PAGE", 2)
    names = [f"{name}.{number}" for number in range(5)]
    for each in names:
        client.topic(each).put()
    assert [info.name for info in client.topics(f"{name}.")] == names


def test_a_watch_returns_existing_and_later_records(client: Topics, name: str) -> None:
    left, right = client.topic(f"{name}.l"), client.topic(f"{name}.r")
    left.append(1, 2)
    right.append(3, 4)
    with client.watch(left.name, (right.name, TAIL)) as watch:
        assert data(until_caught_up(iter(watch), 2)) == [1, 2]
        right.append(5)
        assert data([next(watch)]) == [5]
        right.drop()
        deletion = next(watch)
        assert isinstance(deletion, TopicDeleted)
        assert (deletion.topic, deletion.head_seq) == (right.name, 3)
        left.append(6)
        assert data([next(watch)]) == [6]
        left.drop()
        *_, deletion = watch  # the watch ends with its last topic
        assert isinstance(deletion, TopicDeleted)
    left.append(1, 2, 6)
    with pytest.raises(NotFound):
        next(iter(client.watch(right.name)))
    with client.watch((left.name, 2)) as watch:
        assert data([next(watch)]) == [6]


def fail_at_4(client: Topics, name: str, place: str) -> None:
    with client.cursor(place) as cursor:
        for event in client.watch(name, cursor=cursor):
            assert isinstance(event, Record)
            if event.data == 4:
                raise RuntimeError


def test_a_cursor_resumes_where_the_last_loop_ended(client: Topics, name: str) -> None:
    topic, place = client.topic(name), f"{name}.place"
    topic.append(*range(6))
    with client.cursor(place) as cursor:
        assert data([*islice(client.watch(name, cursor=cursor), 2)]) == [0, 1]
    with pytest.raises(RuntimeError):
        fail_at_4(client, name, place)
    with client.cursor(place) as cursor:
        assert data(until_caught_up(iter(client.watch(name, cursor=cursor)))) == [4, 5]
    state = client.topic(f"cursor:{place}").state()
    assert (state.count, state.config["durability"]) == (1, "fsync")
    topic.drop()
    topic.append("new")
    with client.cursor(place) as cursor:
        tombstone, record = islice(client.watch(name, cursor=cursor), 2)
        assert isinstance(tombstone, Tombstone)
        assert tombstone.reason == "recreated"
        assert data([record]) == ["new"]


def fail_at_2(client: Topics, name: str, failure: type[BaseException]) -> None:
    with client.cursor(name) as cursor:
        for event in client.watch(name, cursor=cursor):
            if isinstance(event, Record) and event.data == 2:
                raise failure


@pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit, ValueError])
def test_a_record_whose_handling_raised_is_read_again_by_the_next_run(
    client: Topics, name: str, failure: type[BaseException]
) -> None:
    client.topic(name).append(1, 2, 3)
    with pytest.raises(failure):
        fail_at_2(client, name, failure)
    with client.cursor(name) as cursor:
        assert data([next(client.watch(name, cursor=cursor))]) == [2]


def test_a_cursor_is_saved_while_the_loop_waits_for_an_event(
    client: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.client.sync.watcher.SAVE_INTERVAL_S", 0.01)
    client.topic(name).append(1)
    with client.cursor(name) as cursor, client.watch(name, cursor=cursor) as watch:
        loop = threading.Thread(target=lambda: [*watch])
        loop.start()
        saved = client.topic(f"cursor:{name}").read(follow=True, limit=1)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with suppress(NotFound):
                assert data(saved) == [{name: [1, client.topic(name).state().epoch]}]
                break
            saved = client.topic(f"cursor:{name}").read(follow=True, limit=1)
        watch.close()
        loop.join(30)
        assert not loop.is_alive()


@pytest.mark.parametrize("scopes", ["r+w", "r+w:jobs|cursor:jobs", ""])
def test_a_key_that_can_read_and_write_may_use_cursors(tmp_path: Path, scopes: str) -> None:
    with Server(tmp_path / "data", api_keys=f"admin,k:{scopes}") as server:
        with Topics(url_of(server), key="admin") as admin:
            admin.topic("jobs").append(*range(5))
        with Topics(url_of(server), key="k") as client:
            for first in range(0, 3, 2):
                with client.cursor("jobs") as cursor:
                    events = client.watch("jobs", cursor=cursor)
                    assert data([*islice(events, 2)]) == [first, first + 1]
        with Topics(url_of(server), key="admin") as admin:
            state = admin.topic("cursor:jobs").state()
            assert state.count == (1 if scopes == "" else 2)


def test_a_cursor_with_many_saves_starts_at_the_last(client: Topics, name: str) -> None:
    client.topic(name).append(*range(9))
    epoch = client.topic(name).state().epoch
    place = client.topic(f"cursor:{name}")
    place.append(*({name: [number % 8, epoch]} for number in range(2000)))
    place.append({name: [8, epoch]})
    with client.cursor(name) as cursor:
        assert data([next(client.watch(name, cursor=cursor))]) == [8]


def test_a_watch_may_be_closed_by_another_thread(client: Topics, name: str) -> None:
    client.topic(name).append(1)
    watch, seen = client.watch(name), list[Event]()
    loop = threading.Thread(target=lambda: seen.extend(watch))
    loop.start()
    while not seen and loop.is_alive():
        time.sleep(0.01)
    watch.close()
    loop.join(5)
    assert not loop.is_alive()
    assert data(seen) == [1]
    assert watch.next() is None


def test_closing_the_client_ends_a_watch_that_waits_for_its_server() -> None:
    paused = threading.Event()
    client = Topics("http://127.0.0.1:1", on_pause=lambda *_: paused.set())
    watch, seen = client.watch("t"), list[Event]()
    loop = threading.Thread(target=lambda: seen.extend(watch))
    loop.start()
    assert paused.wait(30)
    client.close()
    loop.join(5)
    assert not loop.is_alive()
    assert seen == []


def test_closing_the_client_ends_its_calls_at_any_moment(url: str, name: str) -> None:
    """The calls raise `ClientClosed`, and watches end."""
    with Topics(url) as client:
        client.topic(name).append(1)
        client.queue(f"{name}.q").put()

    def repeated(call: Callable[[], object]) -> None:
        while True:
            call()

    def actors_of(client: Topics) -> list[Callable[[], object]]:
        return [
            lambda: [*client.watch(name)],
            lambda: [*client.topic(name).read(follow=True)],
            lambda: repeated(lambda: client.queue(f"{name}.q").claim("n", wait=20)),
            lambda: repeated(lambda: client.topic(name).append(2)),
        ]

    for number in range(20):
        for address in (url, "http://127.0.0.1:1"):  # no server runs at the second one
            client = Topics(address, on_pause=lambda *_: None)
            with ThreadPoolExecutor() as threads:
                running = [threads.submit(actor) for actor in actors_of(client)]
                time.sleep(0.002 * number)
                client.close()
                failures = [each.exception(30) for each in running]
            assert [type(each) for each in failures[1:]] == [ClientClosed] * 3
            # The first thread may not have begun its watch.
            assert failures[0] is None or isinstance(failures[0], ClientClosed)


def test_closing_the_client_ends_a_tls_handshake_that_does_not_progress() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the kernel accepts the connection
        client = Topics(f"https://127.0.0.1:{listener.getsockname()[1]}")
        with ThreadPoolExecutor() as threads:
            call = threads.submit(client.topic("t").append, 1)
            peer, _ = listener.accept()
            with peer:
                assert peer.recv(1)  # the handshake has begun
                client.close()
                assert isinstance(call.exception(5), ClientClosed)


def test_a_closed_client_sends_nothing(url: str, name: str) -> None:
    client = Topics(url)
    client.topic(name).append(1)
    watch, queue = client.watch(name), client.queue(name)
    worker = queue.worker()
    client.close()
    assert [*watch] == []
    for call in (
        lambda: client.topic(name).append(2),
        lambda: client.watch(name),
        lambda: client.publisher(),
        lambda: client.topic(name).producer(),
        lambda: queue.worker(),
        lambda: worker.run(print),
    ):
        with pytest.raises(ClientClosed):
            call()
    with Topics(url) as other:
        assert other.topic(name).state().count == 1


def test_next_raises_after_its_timeout_and_loses_nothing(client: Topics, name: str) -> None:
    topic = client.topic(name)
    topic.append(1)
    with client.watch(name) as watch:
        first = watch.next(timeout=30)
        assert data([first] if first else []) == [1]
        assert isinstance(watch.next(timeout=30), CaughtUp)
        with pytest.raises(TimeoutError):
            watch.next(timeout=0.05)
        topic.append(2)
        events = [watch.next(timeout=30), watch.next(timeout=30)]
        assert data([event for event in events if event is not None]) == [2]


def test_the_error_for_an_unknown_option_suggests_the_nearest_one(
    client: Topics, name: str
) -> None:
    topic, options = client.topic(name), {"delay_ms": 5}
    with pytest.raises(TypeError, match="did you mean 'delay'"):
        topic.append(1, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'ttl_ms'"):
        topic.put(ttl=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="did you mean 'guarantee'"):
        client.put_router("r", name, "x", guaranty="exactly_once")  # type: ignore[call-arg]
    with topic.producer() as producer, pytest.raises(TypeError, match="did you mean 'tag'"):
        producer.send(1, tags="a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tag: valid only with payloads"):
        topic.append(records=[{"data": 1}], tag="t")
    with pytest.raises(NotFound):
        topic.state()


def test_the_options_of_an_append_are_sent(client: Topics, name: str) -> None:
    queue = client.queue(name)
    queue.put()
    queue.append(1, 2, tag="t", meta={"a": 1}, node="n", delay=60.0)
    queue.append(3, deliver_at=time.time() + 60)
    records = [event for event in queue.read() if isinstance(event, Record)]
    assert [(each.tag, each.meta, each.node) for each in records] == [
        *[("t", {"a": 1}, "n")] * 2,
        (None, None, None),
    ]
    state = queue.state().queue
    assert state is not None
    assert (state.ready, state.delayed) == (0, 3)
    client.topic(f"{name}.made").append(1, config={"cap_records": 7}, create=True)
    assert client.topic(f"{name}.made").state().config["cap_records"] == 7
    with pytest.raises(NotFound):
        client.topic(f"{name}.not").append(1, create=False)


@pytest.mark.parametrize("value", [float("nan"), [{"a": float("-inf")}]])
def test_a_number_without_a_json_form_is_refused(client: Topics, name: str, value: object) -> None:
    with pytest.raises(ValueError, match="is not a JSON number"):
        client.topic(name).append(value)
    with (
        client.topic(name).producer() as producer,
        pytest.raises(ValueError, match="is not a JSON number"),
    ):
        producer.send(None, meta={"a": value})


def test_limits_and_keys_are_checked(client: Topics, name: str) -> None:
    topic = client.topic(name)
    topic.append(1)
    assert [*topic.read(limit=0)] == []
    with pytest.raises(ValueError, match="negative"):
        next(topic.read(limit=-1))
    with pytest.raises(ValueError, match="at least one character"):
        topic.append(1, key="")
    (record,) = topic.read()
    assert {record, copy.copy(record)} == {record}


def test_each_failed_attempt_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "topics.client")
    with (
        Topics("http://127.0.0.1:1", retry=Retry(deadline=0.3)) as client,
        pytest.raises(ConnectionLost),
    ):
        client.topic("t").append(1)
    assert caplog.messages
    assert all(message.startswith("request failed, retry in ") for message in caplog.messages)


# forks in a process with threads
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_opens_its_own_connections(client: Topics, name: str) -> None:
    """20 children and their parent read different topics at the same time."""
    for number in range(21):
        client.topic(f"{name}.{number}").append(number)
    client.topic(name).append(1, 2)
    children, watch = [], client.watch(name)
    assert data([next(watch)]) == [1]
    for number in range(1, 21):
        if (pid := os.fork()) == 0:
            status = 1
            with suppress(BaseException):
                mine = client.topic(f"{name}.{number}")
                found = [data(mine.read()) for _ in range(10)]
                found += [data([next(client.watch(mine.name))]), data([next(watch)])]
                status = int(found != [[number]] * 11 + [[2]])
            os._exit(status)
        children.append(pid)
    for _ in range(50):
        assert data(client.topic(f"{name}.0").read()) == [0]
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 20
    assert data([next(watch)]) == [2]


def test_a_stream_without_heartbeats_is_treated_as_ended(
    client: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may keep a connection open whose other end is closed."""
    monkeypatch.setattr(
        "topics.client.http.HEARTBEAT_S", 0.1
    )  # the interval of the server is longer
    client.topic(name).append(1)
    pauses: list[TopicsError] = []
    monkeypatch.setattr(client, "report_pause", lambda failure, _pause_s: pauses.append(failure))
    with client.watch(name) as watch:
        assert data(until_caught_up(iter(watch))) == [1]
        seen: list[Event] = []
        while len(pauses) < 2:
            seen.append(next(watch))
        assert data(seen) == []
    assert all(isinstance(failure, ConnectionLost) for failure in pauses)


def test_a_record_is_serialized_with_the_field_names_of_the_api(client: Topics, name: str) -> None:
    client.topic(name).append(records=[{"data": None}, {"data": 1, "tag": "t", "meta": {"a": 1}}])
    first, second = map(written, client.topic(name).read())
    assert first.keys() == {"topic", "$seq", "$ts", "data"}
    assert second.keys() == {"topic", "$seq", "$ts", "$tag", "data", "meta"}


def written(event: Event) -> dict[str, object]:
    return msgspec.json.decode(msgspec.json.encode(event), type=dict[str, object])

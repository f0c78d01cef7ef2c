"""The commands ``cursor ls``, ``cursor set`` and ``cursor rm``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.cli.conftest import Run
from topics.client import Record, Topics


def test_a_reader_continues_where_its_cursor_is_set(topics: Run, client: Topics, name: str) -> None:
    client.topic(name).append(*range(5))
    done = topics("cursor", "set", name, name, "3")
    assert done == (0, "", f"topics: cursor {name} is at 3 in {name}\n")
    with client.cursor(name) as cursor, client.watch(name, cursor=cursor) as watch:
        event = next(watch)
    assert isinstance(event, Record)
    assert event.seq == 4
    (shown,) = topics("cursor", "set", name, name, "0", "--json").objects
    assert (shown["cursor"], shown["topic"], shown["seq"]) == (name, name, 0)
    beyond = topics("cursor", "set", name, name, "6")
    assert (beyond.code, beyond.out) == (2, "")
    assert f"{name} ends at 5" in beyond.err
    assert topics("cursor", "set", name, name, "-1").code == 2


def test_a_cursor_is_set_to_the_start_the_end_and_a_time(
    topics: Run, client: Topics, name: str
) -> None:
    client.topic(name).append(*range(5))
    client.topic(name).delete(before=3)
    first = next(client.topic(name).read())
    assert isinstance(first, Record)
    tomorrow = datetime.now().astimezone() + timedelta(days=1)
    for to, seq in (
        ("start", 2),
        ("end", 5),
        ("1h", 2),
        (datetime.fromtimestamp(first.ts / 1000, UTC).isoformat(), 2),
        (tomorrow.isoformat(), 5),
    ):
        (shown,) = topics("cursor", "set", name, name, "--to", to, "--json").objects
        assert shown["seq"] == seq
    for arguments in ([], ["1", "--to", "end"], ["--to", "never"]):
        assert topics("cursor", "set", name, name, *arguments).code == 2


def test_cursors_are_listed_with_their_lag_and_removed(
    topics: Run, client: Topics, name: str
) -> None:
    for topic in (f"{name}.a", f"{name}.b", f"{name}.c"):
        client.topic(topic).append(*range(5))
        topics("cursor", "set", name, topic, "2")
    client.topic(f"{name}.b").drop()
    client.topic(f"{name}.c").drop()
    client.topic(f"{name}.c").append(1)
    client.topic(f"{name}.a").delete(before=4)
    client.topic(f"cursor:{name}-odd").append("no cursor")
    listed = topics("cursor", "ls", name)
    titles, *rows = (line.split()[:4] for line in listed.out.splitlines())
    assert titles == ["CURSOR", "TOPIC", "AT", "LAG"]
    assert sorted(rows) == [
        [name, f"{name}.a", "2", "2"],
        [name, f"{name}.b", "2", "removed"],
        [name, f"{name}.c", "2", "recreated"],
    ]
    assert listed.err == f"topics: topic cursor:{name}-odd is not a cursor\n"
    shown = topics("cursor", "ls", f"{name}", "--json").objects
    assert sorted(str(each["lag"]) for each in shown) == ["2", "recreated", "removed"]
    assert topics("cursor", "rm", name, "nope").code == 4
    assert topics("cursor", "rm", name) == (0, "", f"topics: removed cursor {name}\n")
    assert topics("cursor", "ls", name).out == ""
    assert topics("cursor", "rm", name).code == 4

"""The commands read and tail: formats of records and tombstones, first and last record."""

from __future__ import annotations

import json
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cli.conftest import Run, started
from tests.client.conftest import url_of
from tests.support.program import Program
from tests.support.server import Server
from topics.client import Topics

LATER = (datetime.now().astimezone() + timedelta(days=1)).isoformat()


@pytest.fixture
def filled(client: Topics, name: str) -> str:
    """A topic with five records, tagged eu:1, us:2, eu:3, us:4, eu:5."""
    records = [
        {"data": {"n": number}, "tag": f"{'eu' if number % 2 else 'us'}:{number}"}
        for number in range(1, 6)
    ]
    client.topic(name).append(records=records)
    return name


@pytest.fixture
def capped(client: Topics, name: str) -> str:
    """A topic that has lost #1 to #3."""
    client.topic(f"{name}-capped").put(cap_records=2)
    client.topic(f"{name}-capped").append(1, 2, 3, 4, 5)
    return f"{name}-capped"


def seqs(found: list[Any]) -> list[int]:
    return [each["$seq"] for each in found]


def test_json_output_has_the_field_names_of_the_api(
    topics: Run, client: Topics, filled: str
) -> None:
    client.topic(filled).append(records=[{"data": None, "meta": {"a": 1}, "node": "n"}])
    found = topics("read", filled).objects
    assert seqs(found) == [1, 2, 3, 4, 5, 6]
    ts = found[0].pop("$ts")
    assert found[0] == {"topic": filled, "$seq": 1, "$tag": "eu:1", "data": {"n": 1}}
    assert abs(ts / 1000 - time.time()) < 60
    assert found[5].keys() == {"topic", "$seq", "$ts", "$node", "data", "meta"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--from", "3"), [3, 4, 5]),
        (("--from", "0", "-n", "2"), [1, 2]),
        (("--from", "9"), []),
        (("--from", "-2"), [4, 5]),
        (("--from", "-99"), [1, 2, 3, 4, 5]),
        (("--since", "1h"), [1, 2, 3, 4, 5]),
        (("--since", LATER), []),
        (("--where", "tag=eu:*"), [1, 3, 5]),
        (("--where", "tag=eu:*", "--where", "tag=us:2", "-n", "3"), [1, 2, 3]),
    ],
)
def test_a_read_starts_and_ends_at_the_given_positions(
    topics: Run, filled: str, options: tuple[str, ...], expected: list[int]
) -> None:
    done = topics("read", filled, *options)
    assert (done.code, seqs(done.objects)) == (0, expected)
    assert ("no matching records" in done.err) == (expected == [])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--reverse",), [5, 4, 3, 2, 1]),
        (("--reverse", "-n", "2"), [5, 4]),
        (("--reverse", "--from", "-2"), [5, 4]),
        (("--reverse", "--from", "4"), [5, 4]),
        (("--reverse", "--where", "tag=us:*", "-n", "1"), [4]),
        (("--until", "1h"), []),
        (("--until", LATER), [1, 2, 3, 4, 5]),
        (("--until", LATER, "--from", "-2"), [4, 5]),
        (("--since", "1h", "--until", LATER, "--reverse"), [5, 4, 3, 2, 1]),
    ],
)
def test_a_read_ends_before_a_time_and_may_be_reversed(
    topics: Run, filled: str, options: tuple[str, ...], expected: list[int]
) -> None:
    done = topics("read", filled, *options)
    assert (done.code, seqs(done.objects)) == (0, expected)


def test_until_is_the_time_of_a_record(topics: Run, client: Topics, name: str) -> None:
    client.topic(name).append("before")
    ts = topics("read", name).objects[0]["$ts"]
    while client.topic(name).append("after").last_seq:
        last = topics("read", name, "--from", "-1").objects[0]
        if last["$ts"] > ts:
            break
    until = datetime.fromtimestamp(last["$ts"] / 1000, UTC).isoformat()
    assert max(seqs(topics("read", name, "--until", until).objects)) == last["$seq"] - 1


def test_a_reverse_read_returns_the_records_and_gaps_of_a_forward_read(
    topics: Run, client: Topics, name: str
) -> None:
    topic = client.topic(name)
    topic.put(cap_records=40_000)
    for _ in range(5):
        topic.append(records=[{"data": None, "tag": "x"}] * 10_000)
    topic.append(records=[{"data": None, "tag": "keep"}] * 3)
    for first in (12_000, 30_000):
        topic.append(first)
    topic.delete(tag="x")
    topic.append(records=[{"data": None}] * 2500)
    forwards = topics("read", name).objects
    backwards = topics("read", name, "--reverse").objects
    assert [each for each in backwards if "$seq" in each] == [
        each for each in reversed(forwards) if "$seq" in each
    ]
    assert [each for each in backwards if "$seq" not in each] == [
        each for each in forwards if "$seq" not in each
    ]
    assert len(backwards) > 2500


def test_the_last_records_are_counted_without_deleted_ones(
    topics: Run, client: Topics, filled: str
) -> None:
    client.topic(filled).delete(tag="us:4")
    assert seqs(topics("read", filled, "--from", "-2").objects) == [3, 5]


def test_a_reverse_read_reports_a_gap_after_the_records_above_it(topics: Run, capped: str) -> None:
    *rest, lost = topics("read", capped, "--reverse").objects
    assert seqs(rest) == [5, 4]
    assert (lost["tombstone"]["gap_from"], lost["tombstone"]["gap_to"]) == (1, 3)
    assert len(topics("read", capped, "--reverse", "--from", "4").objects) == 2
    assert topics("read", capped, "--reverse", "-n", "2", "--fail-on-loss").code == 0
    assert topics("read", capped, "--reverse", "--fail-on-loss").code == 1


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("data", '{"n":5}\n'),
        ("%s %d\\n", '5 {"n":5}\n'),
        ("%t|%g|%n|%m|%%\\t", "NAME|eu:5||null|%\t\n"),
    ],
)
def test_each_format_has_its_documented_output(
    topics: Run, filled: str, form: str, expected: str
) -> None:
    done = topics("read", filled, "--from", "-1", "--format", form)
    assert done.out == expected.replace("NAME", filled)


def test_a_format_may_contain_the_time_in_iso_8601(topics: Run, filled: str) -> None:
    shown, ts = topics("read", filled, "-n", "1", "--format", "%I %T").out.split()
    assert shown.endswith("Z")
    assert round(datetime.fromisoformat(shown).timestamp() * 1000) == int(ts)


def test_data_with_line_breaks_is_printed_in_one_line(topics: Run, url: str, name: str) -> None:
    body = b'{"records": [{"data": {"a":\n 1.10,\r\n"b": 2}}]}'
    httpx2.post(
        f"{url}/v0/topics/{name}", content=body, headers={"Content-Type": "application/json"}
    )
    assert '"data":{"a":  1.10,' in topics("read", name).out
    for form in ("json", "data", "%d"):
        assert len(topics("read", name, "--format", form).out.splitlines()) == 1


def test_a_gap_is_printed_at_its_position(topics: Run, capped: str, filled: str) -> None:
    lost, *rest = topics("read", capped).objects
    assert lost["tombstone"]["gap_from"] == 1
    assert (lost["tombstone"]["gap_to"], lost["tombstone"]["reason"]) == (3, "cap")
    assert seqs(rest) == [4, 5]
    assert topics("read", capped, "--format", "data").out == "-- lost #1 to #3 (cap) --\n4\n5\n"
    both = topics("read", capped, filled, "--format", "%t")
    assert both.out.startswith(f"-- {capped}: lost #1 to #3 (cap) --\n{capped}\n")
    failed = topics("read", capped, "--fail-on-loss", "--json")
    assert (failed.code, len(failed.objects), failed.error["code"]) == (1, 1, "records_lost")
    # Only the last records were requested.
    assert topics("read", capped, "--from", "-5", "--fail-on-loss").code == 0


def test_a_glob_matches_topics_but_no_cursors(topics: Run, client: Topics, filled: str) -> None:
    client.topic(f"cursor:{filled}").append(1)
    client.topic(f"{filled}-b").append(2)
    assert [each["data"] for each in topics("read", f"{filled}*", "--from", "-1").objects] == [
        {"n": 5},
        2,
    ]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), 2),
        (("--from", "1", "--since", "1h"), 2),
        (("-f", "--until", "1h"), 2),
        (("-f", "--reverse"), 2),
        (("--until", "tomorrow"), 2),
        (("--since", "yesterday"), 2),
        (("--where", "eu"), 2),
        (("--format", "xml"), 2),
        (("--format", "%q"), 2),
        (("-n", "0"), 2),
        (("--url", "http://127.0.0.1:1", "x"), 6),
        (("not-there",), 4),
        (("not-there*",), 4),
    ],
)
def test_invalid_arguments_missing_topics_and_unreachable_servers_are_errors(
    topics: Run, filled: str, arguments: tuple[str, ...], code: int
) -> None:
    named = () if code != 2 or not arguments else (filled,)
    done = topics("read", *named, *arguments)
    assert (done.code, done.out) == (code, "")


def test_a_terminal_gets_lines_without_control_characters(
    topics: Run, client: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.topic(name).append(records=[{"data": "\x9b2J", "tag": "\x1b[2J"}])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    line = topics("read", name).out
    assert line.endswith('"\\x9b2J"\n')
    assert "\\x1b[2J" in line


@pytest.mark.parametrize(
    ("environ", "is_coloured"),
    [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_the_environment_decides_if_a_terminal_gets_colours(
    topics: Run,
    filled: str,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    is_coloured: bool,
) -> None:
    for variable in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert ("\x1b[" in topics("read", filled).out) is is_coloured


def next_of(process: Program) -> Any:
    """Return the next object that a command writes."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def messages_of(process: Program) -> str:
    """Return the messages of a command."""
    assert process.stderr is not None
    text: str = process.stderr.read()
    return text


def lines_of(*arguments: str) -> list[Any]:
    """Return all objects that a command writes until it exits."""
    with started(*arguments) as process:
        assert process.stdout is not None
        return [json.loads(line) for line in process.stdout]


def test_a_followed_read_with_a_count_ends_after_that_many_records(url: str, filled: str) -> None:
    assert seqs(lines_of("read", filled, "-f", "-n", "4")) == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_closed_output_pipe_ends_the_command_without_a_message(
    url: str, client: Topics, name: str
) -> None:
    client.topic(name).append(*("x" * 1000 for _ in range(1000)))
    for arguments in (("read", name), ("tail", name, "-n", "1000")):
        with started(*arguments) as process:
            assert next_of(process)["$seq"] == 1
            assert process.stdout is not None
            process.stdout.close()
            assert messages_of(process) == ""


@pytest.mark.slow
def test_tail_shows_the_last_records_and_then_new_ones_until_ctrl_c(
    url: str, client: Topics, filled: str
) -> None:
    client.topic(f"{filled}-b").append("old")
    with started("tail", f"{filled}*", "-n", "1") as process:
        assert {json.dumps(next_of(process)["data"]) for _ in range(2)} == {'{"n": 5}', '"old"'}
        client.topic(filled).append("live")
        assert next_of(process)["data"] == "live"
        client.topic(f"{filled}-b").drop()
        assert next_of(process)["topic_deleted"]["topic"] == f"{filled}-b"
        process.send_signal(signal.SIGINT)
        assert messages_of(process) == "topics: interrupted\n"
    assert process.returncode == 130


@pytest.mark.slow
def test_tail_ends_when_its_topic_is_deleted(url: str, client: Topics, filled: str) -> None:
    with started("tail", filled, "-n", "1", "--format", "data") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == '{"n":5}\n'
        client.topic(filled).drop()
        assert process.stdout.read() == "-- topic deleted --\n"
        assert messages_of(process) == "topics: all topics are deleted\n"
    assert process.returncode == 4


@pytest.mark.slow
def test_a_glob_includes_topics_that_are_created_later(url: str, client: Topics, name: str) -> None:
    with started("tail", f"{name}*") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"topics: no topic matches {name}* yet\n"
        for again in ("made", "made anew"):
            client.topic(name).append(again)
            found = next_of(process)
            assert (found["$seq"], found["data"]) == (1, again)
            client.topic(name).drop()
            assert "topic_deleted" in next_of(process)
        process.send_signal(signal.SIGINT)
        assert messages_of(process) == "topics: interrupted\n"
    assert process.returncode == 130


@pytest.mark.slow
def test_more_topics_than_one_stream_allows_can_be_followed(
    url: str, client: Topics, name: str
) -> None:
    for number in range(70):
        client.topic(f"{name}-{number}").append(number)
    found = lines_of("read", "-f", f"{name}-*", "-n", "70")
    assert {each["data"] for each in found} == {*range(70)}


@pytest.mark.slow
def test_restarts_only_cause_pauses(tmp_path: Path) -> None:
    """Each record is shown once and in order, although the server is stopped and killed."""
    with Server(tmp_path / "data", shards=2) as server:
        server.env["TOPICS_PORT"] = str(server.port)
        with Topics(url_of(server)) as client:
            for name in ("a", "b"):
                client.topic(name).put(durability="fsync")
            with started("--url", url_of(server), "read", "-f", "a", "b") as process:
                seen = []
                for number in range(8):
                    client.topic("ab"[number % 2]).append(number)
                    seen.append(next_of(process)["data"])
                    if number in (2, 5):
                        server.restart("kill" if number == 2 else "stop")
                process.send_signal(signal.SIGINT)
                messages = messages_of(process)
        assert seen == [*range(8)]
        assert messages.count("trying again") == messages.count("connected again") == 2

"""append: the records of a text, a file and a pipe, and a file that is appended only once."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, started
from tests.client.conftest import url_of
from tests.support.server import Server
from topics.cli import loading
from topics.cli.loading import Lines
from topics.cli.shell import Failed
from topics.client import Record, Topics

LINES = "".join(f'{{"number": {number}}}\n' for number in range(2500))


def rows(client: Topics, name: str) -> list[Any]:
    found = client.topic(name).read()
    return [(each.tag, each.data) for each in found if isinstance(each, Record)]


def values(client: Topics, name: str) -> list[Any]:
    return [data for _, data in rows(client, name)]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str | bytes], str]:
    def written(content: str | bytes) -> str:
        path = tmp_path / "input"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return written


def test_data_is_json_and_each_run_appends_it(topics: Run, client: Topics, name: str) -> None:
    for _ in range(2):
        done = topics("append", name, '{"sku": "A1"}', "2", "--tag", "eu")
        assert (done.code, done.out) == (0, "")
    assert rows(client, name) == 2 * [("eu", {"sku": "A1"}), ("eu", 2)]
    assert f"appended 2 records to {name} (#3 to #4)" in done.err


def test_the_error_for_text_that_is_not_json_explains_how_to_append_it(
    topics: Run, client: Topics, name: str
) -> None:
    done = topics("append", name, "hello world")
    assert done.code == 2
    assert "--as lines" in done.err
    assert topics("append", name, "hello world", "two\nlines", "--as", "lines").code == 0
    assert values(client, name) == ["hello world", "two\nlines"]


def test_json_output_contains_the_counts(topics: Run, name: str) -> None:
    done = topics("append", "--json", "-q", name, "1")
    result = {
        "topic": name,
        "appended": 1,
        "deduped": 0,
        "first_seq": 1,
        "last_seq": 1,
        "skipped": 0,
    }
    assert (done.objects, done.err) == ([result], "")


@pytest.mark.parametrize(
    ("options", "content", "expected"),
    [
        ((), '{"a": 1.10}\n\n  "x" \n[1]', [(None, {"a": 1.1}), (None, "x"), (None, [1])]),
        (
            ("--tag-field", "t"),
            '{"t":"x"}\n{"t":7}\n{}',
            [("x", {"t": "x"}), ("7", {"t": 7}), (None, {})],
        ),
        (("--as", "lines"), 'a\r\n\n{"b"', [(None, "a"), (None, ""), (None, '{"b"')]),
        (
            ("--as", "csv", "--tag-field", "b"),
            'a,b\n1,"x\ny"\n\n007,z',
            [("x\ny", {"a": "1", "b": "x\ny"}), ("z", {"a": "007", "b": "z"})],
        ),
        (
            ("--as", "csv", "--numbers", "--tag", "t"),
            "a,b\r\n1.5,007\r\n-1e3,NaN\r\n",
            [("t", {"a": 1.5, "b": "007"}), ("t", {"a": -1000, "b": "NaN"})],
        ),
    ],
    ids=["json", "tag field", "lines", "csv", "csv with numbers"],
)
def test_lines_are_parsed_by_the_given_format(
    topics: Run,
    client: Topics,
    name: str,
    file: Callable[[str], str],
    options: tuple[str, ...],
    content: str,
    expected: list[Any],
) -> None:
    assert topics("append", name, "-f", file(content), *options).code == 0
    assert topics("append", name, *options, given=content).code == 0
    assert rows(client, name) == 2 * expected


@pytest.mark.parametrize(
    ("options", "content", "place", "why"),
    [
        ((), b'1\n{"a":01}\n', "line 2", "invalid number"),
        ((), b"{\n}\n", "line 1", "jq -c ."),
        ((), b'1\n\n"\xff"\n', "line 3", "utf-8"),
        (("--as", "lines"), b"a\n\xff", "line 2", "utf-8"),
        (("--tag-field", "t"), b'{"t":1}\n[1]\n', "line 2", "an object whose t is"),
        (("--as", "csv"), b"a,b\n1,2\n3\n", "line 3", "1 fields"),
        (("--as", "csv"), b"a,a\n1,2\n", "line 1", "the same name"),
        (("--as", "csv", "--tag-field", "naem"), b"id,name\n1,2\n", "line 1", "name?"),
        ((), b'1\n"' + (1 << 20) * b"x" + b'"\n', "line 2", "above 1048576 bytes"),
    ],
    ids=["json", "pretty", "utf-8", "text", "tag", "csv", "twice", "unknown field", "too large"],
)
def test_the_error_for_an_invalid_line_contains_its_number(
    topics: Run,
    name: str,
    file: Callable[[bytes], str],
    options: tuple[str, ...],
    content: bytes,
    place: str,
    why: str,
) -> None:
    done = topics("append", name, "-f", file(content), *options)
    assert done.code == 2
    assert place in done.err.splitlines()[-1]
    assert why in done.err.splitlines()[-1]


@pytest.mark.slow
def test_a_file_is_appended_once(
    topics: Run, client: Topics, name: str, file: Callable[[str], str]
) -> None:
    path = file(LINES)
    first = topics("append", name, "-f", path)
    assert f"appended 2,500 records to {name} (#1 to #2,500)" in first.err
    again = topics("append", name, "-f", path)
    message = f"nothing was appended to {name}; 2,500 records appended before, --again appends them"
    assert message in again.err
    piped = topics("append", "--json", name, "-f", "-", given=LINES)
    assert [piped.objects[0][key] for key in ("appended", "deduped")] == [0, 2500]
    assert len(values(client, name)) == 2500
    assert client.topic(name).state().config["idempotency_window_ms"] == 7 * 86_400_000
    for option in (("--again",), ("--key-prefix", "second"), ("--tag", "other")):
        assert topics("append", "--json", name, "-f", path, *option).objects[0]["deduped"] == 0


def test_a_file_with_a_fixed_line_continues_after_the_appended_records(
    topics: Run, client: Topics, name: str, file: Callable[[str], str]
) -> None:
    done = topics("append", name, "-f", file(LINES.replace('{"number": 2100}', "oops")))
    assert done.code == 2
    stopped, why = done.err.splitlines()[-2:]
    assert re.search("appended 2,000 records .* run the command again", stopped)
    assert "line 2101" in why
    assert "2,000 records appended before" in topics("append", name, "-f", file(LINES)).err
    assert values(client, name) == [{"number": number} for number in range(2500)]


def test_the_error_for_an_invalid_line_in_a_file_reports_that_nothing_was_appended(
    topics: Run, client: Topics, name: str, file: Callable[[str], str]
) -> None:
    done = topics("append", name, "-f", file("1\noops\n"))
    stopped = f"topics: nothing was appended to {name}; stopped, run the command again"
    assert done.err.splitlines()[0].startswith(stopped)
    assert [*client.topics(name)] == []


def test_deleted_records_are_reported_as_appended_before(
    topics: Run, client: Topics, name: str, file: Callable[[str], str]
) -> None:
    path = file("1\n2\n")
    assert topics("append", name, "-f", path).code == 0
    client.topic(name).delete(before=3)
    again = topics("append", name, "-f", path)
    message = (
        f"nothing was appended to {name}; 2 records appended before, --again appends them again"
    )
    assert again.err == f"topics: {message}\n"
    assert "appended 2 records" in topics("append", name, "-f", path, "--again").err
    assert values(client, name) == [1, 2]


BAD = {
    "lines": (("--as", "lines"), b"a\nb\n\xff\nc\n", b"\xff\n", ["a", "b"], ["c"], "not utf-8"),
    "json": ((), b'1\n2\n{"a"\n3\n', b'{"a"\n', [1, 2], [3], "not JSON"),
    "csv": (
        ("--as", "csv"),
        b"k\n1\n2\n3,3\n4\n",
        b"k\n3,3\n",
        [{"k": "1"}, {"k": "2"}],
        [{"k": "4"}],
        "2 fields",
    ),
    "csv with a bad byte in a row of two lines": (
        ("--as", "csv"),
        b'k\n1\n"2\n\xff"\n3\n',
        b'k\n"2\n\xff"\n',
        [{"k": "1"}],
        [{"k": "3"}],
        "not utf-8",
    ),
    "csv with a bad quote": (
        ("--as", "csv"),
        b'k\n1\n"2"2\n3\n',
        b'k\n"2"2\n',
        [{"k": "1"}],
        [{"k": "3"}],
        "not CSV",
    ),
    "refused": (
        ("--as", "lines"),
        b"a\n" + (1 << 20) * b"x" + b"\nc\n",
        (1 << 20) * b"x" + b"\n",
        ["a"],
        ["c"],
        "above 1048576 bytes",
    ),
    "nested": (
        (),
        b"1\n" + 5000 * b"[" + 5000 * b"]" + b"\n2\n",
        5000 * b"[" + 5000 * b"]" + b"\n",
        [1],
        [2],
        "nested too deeply",
    ),
}


@pytest.mark.parametrize(
    ("options", "content", "rejected", "before", "after", "why"), BAD.values(), ids=BAD
)
def test_valid_records_of_a_pipe_before_an_invalid_one_are_appended(
    topics: Run,
    client: Topics,
    name: str,
    tmp_path: Path,
    options: tuple[str, ...],
    content: bytes,
    rejected: bytes,
    before: list[Any],
    after: list[Any],
    why: str,
) -> None:
    done = topics("append", name, *options, given=content)
    assert done.code == 2
    message, place = done.err.splitlines()[-2:]
    assert f"to {name} (#1" in message
    assert "stdin, line " in place
    assert why in place
    assert values(client, name) == before

    for given in (("-f", "-"), ()):
        skipping = topics(
            "append", f"{name}.b", *options, *given,
            "--errors", "skip", "--rejects", str(tmp_path / "rejects"), given=content,
        )  # fmt: skip
        assert skipping.code == 0
        assert "topics: skipped stdin, line " in skipping.err
        assert "skipped 1 record" in skipping.err.splitlines()[-1]
        assert (tmp_path / "rejects").read_bytes() == rejected
    assert values(client, f"{name}.b") == 2 * (before + after)


@pytest.mark.slow
def test_a_refused_record_does_not_prevent_the_append_of_its_neighbours(
    topics: Run, tmp_path: Path, file: Callable[[str], str]
) -> None:
    content = "".join(
        f'"{letter * size}"\n' for letter, size in zip("abcde", (1, 99, 1, 99, 1), strict=True)
    )
    with (
        Server(tmp_path / "data", shards=1, max_record_bytes=50) as server,
        Topics(url_of(server)) as client,
    ):
        at = ("--url", url_of(server), "append")
        strict = topics(*at, "strict", given=content)
        assert strict.code == 2
        stopped = "appended 1 record to strict (#1); stopped"
        assert strict.err.splitlines()[-2].startswith(f"topics: {stopped}")
        assert "stdin, line 2" in strict.err.splitlines()[-1]
        assert values(client, "strict") == ["a"]
        for appended in (3, 0):
            skip = topics(*at, "t", "-f", file(content), "--errors", "skip", "--json")
            (result,) = skip.objects
            assert (result["appended"], result["deduped"]) == (appended, 3 - appended)
            assert result["skipped"] == 2
        assert values(client, "t") == ["a", "c", "e"]


def test_the_error_for_a_refused_request_reports_which_records_were_not_appended(
    topics: Run, name: str
) -> None:
    done = topics("append", name, "--tag", 300 * "x", given="1\n2\n")
    assert done.code == 2
    message = f"nothing was appended to {name}; stopped, 2 records read and not appended"
    assert done.err.splitlines()[0] == f"topics: {message}"


@pytest.mark.parametrize("kind", ["lines", "json", "csv"])
def test_bytes_that_cannot_be_decoded_are_replaced(
    topics: Run, client: Topics, name: str, kind: str
) -> None:
    content = {"lines": b"a\xff", "json": b'"a\xff"', "csv": b"k\na\xff"}[kind]
    for encoding in ((), ("--encoding", "ascii")):
        options = ("--as", kind, "--errors", "replace", *encoding)
        assert topics("append", name, *options, given=content).code == 0
    assert values(client, name) == 2 * [{"k": "a\ufffd"} if kind == "csv" else "a\ufffd"]


def test_rejects_do_not_overwrite_the_input(
    topics: Run, name: str, file: Callable[[str], str]
) -> None:
    path = file("1\noops\n")
    done = topics("append", name, "-f", path, "--errors", "skip", "--rejects", path)
    assert (done.code, Path(path).read_text()) == (2, "1\noops\n")
    missing = topics("append", name, "1", "--errors", "skip", "--rejects", "/nope/x", "--json")
    assert (missing.code, missing.error["code"]) == (1, "file")


def test_only_the_first_skipped_lines_are_named(topics: Run, client: Topics, name: str) -> None:
    done = topics("append", name, "--errors", "skip", "--json", given=7 * "oops\n" + "1\n")
    assert (done.objects[0]["appended"], done.objects[0]["skipped"]) == (1, 7)
    assert done.err.count("topics: skipped stdin, line") == 5


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252", "latin-1"])
@pytest.mark.parametrize("kind", ["lines", "json", "csv"])
def test_a_file_may_have_another_encoding(
    topics: Run, client: Topics, name: str, kind: str, encoding: str
) -> None:
    content = {"lines": "ä\r\nb", "json": '"ä"\n"b"', "csv": "k;l\nä;1\nb;2"}[kind].encode(encoding)
    delimiter = ("--delimiter", ";") if kind == "csv" else ()
    options = ("--as", kind, "--encoding", encoding, *delimiter)
    assert topics("append", name, *options, given=content).code == 0
    expected = [{"k": "ä", "l": "1"}, {"k": "b", "l": "2"}] if kind == "csv" else ["ä", "b"]
    assert values(client, name) == expected


def test_the_error_for_an_undecodable_byte_shows_it(topics: Run, name: str) -> None:
    done = topics("append", name, "--as", "lines", "--encoding", "cp1252", given=b"a\nb\x81\n")
    assert done.code == 2
    assert "stdin, line 2: not cp1252; --encoding" in done.err


@pytest.mark.parametrize("kind", ["lines", "json", "csv"])
def test_a_byte_order_mark_is_ignored(topics: Run, client: Topics, name: str, kind: str) -> None:
    content = {"lines": "a\n", "json": '"a"\n\ufeff"b"\n', "csv": "k\na\n"}[kind]
    assert topics("append", name, "--as", kind, given=f"\ufeff{content}").code == 0
    expected = {"lines": ["a"], "json": ["a", "b"], "csv": [{"k": "a"}]}
    assert values(client, name) == expected[kind]


def test_a_delimiter_may_be_a_tab(topics: Run, client: Topics, name: str) -> None:
    for delimiter in ("\t", "\\t", "tab"):
        done = topics("append", name, "--as", "csv", "--delimiter", delimiter, given="a\tb\n1\t2\n")
        assert done.code == 0
    assert values(client, name) == 3 * [{"a": "1", "b": "2"}]


def test_options_set_tag_node_meta_and_delay_of_records(
    topics: Run, client: Topics, name: str
) -> None:
    client.queue(name).put()
    options = ("--tag", "t", "--node", "n", "--meta", '{"a": 1.10}', "--delay", "1h")
    for given in (("1",), ()):
        assert topics("append", name, *given, *options, given="1").code == 0
    for record in client.topic(name).read():
        assert isinstance(record, Record)
        assert (record.tag, record.node, bytes(record.raw_meta)) == ("t", "n", b'{"a": 1.10}')
    queue = client.queue(name).state().queue
    assert queue is not None
    assert (queue.ready, queue.delayed) == (0, 2)


def test_data_is_appended_once_with_a_key(topics: Run, client: Topics, name: str) -> None:
    assert topics("append", name, "1", "2", "--key", "k").code == 0
    again = topics("append", name, "1", "2", "--key", "k")
    assert "2 records appended before, a different --key appends them again" in again.err
    assert client.topic(name).append(3, key="k").deduped
    assert values(client, name) == [1, 2]


@pytest.mark.parametrize("is_file", [True, False])
def test_a_file_or_pipe_is_appended_once_with_a_key(
    topics: Run, client: Topics, name: str, file: Callable[[str], str], is_file: bool
) -> None:
    bad = LINES.replace("2100}", "oops")
    for content, appended in ((bad, "2,000 records"), (LINES, "500 records"), (LINES, "")):
        where = ("-f", file(content)) if is_file else ()
        done = topics("append", name, *where, "--key", "k", given=content)
        assert f"appended {appended}" in done.err
    assert "2,500 records appended before, a different --key appends them again" in done.err
    assert values(client, name) == [{"number": number} for number in range(2500)]
    assert client.topic(name).append(3, key="k:3").deduped


def test_invalid_data_appends_nothing(topics: Run, client: Topics, name: str) -> None:
    assert topics("append", name, "1", "oops").code == 2
    assert [*client.topics(name)] == []


def test_a_short_idempotency_window_is_reported(
    topics: Run, client: Topics, name: str, file: Callable[[str], str]
) -> None:
    client.topic(name).put()
    assert "only for 2 m" in topics("append", name, "-f", file("1\n")).err


def test_empty_input_is_reported(topics: Run, client: Topics, name: str) -> None:
    done = topics("append", name, given="")
    assert (done.code, done.out) == (0, "")
    assert "nothing was appended" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("1", "-f", "-"),
        ("1", "--as", "csv"),
        ("--numbers",),
        ("--as", "lines", "--tag-field", "a"),
        ("-f", "/not/there"),
        ("--as", "xml"),
        ("--delimiter", ";"),
        ("--as", "csv", "--delimiter", "ab"),
        ("--encoding", "base64"),
        ("--encoding", "klingon"),
        ("--rejects", "/dev/null"),
        ("--key", "k", "--key-prefix", "p"),
        ("--key", "k", "--again"),
        ("--meta", "[]"),
        ("--meta", "oops"),
        ("--delay", "soon"),
    ],
)
def test_invalid_arguments_are_usage_errors(
    topics: Run, name: str, arguments: tuple[str, ...]
) -> None:
    assert topics("append", name, *arguments).code == 2


@pytest.mark.slow
def test_a_pipe_is_appended_as_lines_arrive_and_can_be_interrupted(
    url: str, client: Topics, name: str
) -> None:
    """A line is appended before its writer continues."""
    client.topic(name).put()
    with started("append", name, "--as", "lines") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        for number, line in enumerate(("one", "two"), 1):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            deadline = time.monotonic() + 30
            while client.topic(name).state().count < number:
                assert time.monotonic() < deadline, "the line did not arrive"
                time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        messages = process.stderr.read()
    assert process.returncode == 130
    # The second line may be stored before its response has been read.
    assert re.search(r"appended (1 record|2 records) ", messages)
    assert messages.endswith("topics: interrupted\n")


@pytest.mark.slow
def test_a_killed_server_only_causes_a_pause(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=2) as server:
        server.env["TOPICS_PORT"] = str(server.port)
        address = url_of(server)
        with (
            started("--url", address, "append", "t", "-f", "-") as process,
            Topics(address) as client,
        ):
            assert process.stdin is not None
            assert process.stderr is not None
            for first in range(0, 6000, 2000):
                if first:
                    server.kill()
                process.stdin.writelines(f"{number}\n" for number in range(first, first + 2000))
                process.stdin.flush()
                if first:
                    assert "trying again" in process.stderr.readline()
                    server.start()
                assert process.stderr.readline()  # created, or connected again
            process.stdin.close()
            process.stderr.read()
            assert values(client, "t") == [*range(6000)]
        assert process.returncode == 0


def test_a_long_line_is_read_in_blocks_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LINE_MAX_BYTES", 10)
    blocks = [b"a\nbbb", b"bbb", b"b\n\ncc", b"\nd"]
    assert [*Lines(blocks, "x")] == [b"a", b"bbbbbbb", b"", b"cc", b"d"]
    lines = Lines([b"a\nbbbbbb", b"bbbbb"], "x")
    with pytest.raises(Failed, match="x, line 1: the next line is longer than 10 B"):
        list(lines)
    assert lines.location == "x, line 1"

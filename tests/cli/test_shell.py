"""The common parts of all commands: global options, errors, exit codes and output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Run
from topics import __version__
from topics.cli import units
from topics.errors import ExitCode


def test_a_usage_error_is_written_as_a_line_or_as_json(topics: Run) -> None:
    assert topics("fly").code == 2
    assert topics("--json", "fly").error["code"] == "usage"


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["appnd"], "append"),
        (["list"], "ls"),
        (["help", "tali"], "tail"),
        (["queue", "lss"], "ls"),
        (["ls", "--jsn"], "--json"),
    ],
)
def test_the_error_for_a_misspelled_name_suggests_the_nearest_one(
    topics: Run, arguments: list[str], near: str
) -> None:
    done = topics(*arguments)
    assert done.code == 2
    assert near in done.err.splitlines()[-1]


def test_help_and_version_are_also_commands(topics: Run) -> None:
    assert topics("help") == topics("--help")
    assert topics("help", "queue", "ls") == topics("queue", "ls", "--help")
    assert topics("version") == topics("--version")
    assert topics("version").out == f"topics {__version__}\n"


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("30", 30_000), ("1.5h", 5_400_000), ("7d", 604_800_000)]
)
def test_durations_are_parsed_with_their_units(text: str, ms: int) -> None:
    assert units.DURATION.convert(text, None, None) == ms


@pytest.mark.parametrize("text", ["", "d", "1 fortnight", "-1s", "1e3", "9" * 400])
def test_an_invalid_duration_or_count_is_refused(text: str) -> None:
    for kind in (units.DURATION, units.COUNT):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)


def test_counts_are_decimal_and_sizes_binary() -> None:
    assert units.COUNT.convert("1M", None, None) == 1_000_000
    assert units.BYTES.convert("1M", None, None) == 1 << 20
    assert units.BYTES.convert("1.5GiB", None, None) == 3 << 29


def test_sizes_and_durations_are_shown_rounded_with_their_units() -> None:
    assert [units.size(count) for count in (0, 1023, 1536, 1 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "1 GiB",
    ]
    assert [units.duration(ms) for ms in (5, 1500, 180_000, 172_800_000)] == [
        "5 ms",
        "2 s",
        "3 m",
        "2 d",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("info", "\udcff"),
        ("append", "x", "1", "--tag", "\udcff"),
        ("create", "x", "--set", "dead_letter=\udcff"),
        ("read", "x", "--since", "9" * 400),
        ("ls", "--url", "http://h..h"),
        ("ls", "--url", "http://[::1"),
        ("ls", "--url", "http://h:99999"),
        ("ls", "--key-file", "~nobody-is-called-so/key"),
        ("bench", "append", "--size", "1T"),
    ],
)
def test_an_invalid_argument_gives_exit_code_2_and_one_line(
    topics: Run, arguments: tuple[str, ...]
) -> None:
    done = topics("--json", *arguments)
    assert (done.code, done.out) == (ExitCode.USAGE, "")
    assert done.error["message"]


def test_a_read_since_a_time_before_all_records_starts_at_the_first(topics: Run, name: str) -> None:
    topics("append", name, "1")
    assert len(topics("read", name, "--since", "99999999999d").objects) == 1


def test_an_export_to_a_pipe_or_a_link_does_not_replace_it(
    topics: Run, name: str, tmp_path: Path
) -> None:
    topics("append", name, "1")
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    link.symlink_to(file)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        assert topics("export", name, "-o", str(pipe)).code == 0
        assert pipe.is_fifo()
        assert topics("export", name, "-o", str(link)).code == 0
        assert link.is_symlink()
        assert file.read_bytes() == reader.read()


def test_control_characters_in_table_cells_are_escaped(topics: Run, name: str) -> None:
    topics("create", name, "--queue")
    topics("append", name, "1", "--tag", "\x1b[2J\n")
    assert "\\x1b[2J\\n" in topics("queue", "peek", name).out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("info > /dev/full", 1, "topics: No space left on device\n"),
        ("info >&-", 1, "topics: Bad file descriptor\n"),
        ("info nosuch 2>&-", 4, ""),
        ("keys hash <&-", 1, "topics: Bad file descriptor\n"),
    ],
)
def test_a_closed_or_full_stream_is_reported_in_one_line(
    topics: Run, name: str, command: str, code: int, message: str
) -> None:
    topics("create", name)
    arguments = command.replace("info >", f"info {name} >")
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m topics {arguments}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (code, "", message)

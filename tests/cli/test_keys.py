"""The command ``keys check``: a key file as the server reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from topics.process.keys import KEY_FILE_MAX_BYTES, KeyFile

GOOD = f"# ours\nalpha:rw:orders|jobs\nbeta, gamma:r\r\n,\nsha256:{7:064d}:a\rdelta\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_each_key_is_listed_with_its_rights_and_without_its_secret(topics: Run, file: Path) -> None:
    file.write_text(GOOD, newline="")
    done = topics("keys", "check", str(file))
    assert (done.code, done.err) == (0, "")
    rows = [line.split(None, 3) for line in done.out.splitlines()]
    assert [[row[0], *row[2:]] for row in rows] == [
        ["LINE", "SCOPES", "PREFIXES"],
        ["2", "read+write", "orders|jobs"],
        ["3", "read+write+delete+admin", "(all names)"],
        ["3", "read", "(all names)"],
        ["5", "admin", "(all names)"],
        ["5", "read+write+delete+admin", "(all names)"],
    ]
    assert not [name for name in ("alpha", "beta", "delta") if name in done.out]
    entries = topics("keys", "check", str(file), "--json").objects
    assert [key["alias"] for key in entries] == [
        key.alias for key in KeyFile(file, "X").read().principals
    ]
    assert entries[0]["prefixes"] == ["orders", "jobs"]
    assert entries[1]["prefixes"] is None


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        (
            "hunter2:fly\nok\nhunter2:r:_x\n\nok:r\nhunter 2\na,a\n",
            ["line 1", "line 3", "line 5: the same key as in line 2", "line 6", "line 7"],
        ),
        ("# hunter2\n,\n", ["the file contains no key"]),
        ("", ["the file contains no key"]),
        ("#" * (KEY_FILE_MAX_BYTES + 1), ["the file is longer"]),
    ],
    ids=["lines", "comments", "empty", "long"],
)
def test_all_errors_are_reported_with_their_lines(
    topics: Run, file: Path, text: str, errors: list[str]
) -> None:
    file.write_text(text)
    done = topics("keys", "check", str(file))
    assert (done.code, done.out) == (2, "")
    lines = done.err.removeprefix("topics: ").splitlines()
    assert len(lines) == len(errors)
    for line, error in zip(lines, errors, strict=True):
        assert line.startswith(f"{file}: {error}")
    assert "hunter" not in done.err
    assert topics("keys", "check", str(file), "--json").error["code"] == "usage"
    with pytest.raises(ValueError, match=r"entry|key|longer"):  # a server does not start with it
        KeyFile(file, "X").read()


def test_a_file_that_is_no_key_file_is_refused(topics: Run, file: Path) -> None:
    done = topics("keys", "check", str(file))
    assert done == (2, "", f"topics: {file}: No such file or directory\n")
    assert topics("keys", "check").code == 2

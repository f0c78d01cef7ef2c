"""The command line: what a person, or a program that starts the server, gets to see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from topics import __version__

ROOT = Path(__file__).parent.parent
MODULE = [sys.executable, "-m", "topics"]
SCRIPT = [str(ROOT / "supervisor.py")]


def run(command: list[str], *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"  # supervisor.py finds its python3 there
    return subprocess.run(
        [*command, *arguments],
        env={"PATH": path, "PYTHONPATH": str(ROOT)} | environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_version() -> None:
    done = run(MODULE, "--version")
    assert (done.returncode, done.stdout) == (0, f"topics {__version__}\n")


def test_help_says_how_to_go_on_and_loads_no_server() -> None:
    code = (
        "import sys\nfrom topics import cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'structlog', 'trio', 'hypercorn', 'quart', 'ctypes', 'supervisor', 'topics.config'} & sys.modules.keys()))"
    )
    done = run([sys.executable, "-c", code])
    assert "--print-config" in done.stdout
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("arguments", [[], ["fly"], ["serve", "--colour"], ["serve", "extra"]])
def test_wrong_arguments_are_status_2_and_a_usage_line(arguments: list[str]) -> None:
    done = run(MODULE, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: topics")


@pytest.mark.parametrize("command", [[*MODULE, "serve"], SCRIPT], ids=["module", "script"])
def test_print_config_shows_what_would_be_used_and_no_secret(command: list[str], tmp_path: Path) -> None:
    done = run(
        [*command, "--print-config", "--port", "4711", "--data-dir", str(tmp_path / "d")],
        TOPICS_API_KEYS="hunter2:r,other",
        TOPICS_MAX_TOPICS="7",
        TOPICS_MAX_TOPIC="8",
        TOPICS_PORT="1",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {"TOPICS_PORT=4711", "TOPICS_MAX_TOPICS=7", f"TOPICS_DATA_DIR={tmp_path}/d", "TOPICS_HOST=127.0.0.1"} <= {*lines}
    assert lines[-2:] == ["# keys: 2", "# TOPICS_MAX_TOPIC is not a setting; did you mean TOPICS_MAX_TOPICS?"]
    assert "hunter2" not in done.stdout + done.stderr
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("command", [[*MODULE, "serve"], SCRIPT], ids=["module", "script"])
def test_wrong_settings_are_status_2_with_a_line_for_each(command: list[str]) -> None:
    done = run(command, "--host", "0.0.0.0", TOPICS_PORT="many", TOPICS_MAX_BODY_BYTES="-1", TOPICS_API_KEYS="hunter2:fly")
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0] == "topics: these settings are wrong:"
    assert sorted(line.split(":")[0].split("=")[0].strip() for line in lines[1:]) == [
        "TOPICS_API_KEYS",
        "TOPICS_MAX_BODY_BYTES",
        "TOPICS_PORT",
    ]
    assert "hunter2" not in done.stderr


def test_a_public_address_without_keys_is_status_2() -> None:
    done = run(MODULE, "serve", "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "TOPICS_HOST='0.0.0.0': is not loopback and no keys are configured" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_that_is_not_ours_is_status_1_and_one_clear_line(tmp_path: Path) -> None:
    done = run(MODULE, "serve", "--host", "203.0.113.7", "--data-dir", str(tmp_path), TOPICS_API_KEYS="k", TOPICS_ELEPHANT="1")
    assert done.returncode == 1
    unknown, refused = done.stderr.splitlines()
    assert '"TOPICS_ELEPHANT is not a setting"' in unknown
    assert "Cannot assign requested address" in refused
    assert "203.0.113.7" in refused


@pytest.mark.parametrize("there", [True, False])
def test_supervisor_takes_the_python_of_its_own_venv_where_there_is_one(tmp_path: Path, there: bool) -> None:
    script = tmp_path / "checkout" / "supervisor.py"
    for place in (script.parent / ".venv/bin/python", tmp_path / "path/python3"):
        place.parent.mkdir(parents=True)
        place.write_text(f'#!/bin/sh\nprintf "%s|" {place} "$@"\n')
        place.chmod(0o755)
    if not there:
        (script.parent / ".venv/bin/python").unlink()
    script.write_bytes((ROOT / "supervisor.py").read_bytes())
    script.chmod(0o755)
    done = run([str(script)], "--print-config", "a b", PATH=f"{tmp_path / 'path'}:/usr/bin:/bin")
    python = script.parent / ".venv/bin/python" if there else tmp_path / "path/python3"
    assert done.stdout == f"{python}|{script}|--print-config|a b|"

"""The command line: the output for users and for programs that start the server."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.support.damage import flip, frames, small, tree
from tests.support.log import log_files
from tests.support.program import Program
from topics import __version__, cli
from topics.errors import ExitCode
from topics.formats.disk.frames import FrameKind
from topics.process.keys import KeyFile
from topics.storage.data_dir import locked_for_reading

ROOT = Path(__file__).parent.parent
MODULE = [sys.executable, "-m", "topics"]
FOREIGN = "is not a file of a data directory, or its first 8 bytes are damaged"
SCRIPT = [str(ROOT / "supervisor.py")]


def run(
    command: list[str], *arguments: str | bytes, given: str | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"  # supervisor.py finds its python3 there
    return subprocess.run(
        [*command, *arguments],
        env={"PATH": path, "PYTHONPATH": str(ROOT)} | environ,
        cwd=ROOT,
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_version_is_printed() -> None:
    done = run(MODULE, "--version")
    assert (done.returncode, done.stdout) == (0, f"topics {__version__}\n")


def test_help_names_the_next_step_and_imports_no_server_package() -> None:
    code = (
        "import sys\nfrom topics import cli\n"
        "cli.main(['--help'])\n"
        "server = {'structlog', 'trio', 'hypercorn', 'quart', 'ctypes', 'httpx2', 'rich'}\n"
        "server |= {'topics.process', 'topics.config'}\n"
        "print(sorted(server & sys.modules.keys()))"
    )
    done = run([sys.executable, "-c", code])
    assert "serve    Run the server." in done.stdout
    assert done.stdout.endswith("[]\n")


def test_the_script_ignores_a_sighup_before_python_can_block_it(tmp_path: Path) -> None:
    script, python = tmp_path / "supervisor.py", tmp_path / ".venv" / "bin" / "python"
    shutil.copy(ROOT / "supervisor.py", script)
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nkill -HUP $$; echo "$@"\n')
    python.chmod(0o755)
    done = run([str(script)], "--port", "1")
    assert (done.returncode, done.stdout) == (0, f"{script} --port 1\n")


def test_serve_blocks_sighup_before_anything_else() -> None:
    code = (
        "import os, signal\nfrom topics import cli\n"
        "cli.root.make_context = lambda *_, **__: os.kill(os.getpid(), signal.SIGHUP) or exit(7)\n"
        "cli.main(['serve'])"
    )
    assert run([sys.executable, "-c", code]).returncode == 7


@pytest.mark.parametrize("arguments", [[], ["fly"], ["serve", "--colour"], ["serve", "extra"]])
def test_wrong_arguments_give_exit_code_2_and_a_usage_line(arguments: list[str]) -> None:
    done = run(MODULE, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: topics")


@pytest.mark.parametrize("command", [[*MODULE, "serve"], SCRIPT], ids=["module", "script"])
def test_print_config_shows_the_effective_settings_without_secrets(
    command: list[str], tmp_path: Path
) -> None:
    done = run(
        [*command, "--print-config", "--port", "4711", "--data-dir", str(tmp_path / "d")],
        TOPICS_API_KEYS="hunter2:r,other",
        TOPICS_MAX_TOPICS="7",
        TOPICS_MAX_TOPIC="8",
        TOPICS_PORT="1",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {
        "TOPICS_PORT=4711",
        "TOPICS_MAX_TOPICS=7",
        f"TOPICS_DATA_DIR={tmp_path}/d",
        "TOPICS_HOST=127.0.0.1",
    } <= {*lines}
    assert lines[-2:] == [
        "# keys: 2",
        "# TOPICS_MAX_TOPIC is not a setting; did you mean TOPICS_MAX_TOPICS?",
    ]
    assert "hunter2" not in done.stdout + done.stderr
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("command", [[*MODULE, "serve"], SCRIPT], ids=["module", "script"])
def test_wrong_settings_give_exit_code_2_and_a_line_for_each(command: list[str]) -> None:
    done = run(
        command,
        "--host",
        "0.0.0.0",
        TOPICS_PORT="many",
        TOPICS_MAX_BODY_BYTES="-1",
        TOPICS_API_KEYS="hunter2:fly",
    )
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0] == "topics: invalid settings:"
    assert sorted(line.split(":")[0].split("=")[0].strip() for line in lines[1:]) == [
        "TOPICS_API_KEYS",
        "TOPICS_MAX_BODY_BYTES",
        "TOPICS_PORT",
    ]
    assert "hunter2" not in done.stderr


def test_a_public_address_without_keys_gives_exit_code_2() -> None:
    done = run(MODULE, "serve", "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "TOPICS_HOST='0.0.0.0': is not loopback and no keys are configured" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_of_another_machine_gives_exit_code_1_and_one_clear_line(tmp_path: Path) -> None:
    done = run(
        MODULE,
        "serve",
        "--host",
        "203.0.113.7",
        "--data-dir",
        str(tmp_path),
        TOPICS_API_KEYS="k",
        TOPICS_ELEPHANT="1",
    )
    assert done.returncode == 1
    unknown, refused = done.stderr.splitlines()
    assert '"event": "setting unknown", "name": "TOPICS_ELEPHANT"' in unknown
    assert "Cannot assign requested address" in refused
    assert "203.0.113.7" in refused


def test_a_start_does_not_warn_about_known_settings_and_variables_of_clients(
    tmp_path: Path,
) -> None:
    blocker = socket.create_server(("127.0.0.1", 0))
    with blocker:  # the start ends because the port is in use, after the warnings
        arguments = [
            "serve",
            "--port",
            str(blocker.getsockname()[1]),
            "--data-dir",
            str(tmp_path / "d"),
        ]
        caps = {"TOPICS_MAX_TOPICS": "7", "TOPICS_MAX_TOTAL_BYTES": "5"}
        done = run(MODULE, *arguments, TOPICS_URL="http://x", TOPICS_API_KEY="k", **caps)
    assert done.returncode == 1
    (refused,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert "Address already in use" in refused["reason"]


def test_an_invalid_data_directory_gives_exit_code_2_and_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").touch()
    for place, reason in [
        ("file", f"{tmp_path}/file is not a directory"),
        ("file/sub", f"{tmp_path}/file is not a directory"),
        (
            "foreign",
            f"{tmp_path}/foreign is not a data directory and not empty: it contains thesis.tex",
        ),
    ]:
        done = run(MODULE, "serve", "--port", "0", "--data-dir", str(tmp_path / place))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"topics: {reason} (TOPICS_DATA_DIR={tmp_path / place})\n"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "foreign", "thesis.tex"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "nowhere"], "topics: nowhere: no such directory\n"),
        (["verify", "pyproject.toml"], "topics: pyproject.toml: not a directory\n"),
        (["verify", "deploy"], "topics: deploy is not a data directory: it has no file meta\n"),
        (["repair", "nowhere"], "topics: nowhere: no such directory\n"),
        (["repair", "deploy"], "topics: deploy is not a data directory: it has no file meta\n"),
        (["inspect", "nowhere"], "topics: nowhere: No such file or directory\n"),
        (["inspect", "deploy"], "topics: deploy: Is a directory\n"),
        (["inspect", "deploy/run/x"], "topics: deploy/run/x: Not a directory\n"),
        (
            ["inspect", "pyproject.toml"],
            f"topics: pyproject.toml {FOREIGN}\n",
        ),
        (
            ["inspect", "/dev/null"],
            f"topics: /dev/null {FOREIGN}\n",
        ),
        (["inspect", b"\xff"], "topics: \\udcff: No such file or directory\n"),
    ],
)
def test_a_mistyped_path_gives_exit_code_2_and_is_not_reported_as_damage(
    arguments: list[str | bytes], message: str
) -> None:
    done = run(MODULE, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


@pytest.mark.parametrize("arguments", [["verify", ""], ["inspect", ""], ["repair", ""]])
def test_an_empty_path_is_a_wrong_argument(arguments: list[str]) -> None:
    done = run(MODULE, *arguments)
    assert done.returncode == 2
    assert "must not be empty" in done.stderr


def test_names_that_are_not_utf_8_are_shown_with_escapes(tmp_path: Path) -> None:
    directory = os.fsencode(tmp_path) + b"/\xff"
    done = run(
        MODULE, "serve", "--print-config", "--data-dir", directory, PYTHONIOENCODING="utf-8:strict"
    )
    assert done.returncode == 0, done.stderr
    assert f"TOPICS_DATA_DIR={tmp_path}/\\udcff" in done.stdout


@pytest.mark.parametrize("script", ["run", "test"])
def test_the_scripts_print_help_and_do_nothing_for_an_unknown_argument(script: str) -> None:
    for option in ("--help", "-h"):
        done = run([str(ROOT / "deploy" / script)], option)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"  deploy/{script} --help" in done.stdout
    done = run([str(ROOT / "deploy" / script)], "quikc")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: unknown argument quikc; deploy/{script} --help\n"


def test_the_lock_file_is_not_written_if_packages_are_not_installed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for setup in ([], [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / ".venv")]):
        if setup:
            subprocess.run(setup, check=True)
        done = run([str(tmp_path / "deploy/lock")])
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(r"error: .*; run deploy/test first\n", done.stderr), done.stderr


@pytest.mark.parametrize("has_venv", [True, False])
def test_supervisor_uses_the_python_of_its_own_venv_if_there_is_one(
    tmp_path: Path, has_venv: bool
) -> None:
    script = tmp_path / "checkout" / "supervisor.py"
    for place in (script.parent / ".venv/bin/python", tmp_path / "path/python3"):
        place.parent.mkdir(parents=True)
        place.write_text(f'#!/bin/sh\nprintf "%s|" {place} "$@"\n')
        place.chmod(0o755)
    if not has_venv:
        (script.parent / ".venv/bin/python").unlink()
    script.write_bytes((ROOT / "supervisor.py").read_bytes())
    script.chmod(0o755)
    done = run([str(script)], "--print-config", "a b", PATH=f"{tmp_path / 'path'}:/usr/bin:/bin")
    python = script.parent / ".venv/bin/python" if has_venv else tmp_path / "path/python3"
    assert done.stdout == f"{python}|{script}|--print-config|a b|"


def test_the_help_lists_every_exit_code_and_describes_every_command_as_its_own_help() -> None:
    shown = run(MODULE, "--help", COLUMNS="500").stdout
    for code in ExitCode:
        assert f"{int(code)} " in ExitCode.summary()
    assert ExitCode.summary() in " ".join(shown.split())
    context = click.Context(cli.root)
    for section in cli.COMMANDS.values():
        for name, (_, text) in section.items():
            found = cli.root.get_command(context, name)
            assert found is not None
            assert (found.help or "").splitlines()[0] == text


# repair


def test_a_repair_reports_the_loss_before_it_runs_and_then_finds_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "data"
    small(path)
    offset = frames(path, FrameKind.APPEND)[6][0]
    flip(log_files(path)[0], offset + 100)
    damaged = tree(path)
    assert run(MODULE, "verify", str(path)).returncode == ExitCode.DAMAGED
    dry = run(MODULE, "repair", "--dry-run", str(path))
    assert (dry.returncode, tree(path)) == (ExitCode.DAMAGED, damaged)
    lost = f"{log_files(path)[0]}, offset {offset}: 152 bytes of frames cannot be read"
    report = f"{lost}, idempotency key 'k2'\ntopic \"a\": seqs 5 to 6 are lost\n"
    assert dry.stdout == f"{report}nothing was changed because of --dry-run\n"
    with locked_for_reading(path):
        done = run(MODULE, "repair", str(path))
    assert (done.returncode, tree(path)) == (ExitCode.FAILED, damaged)
    done = run(MODULE, "repair", str(path))
    assert (done.returncode, done.stdout) == (ExitCode.DONE, f"{report}repaired\n")
    done = run(MODULE, "repair", str(path))
    assert (done.returncode, done.stdout) == (ExitCode.DONE, "nothing to repair\n")
    done = run(MODULE, "verify", str(path))
    assert done.returncode == ExitCode.DONE
    assert done.stdout.endswith(", no damage, 1 damaged file kept as *.damaged\n")


def test_a_repair_refuses_damage_that_only_a_backup_can_fix(tmp_path: Path) -> None:
    path = tmp_path / "data"
    small(path)
    checkpoint = next((path / "checkpoint" / "00").glob("*.ckpt"))
    flip(checkpoint, 100)
    (log,) = log_files(path)
    log.unlink()
    damaged = tree(path)
    done = run(MODULE, "repair", str(path))
    assert (done.returncode, done.stdout, tree(path)) == (ExitCode.DAMAGED, "", damaged)
    assert f"topics: {checkpoint}, offset 0: no checkpoint is intact" in done.stderr
    assert "restore a backup. Nothing was changed" in done.stderr


# keys hash


SECRET = "pass,word:1"
HASHED = hashlib.sha256(SECRET.encode()).hexdigest()


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_secret_is_hashed_without_its_line_break(end: str) -> None:
    done = run(MODULE, "keys", "hash", given=SECRET + end)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"sha256:{HASHED}\n", "")


def test_the_output_with_an_alias_is_the_content_of_a_key_file(tmp_path: Path) -> None:
    done = run(MODULE, "keys", "hash", "--alias", given=SECRET)
    alias = hashlib.sha256(bytes.fromhex(HASHED)).hexdigest()[:8]
    assert done.stdout == f"sha256:{HASHED}\n# alias {alias}\n"
    (tmp_path / "keys").write_text(done.stdout)
    access = KeyFile(tmp_path / "keys", "X").read()
    assert [access.authenticate(SECRET.encode()), access.principals[0].alias] == [
        access.principals[0],
        alias,
    ]


@pytest.mark.parametrize("secret", ["", "\n", "two words", "schlüssel", "one\ntwo\n"])
def test_a_secret_that_does_not_fit_a_header_gives_exit_code_2_and_is_not_shown(
    secret: str,
) -> None:
    done = run(MODULE, "keys", "hash", given=secret)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "topics: the key must be one or more visible ASCII characters\n"


def test_a_secret_is_never_an_argument() -> None:
    done = run(MODULE, "keys", "hash", "hunter2")
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: topics")


def test_on_a_terminal_the_secret_is_prompted_for_and_not_echoed() -> None:
    ours, theirs = pty.openpty()
    command = [*MODULE, "keys", "hash"]
    with Program(command, cwd=ROOT, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while b"Key: " not in shown:
            shown += os.read(ours, 1024)
        os.write(ours, SECRET.encode() + b"\n")
        assert process.stdout is not None
        assert process.stdout.read() == f"sha256:{HASHED}\n".encode()
        assert process.wait(10) == 0
    os.set_blocking(ours, False)
    with contextlib.suppress(OSError):
        shown += os.read(ours, 1024)
    os.close(ours)
    assert SECRET.encode() not in shown


# Ctrl-C


def interrupted(running: Program) -> tuple[int, str]:
    """Return the exit code and the content of stderr."""
    errors = running.ended_by(signal.SIGINT)[1]
    return running.returncode, errors


def test_an_interrupted_command_gives_exit_code_130_and_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file")
    command = [*MODULE, "inspect", str(tmp_path / "file")]
    with Program(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
        # the open returns when the command has also opened the pipe
        writer = (tmp_path / "file").open("wb")
        assert interrupted(running) == (130, "topics: interrupted\n")
        writer.close()


def test_deploy_run_is_interrupted_quietly_while_it_waits_for_its_server(tmp_path: Path) -> None:
    checkout, begun = tmp_path / "checkout", tmp_path / "begun"
    shutil.copytree(ROOT / "deploy", checkout / "deploy")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    os.mkfifo(begun)
    waiting = "import sys, time; open(sys.argv[1], chr(119)).close(); time.sleep(60)"
    for file, script in {
        tmp_path / "bin/java": "echo 'openjdk version \"17.0.1\"' >&2",
        checkout / ".venv/bin/topics": f"exec {sys.executable} -c '{waiting}' {begun}",
        checkout / ".venv/bin/python": "cat > /dev/null; echo hash",  # a pipe must not break
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/bash\n{script}\n")
        file.chmod(0o755)
    (checkout / ".venv/.installed-run").write_text("hash\n")
    poller = select.poll()
    with socket.socket() as held, os.fdopen(os.open(begun, os.O_RDONLY | os.O_NONBLOCK)) as fifo:
        poller.register(fifo)
        held.bind(("127.0.0.1", 0))  # no server listens there or can listen there
        with Program(
            [checkout / "deploy/run"],
            env={
                "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
                "TOPICS_PORT": str(held.getsockname()[1]),
            },
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            if not poller.poll(60_000):
                running.end()
                pytest.fail(f"the server is not started: {running.communicate()[1]}")
            os.killpg(running.pid, signal.SIGINT)
            _, errors = running.communicate(timeout=60)
            assert (running.returncode, "Traceback" in errors) == (130, False), errors
            with pytest.raises(ProcessLookupError):  # no process continues
                os.killpg(running.pid, signal.SIGKILL)

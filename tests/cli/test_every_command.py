"""Every command: its help, an unknown option, a server that is unreachable, refuses the key, is of
another kind, or does not respond until Ctrl-C.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Done, Run
from tests.client.conftest import url_of
from tests.support.server import Server
from topics import cli
from topics.errors import ExitCode

# With arguments that only a server can refuse. FILE specifies the topic nope, OUT is a new file.
SERVER_CHECKS = """
ls
info nope
create nope
config nope ttl_ms=1d
rm nope --yes
delete nope --before 5 --yes
apply FILE
append nope 1
append nope -f FILE --as lines
read nope
tail nope
export nope -o OUT
import EXPORT
queue ls
queue info nope
queue peek nope
queue leases nope
queue redrive nope
work nope -- true
router ls
router create nope a b
router rm nope
router graph
cursor ls
cursor set nope nope 0
cursor rm nope
top --once
ping -n 1
bench append --seconds 0.1
doctor
backup OUT
standby run OUT --once
""".strip().splitlines()
MACHINE_CHECKS = """
serve
verify
inspect
repair
restore
standby promote
standby status
keys hash
keys check
context ls
context add
context use
context rm
completion
""".strip().splitlines()
MAKE = ("create", "apply", "append", "import", "router create")
NOT_FOUND = [line for line in SERVER_CHECKS if "nope" in line and not line.startswith(MAKE)]


def tree(found: click.Command, *names: str) -> Iterator[str]:
    """Yield all commands without groups."""
    if not isinstance(found, click.Group):
        yield " ".join(names)
        return
    context = click.Context(found)
    for name in found.list_commands(context):
        below = found.get_command(context, name)
        assert below is not None
        yield from tree(below, *names, name)


COMMANDS = [*tree(cli.root)]


def command_of(line: str) -> str:
    (found,) = [each for each in COMMANDS if line == each or line.startswith(f"{each} ")]
    return found


@pytest.fixture
def run_command(tmp_path: Path, topics: Run) -> Iterator[Run]:
    """Run a command line with its files against another server, without retries."""
    (tmp_path / "file").write_text("[topics.nope]\n")
    export = '{"header":{"format":1,"topic":"nope","epoch":1,"config":{}}}\n{"data":1}\n'
    footer = '{"footer":{"topics":{"nope":1},"sha256":"%s"}}\n'
    (tmp_path / "export").write_text(export + footer % sha256(export.encode()).hexdigest())
    files = {"FILE": "file", "EXPORT": "export", "OUT": "out"}

    def run(line: str, url: str, *more: str) -> Done:
        arguments = [
            str(tmp_path / files[verb]) if verb in files else verb for verb in line.split()
        ]
        return topics("--json", "--timeout", "0", "--url", url, *more, *arguments)

    yield run
    shutil.rmtree(tmp_path / "out", ignore_errors=True)  # `standby run` creates it first
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.part").exists()
    assert not (tmp_path / "out.partial").exists()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("keyed") / "data"
    with Server(data, shards=1, api_keys="right,other:r:other.") as server:
        yield url_of(server)


def test_the_tables_of_this_module_contain_every_command() -> None:
    assert sorted({*map(command_of, SERVER_CHECKS), *MACHINE_CHECKS}) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_help_and_rejects_unknown_options(topics: Run, command: str) -> None:
    shown = topics(*command.split(), "--help")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(f"Usage: topics {command} ")
    unknown = topics("--json", *command.split(), "--no-such-option", "--", "x")
    assert (unknown.code, unknown.out, unknown.error["code"]) == (ExitCode.USAGE, "", "usage")


@pytest.mark.parametrize("line", SERVER_CHECKS)
def test_without_a_server_a_command_exits_with_6(run_command: Run, line: str) -> None:
    done = run_command(line, "http://127.0.0.1:1")
    if line == "doctor":  # it reports this as a finding
        assert (done.code, done.objects[0]["is_well"]) == (ExitCode.FAILED, False)
        assert "topics serve" in done.objects[0]["fix"]
        return
    assert (done.code, done.out, done.error["code"]) == (6, "", "connection_lost")
    assert "topics serve starts a server" in done.error["message"]


@pytest.mark.parametrize("line", SERVER_CHECKS)
def test_without_its_key_a_command_exits_with_5(run_command: Run, keyed: str, line: str) -> None:
    done = run_command(line, keyed)
    if line == "doctor":
        assert (done.code, done.objects[0]["is_well"]) == (ExitCode.FAILED, False)
        assert "--key-file" in done.objects[0]["fix"]
        return
    assert (done.code, done.out, done.error["code"]) == (5, "", "unauthorized")


@pytest.mark.parametrize("line", [line for line in SERVER_CHECKS if " nope" in line])
def test_a_key_for_other_name_prefixes_is_refused(
    run_command: Run, keyed: str, tmp_path: Path, line: str
) -> None:
    (tmp_path / "key").write_text("other\n")
    done = run_command(line, keyed, "--key-file", str(tmp_path / "key"))
    assert (done.code, done.out, done.error["code"]) == (5, "", "forbidden")


@pytest.mark.parametrize("line", NOT_FOUND)
def test_a_missing_object_gives_exit_code_4(run_command: Run, url: str, line: str) -> None:
    done = run_command(line, url)
    assert (done.code, done.out) == (4, "")
    assert "nope" in done.error["message"]


class OtherServer(BaseHTTPRequestHandler):
    """An HTTP server of another kind."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "15")
        self.end_headers()
        self.wfile.write(b"<html>Hi</html>")

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Write no log."""


class QuietServer(ThreadingHTTPServer):
    """Writes no traceback to stderr, which the tests read, if a client resets its connection."""

    def handle_error(self, *_: object) -> None:
        """See the base class."""


@pytest.fixture(scope="module")
def other_server() -> Iterator[str]:
    server = QuietServer(("127.0.0.1", 0), OtherServer)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("line", SERVER_CHECKS)
def test_another_kind_of_server_is_reported_in_one_line(
    run_command: Run, other_server: str, line: str
) -> None:
    done = run_command(line, other_server)
    assert done.code not in (ExitCode.DONE, ExitCode.INTERRUPTED)
    if line != "doctor":
        assert done.out == ""
        assert done.error["message"]


@pytest.fixture
def interrupted() -> Iterator[threading.Event]:
    """An event that is set by Ctrl-C. Only the first Ctrl-C interrupts."""
    event = threading.Event()

    def handle(*_: object) -> None:
        if not event.is_set():
            event.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    yield event
    signal.signal(signal.SIGINT, before)


def run_until_interrupted(
    run_command: Run, line: str, interrupted: threading.Event, interrupt: Callable[[], object]
) -> Done:
    """Run a command against a server that interrupts it after its request instead of responding."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
                interrupt()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        done = run_command(line, f"http://127.0.0.1:{listener.getsockname()[1]}", "--timeout", "60")
        interrupted.set()  # also if it has stopped for another reason
        thread.join(60)
    return done


@pytest.mark.parametrize("line", SERVER_CHECKS)
def test_ctrl_c_ends_a_command_that_waits_for_a_response(
    run_command: Run, interrupted: threading.Event, line: str
) -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while not interrupted.wait(7):  # a signal just before a wait does not interrupt it
            os.kill(os.getpid(), signal.SIGINT)

    done = run_until_interrupted(run_command, line, interrupted, interrupt)
    ends = line.startswith("top")  # which Ctrl-C stops normally
    assert (done.code, done.out) == (ExitCode.DONE if ends else ExitCode.INTERRUPTED, "")
    assert ends or done.error["code"] == "interrupted"


@pytest.mark.slow
def test_ctrl_c_just_before_the_wait_for_a_record_is_handled_after_the_wait(
    run_command: Run, interrupted: threading.Event
) -> None:
    in_time = []

    def interrupt() -> None:
        interrupt_main()
        in_time.append(interrupted.wait(20))

    assert (
        run_until_interrupted(run_command, "tail nope", interrupted, interrupt).code
        == ExitCode.INTERRUPTED
    )
    assert in_time == [True], "the interrupt was noticed only after the response"

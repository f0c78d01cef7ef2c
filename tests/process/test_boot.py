"""The steps before the first fork: keys and settings, the listening socket, imports."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.process.boot_support import mistakes
from tests.support.api import Api, ok
from tests.support.server import Server
from topics.process import boot
from topics.process.serve import listen, url_of

ROOT = Path(__file__).parents[2]


# §0.2: bind address, and the refusal of a server without keys


def test_a_refused_bind_address_is_reported_together_with_other_errors() -> None:
    assert mistakes({"TOPICS_HOST": "0.0.0.0", "TOPICS_PORT": "x"}).keys() == {
        "TOPICS_HOST",
        "TOPICS_PORT",
    }
    assert mistakes({"TOPICS_HOST": "0.0.0.0", "TOPICS_API_KEYS": "k:fly"}).keys() == {
        "TOPICS_API_KEYS"
    }


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.5", "topics.example.com", "0", "127.1"]
)
def test_a_reachable_host_without_keys_is_refused(host: str) -> None:
    assert "no keys are configured" in mistakes({"TOPICS_HOST": host})["TOPICS_HOST"]
    assert not boot.read({"TOPICS_HOST": host, "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"}).access.enabled
    assert boot.read({"TOPICS_HOST": host, "TOPICS_API_KEYS": "k"}).access.enabled


@pytest.mark.parametrize("keys", ["", " ", None])
def test_an_empty_key_variable_counts_as_no_keys(keys: str | None) -> None:
    environ = {"TOPICS_HOST": "0.0.0.0"} | ({} if keys is None else {"TOPICS_API_KEYS": keys})
    assert mistakes(environ).keys() == {"TOPICS_HOST"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_a_loopback_address_without_keys_is_allowed(host: str) -> None:
    assert not boot.read({"TOPICS_HOST": host}).access.enabled


# Sources of keys


def test_keys_of_all_sources_are_used_and_files_may_have_lines_and_comments(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(
        "# producers\nprod:w:tenant1:\r\n\n  two:r , three\n  # the end, no key\n"
    )
    (tmp_path / "topics.api-keys").write_text("four")
    environ = {
        "TOPICS_API_KEYS": "one",
        "TOPICS_API_KEYS_FILE": str(tmp_path / "keys"),
        "CREDENTIALS_DIRECTORY": str(tmp_path),
    }
    access = boot.read(environ).access
    assert all(access.authenticate(key) for key in (b"one", b"prod", b"two", b"three", b"four"))
    assert len(access.principals) == 5
    assert "TOPICS_API_KEYS" not in environ


def test_the_same_key_from_two_sources_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one:r")
    found = mistakes({"TOPICS_API_KEYS": "one", "TOPICS_API_KEYS_FILE": str(tmp_path / "keys")})
    assert "twice" in found["TOPICS_API_KEYS"]


SEARCH_MYSELF = """
import os, re, sys
from topics.process import boot

secret = bytearray(byte ^ 0x55 for byte in bytes.fromhex(sys.argv[1]))
held = os.environb[b"TOPICS_API_KEYS"]  # the very object that os.environ has
access = boot.read(os.environ).access
assert not any(held), "the object that os.environ had"
assert access.authenticate(secret) is not None
assert secret not in os.popen("env").read().encode(), "a child's environment"
with open("/proc/self/environ", "rb", 0) as environ:
    assert secret not in environ.read(), "/proc/self/environ"
secret[:] = bytes(len(secret))

pattern = re.compile(b"[c]orrect-horse-battery-staple")  # does not match itself
found = 0
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for span, mode in [line.split()[:2] for line in maps]:
        start, end = (int(part, 16) for part in span.split("-"))
        if "w" in mode:
            memory.seek(start)
            found += len(pattern.findall(memory.read(end - start)))
print(found)
"""


@pytest.mark.slow
def test_no_plaintext_key_remains_in_the_memory_of_the_process_or_its_children() -> None:
    secret = b"correct-horse-battery-staple"
    hidden = bytes(byte ^ 0x55 for byte in secret).hex()
    keys = ",".join(
        [
            "first:r",
            f"{secret.decode()}:rw:tenant1:",
            *(f"other-{number}:r" for number in range(200)),
        ]
    )
    environ = {"TOPICS_API_KEYS": keys, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", SEARCH_MYSELF, hidden],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


HANG_UPS = """
import os, signal, sys
from topics.cli import block_sighup

if sys.argv[1] == "ignored":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
block_sighup()
os.kill(os.getpid(), signal.SIGHUP)
print(signal.SIGHUP in signal.sigpending())
"""


@pytest.mark.parametrize("inherited", ["default", "ignored"])
def test_a_hang_up_signal_is_held_until_it_is_handled(inherited: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANG_UPS, inherited],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True\n")


# The listening socket


def test_a_listener_accepts_connections_and_a_second_server_cannot_take_its_port() -> None:
    with listen("127.0.0.1", 0) as listener:
        with socket.create_connection(listener.getsockname(), 5):
            pass
        assert not os.get_inheritable(listener.fileno())
        with pytest.raises(OSError, match="in use") as refused:
            listen("127.0.0.1", listener.getsockname()[1])
        assert refused.value.errno == errno.EADDRINUSE


def test_a_host_name_with_both_kinds_of_addresses_uses_the_ipv4_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with listen("both", 0) as listener:
        assert listener.family == socket.AF_INET


def test_the_url_of_a_listener_has_brackets_around_an_ipv6_address() -> None:
    class Bound(socket.socket):
        def __init__(self, *address: object) -> None:
            super().__init__()
            self.address = address

        def getsockname(self) -> tuple[object, ...]:
            return self.address

    with Bound("127.0.0.1", 4000) as four, Bound("::1", 4000, 0, 0) as six:
        assert url_of(four) == "http://127.0.0.1:4000"
        assert url_of(six) == "http://[::1]:4000"


# Imports of the parent


PROGRAM = """
import gc, sys, threading
from topics.process import serve
before = gc.isenabled(), gc.get_freeze_count()
parent_modules = {"trio", "topics.actors.rpc.message_router", "topics.process.shard_writer"}
for load in (serve.load_shared, serve.load_shard):
    load()
    print(
        sorted(parent_modules & {*sys.modules}),
        [name for name in sys.modules if name.startswith(("topics.front", "topics.process.front"))],
        threading.active_count(),
        before[0] and gc.isenabled(),
        gc.get_freeze_count() > before[1],
    )
"""


@pytest.mark.slow
def test_the_parent_imports_shared_modules_before_the_fork_and_runs_no_threads() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    all_share, shards_run = done.stdout.splitlines()
    assert all_share == "['topics.actors.rpc.message_router', 'trio'] [] 1 True True"
    assert shards_run == (
        "['topics.actors.rpc.message_router', 'topics.process.shard_writer', 'trio'] [] 1 True True"
    )


SERVER = """
import os, runpy, signal, sys, threading, time
from pathlib import Path

folder = Path(sys.argv.pop())

def write_modules(*_):
    file = folder / str(os.getpid())
    file.with_suffix(".part").write_text(" ".join(sys.modules))
    file.with_suffix(".part").rename(file)

def write_when_requested():
    while not (folder / "requested").exists():
        time.sleep(0.02)
    write_modules()

signal.signal(signal.SIGUSR1, write_modules)  # in the parent, which may have no threads
os.register_at_fork(after_in_child=threading.Thread(target=write_when_requested, daemon=True).start)
runpy.run_path("supervisor.py", run_name="__main__")
"""
FOR_PEOPLE = {"httpx2", "httpcore2", "anyio", "rich", "markdown_it", "pygments"}
UNUSED = {"asyncio", "ssl", "idna", "email", "argparse", "tarfile", "typing_extensions", "greenlet"}


def modules_of(pid: int, folder: Path) -> set[str]:
    """Return the modules that a process has imported, after it has written the list."""
    deadline = time.monotonic() + 30
    while not (folder / str(pid)).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return {*(folder / str(pid)).read_text().split()}


@pytest.mark.slow
def test_no_process_of_a_server_imports_the_client_the_commands_or_their_libraries(
    tmp_path: Path,
) -> None:
    """They would cost each process memory and time."""
    server = Server(tmp_path / "data", shards=1)
    server.command = [sys.executable, "-c", SERVER, str(tmp_path)]
    with server, Api(server.address) as api:
        ok(api.append("orders", [1]), 201)
        ok(api.put("jobs", {"type": "queue"}), 201)
        ok(api.call("GET", "/v0/topics/jobs/leases"))  # Served by the admin plane
        (tmp_path / "requested").touch()
        os.kill(server.pid, signal.SIGUSR1)
        front, shard = (server.roles()[role] for role in ("front 0", "shard 0"))
        processes = {
            "topics.process.supervisor": server.pid,
            "topics.front.admin.application": front,
            "topics.process.shard_writer": shard,
        }
        for own, pid in processes.items():
            modules = modules_of(pid, tmp_path)
            assert own in modules
            assert not {name.partition(".")[0] for name in modules} & FOR_PEOPLE
            assert not modules & {"topics.client", "topics.spark"}
            assert pid == front or not modules & UNUSED


def test_server_modules_can_be_imported_together_with_rich() -> None:
    program = "import topics.process, rich, structlog; print(structlog.dev.rich, rich.__name__)"
    assert printed_by(program) == "None rich\n"


def test_a_deferred_module_is_imported_when_it_is_used() -> None:
    program = (
        "import sys, topics.process, structlog; print('asyncio' in sys.modules);"
        "used = structlog.stdlib.asyncio.get_running_loop; import asyncio;"
        "print(used is asyncio.get_running_loop, structlog.stdlib.asyncio is asyncio)"
    )
    assert printed_by(program) == "False\nTrue False\n"


def test_a_deferred_module_whose_names_are_imported_is_imported_immediately() -> None:
    program = (
        "import sys; from topics.imports import lazily\n"
        "with lazily('colorsys'):\n"
        "    from colorsys import hls_to_rgb\n"
        "    import colorsys\n"
        "print(colorsys.hls_to_rgb is hls_to_rgb, sys.modules['colorsys'] is colorsys)"
    )
    assert printed_by(program) == "True True\n"


def test_checksums_equal_those_of_the_crc32c_package() -> None:
    checked = "crc32c.crc32c(b'456789', crc32c.crc32c(b'123'))"
    assert printed_by(f"import topics.process, crc32c; print({checked})") == f"{0xE3069283}\n"


def printed_by(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

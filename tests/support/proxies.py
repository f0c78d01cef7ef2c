"""The reverse proxies nginx and Caddy of this machine, with the site configurations of `deploy/`.

    client --plain--> Tunnel --TLS, from CLIENT--> proxy --plain, from 127.0.0.1--> server

The test clients speak plain HTTP. A tunnel speaks TLS for them. Each test process has its
own address within 127.0.0.0/8, where all ports are free.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import pytest
import trio

from tests.support.api import Api

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
CLIENT: Final = "127.0.0.2"  # The address that the proxies see
START_S: Final = 30.0
STOP_S: Final = 20.0
_ports = itertools.count(8000)
NGINX: Final = """
daemon off;
{user}
pid {folder}/nginx.pid;
error_log {folder}/errors;
events {{}}
http {{
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/answers;
    include {folder}/topics.conf;
}}
"""


def own_address() -> str:
    """Return an address that no other test process uses."""
    pid = os.getpid()
    return f"127.{64 + (pid >> 16) % 64}.{pid >> 8 & 255}.{pid & 255}"


def next_port() -> int:
    """Return an unused port of this address."""
    return next(_ports)


def certificate(folder: Path) -> Path:
    """Return a self-signed certificate for localhost. Its key is in the file with the suffix
    ``.key``.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    file = folder / "topics.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", file.with_suffix(".key"), "-out", file),
        ],
        check=True,
        capture_output=True,
    )
    return file


def with_changes(text: str, changes: Mapping[str, str]) -> str:
    """Return a shipped file with other addresses, paths or times. Each replaced text must occur in
    the file.
    """
    for shipped, other in changes.items():
        assert shipped in text, f"{shipped} is not in the file"
        text = text.replace(shipped, other)
    return text


class Tunnel:
    """A tunnel that listens on a port of 127.0.0.1 and speaks TLS with ``target``. If one side
    closes, the other is closed too.
    """

    def __init__(self, target: tuple[str, int], authority: Path) -> None:
        self._target = target
        self._context = ssl.create_default_context(cafile=str(authority))
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop, self._is_open = trio.Event(), threading.Event()
        self.address = ("127.0.0.1", 0)
        self._thread = threading.Thread(target=trio.run, args=(self._run,), daemon=True)
        self._thread.start()
        assert self._is_open.wait(START_S)

    def close(self) -> None:
        """Cut every connection."""
        assert self._token is not None
        self._token.run_sync_soon(self._stop.set)
        self._thread.join(STOP_S)

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            serve = partial(trio.serve_tcp, self._pass_on, 0, host="127.0.0.1")
            (listener,) = await nursery.start(serve)
            self.address = listener.socket.getsockname()
            self._is_open.set()
            await self._stop.wait()
            nursery.cancel_scope.cancel()

    async def _pass_on(self, near: trio.SocketStream) -> None:
        with suppress(OSError, trio.BrokenResourceError):
            async with near:
                raw = await trio.open_tcp_stream(*self._target, local_address=CLIENT)
                far: trio.SSLStream[Any] = trio.SSLStream(
                    raw, self._context, server_hostname="localhost", https_compatible=True
                )
                async with far, trio.open_nursery() as nursery:
                    nursery.start_soon(_pump, near, far, nursery.cancel_scope)
                    nursery.start_soon(_pump, far, near, nursery.cancel_scope)


async def _pump(source: trio.abc.Stream, sink: trio.abc.Stream, both: trio.CancelScope) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while chunk := await source.receive_some():
            await sink.send_all(chunk)
    both.cancel()


class Proxy:
    """A running proxy. ``address`` is for plain clients; ``tls`` is the address on which the proxy
    listens.
    """

    program = ""

    def __init__(
        self, folder: Path, target: tuple[str, int], changes: Mapping[str, str] | None = None
    ) -> None:
        """Prepare a proxy. ``changes`` are replaced in the shipped file, in addition to addresses
        and paths.
        """
        self.folder, self.tls = folder, (own_address(), next_port())
        self.certificate = certificate(folder)
        self._changes = {"127.0.0.1:4000": "{}:{}".format(*target), **(changes or {})}
        self._log = folder / "output"

    @classmethod
    def found(cls) -> str:
        """Return the path of the program, or skip the test."""
        path = shutil.which(cls.program, path=f"{os.environ['PATH']}:/usr/sbin")
        if path is None:
            pytest.skip(f"{cls.program} is not installed")
        return path

    def command(self) -> list[str]:
        """Write the files and return the command to run."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        command = self.command()
        own = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")  # Folders in which Caddy stores its data
        env = os.environ | dict.fromkeys(own, str(self.folder))
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=env, stdout=output, stderr=output
            )
        self._tunnel = Tunnel(self.tls, self.certificate)
        try:
            self._wait_open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._tunnel.close()
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def address(self) -> tuple[str, int]:
        return self._tunnel.address

    def _wait_open(self) -> None:
        until = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < until:
            with suppress(OSError, EOFError), Api(self.address) as api:
                api.call("GET", "/v0/health")
                return
            time.sleep(0.01)
        raise AssertionError(f"{self.program} does not start:\n{self.logged}")

    @property
    def logged(self) -> str:
        """Return everything that the proxy has logged."""
        files = [self._log, *self.folder.glob("*.log"), self.folder / "errors"]
        return "\n".join(file.read_text() for file in files if file.exists())


class Nginx(Proxy):
    """nginx with `deploy/nginx.conf`."""

    program = "nginx"

    def command(self) -> list[str]:
        site = with_changes(
            (DEPLOY / "nginx.conf").read_text(),
            {
                "listen 443": "listen {}:{}".format(*self.tls),
                "/etc/ssl": str(self.folder),
                "/var/log/nginx": str(self.folder),
                **self._changes,
            },
        )
        (self.folder / "topics.conf").write_text(site)
        user = "user root;" if os.getuid() == 0 else ""
        main = self.folder / "nginx.conf"
        main.write_text(NGINX.format(folder=self.folder, user=user))
        return [self.found(), "-p", str(self.folder), "-e", str(self.folder / "errors"),
                "-c", str(main)]  # fmt: skip


class Caddy(Proxy):
    """Caddy with `deploy/Caddyfile`, and a test certificate instead of one from the internet."""

    program = "caddy"

    def command(self) -> list[str]:
        host, port = self.tls
        pem, key = self.certificate, self.certificate.with_suffix(".key")
        site = f"https://:{port} {{\n    bind {host}\n    tls {pem} {key}\n"
        text = with_changes(
            (DEPLOY / "Caddyfile").read_text(),
            {
                "\n{\n": "\n{\n    admin off\n    auto_https off\n",
                "topics.example.com {\n": site,
                **self._changes,
            },
        )
        file = self.folder / "Caddyfile"
        file.write_text(text)
        return [self.found(), "run", "--config", str(file), "--adapter", "caddyfile"]


def ms_of(text: str, name: str) -> int:
    """Return a time of a site configuration in the form ``name 75s``, in milliseconds."""
    (seconds,) = re.findall(rf"^\s*{name}\s+(\d+)s\b", text, re.MULTILINE)
    return 1000 * int(seconds)


@contextmanager
def running(kind: type[Proxy], folder: Path, *args: Any) -> Iterator[Proxy]:
    """Run a proxy in a new folder, or skip the test if it is not installed."""
    kind.found()
    folder.mkdir()
    with kind(folder, *args) as proxy:
        yield proxy

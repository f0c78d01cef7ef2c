"""The command ping: measures the time from append to delivery, through all proxies.

    append --> server --> event stream or WebSocket --> this process
                          a heartbeat each second distinguishes a slow server from a proxy that
                          buffers the stream

Each run has its own ephemeral topic, which is deleted at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import monotonic, sleep
from typing import Any, Final, Self
from urllib.parse import urlencode

import click
import httpx2
import msgspec
from httpx2.websockets import HTTPXWSException, WebSocketUpgradeError

from topics.cli.measure import TEMPORARY_ERRORS, own_topic, percentile
from topics.cli.shell import Shell, command, pass_shell
from topics.cli.units import DURATION, Duration
from topics.client import ConnectionLost, Topics
from topics.client.errors import error_of
from topics.client.http import lost
from topics.client.sync import Topic
from topics.client.watching import ended
from topics.errors import ExitCode

CONFIG: Final = {"durability": "ephemeral", "cap_records": 100}
HEARTBEAT_S: Final = 1.0
HEARTBEAT_MAX_S: Final = 2.5  # after a longer silence, heartbeats count as missing
BUFFERS: Final = (
    "a proxy between this machine and the server buffers the stream: its heartbeats, one per"
    " second, are late as well. Switch off its buffering (nginx: proxy_buffering off; and no gzip)"
)
SLOW: Final = (
    "heartbeats arrive, the record does not: the server is slow (topics doctor, topics top)"
)

# A stream yields the header fields of its response, then the payload of each record, and None for
# each heartbeat. It raises `TopicsError`, or `TimeoutError` if nothing is received.
Stream = Generator[Any]


@command("ping")
@click.option("--via", type=click.Choice(["watch", "ws"]), default="watch", show_default=True,
              help="Receive over an event stream or a WebSocket.")  # fmt: skip
@click.option(
    "-n", "--count", type=click.IntRange(min=1), help="Stop after this number of records."
)
@click.option("--interval", type=DURATION, default="1s", show_default=True)
@click.option("--wait", type=Duration(least=3000), default="5s", show_default=True,
              help="The timeout for a record.")  # fmt: skip
@pass_shell
def ping(shell: Shell, via: str, count: int | None, interval: int, wait: int) -> ExitCode:
    """Measure the time from append to delivery.

    Each record is appended and received through all proxies on the path, and a proxy that buffers
    streams is reported. The key needs the scopes read, write, admin and delete. Press Ctrl-C to
    stop. The exit code is 1 if a record did not arrive in time.
    """
    results: list[dict[str, Any]] = []
    with shell.client() as client, own_topic(shell, client, "ping", **CONFIG) as name:
        listen = by_web_socket if via == "ws" else by_watch
        with PingRun(client.topic(name), listen, wait / 1000) as run:
            try:
                while len(results) != count:
                    sleep(interval / 1000 if results else 0)
                    results.append(run.ping(len(results) + 1))
                    text = "{ping}  {ms} ms  acknowledged after {ack_ms} ms  {why}"
                    _show(shell, results[-1], text)
            except KeyboardInterrupt:
                pass
    times = [each["ms"] for each in results if each["ms"] is not None]
    shares = {"min_ms": 0.0, "median_ms": 0.5, "p99_ms": 0.99}
    found: dict[str, Any] = {name: percentile(times, share) for name, share in shares.items()}
    found |= {"sent": len(results), "arrived": len(times), "proxy": run.proxy}
    figures = "min {min_ms} ms  median {median_ms} ms  p99 {p99_ms} ms"
    _show(shell, found, "{sent} sent, {arrived} arrived  " + figures + "  {proxy}")
    return ExitCode.DONE if len(times) == len(results) else ExitCode.FAILED


def _show(shell: Shell, found: dict[str, Any], text: str) -> None:
    if shell.is_json:
        shell.emit(found)
    else:
        shown = {name: "-" if value is None else value for name, value in found.items()}
        click.echo(text.format(**shown).rstrip(" -"))


class PingRun:
    """A topic, and a stream that is opened again when it ends. ``proxy`` contains the header fields
    in which proxies on the path identify themselves.
    """

    def __init__(self, topic: Topic, listen: Callable[..., Stream], wait_s: float) -> None:
        self._topic, self._listen, self._wait_s = topic, listen, wait_s
        self._stream: Stream | None = None
        self.proxy: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        """Close the stream in this thread. The garbage collector would close an unreferenced
        stream in any thread, which may then deadlock with itself.
        """
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    def ping(self, number: int) -> dict[str, Any]:
        """Send a record and wait for it. Return its time as ``ms``, or the reason as ``why`` if it
        is late. Raise `TopicsError` if the first record cannot be sent.
        """
        found = dict.fromkeys(("ms", "ack_ms", "why"))
        try:
            stream = self._stream = self._stream or self._begin()
            began = heard = monotonic()
            self._topic.append(number)
            found["ack_ms"] = _ms_since(began)
            silence_s = 0.0  # longest time without a heartbeat or a record
            for payload in stream:
                now = monotonic()
                silence_s, heard = max(silence_s, now - heard), now
                if payload == number:
                    found["ms"] = _ms_since(began)
                    break
                if now - began >= self._wait_s:
                    found["why"] = SLOW
                    break
            else:
                raise ended()
            if silence_s >= HEARTBEAT_MAX_S:
                found["why"] = BUFFERS
        except TimeoutError:
            self._end()
            found["why"] = BUFFERS
        except TEMPORARY_ERRORS as failure:
            if number == 1:
                raise
            self._end()
            found["why"] = failure.message
        return {"ping": number, **found}

    def _begin(self) -> Stream:
        stream = self._listen(self._topic.client, self._topic.name, self._wait_s)
        headers = next(stream)
        named = (f"{name}: {headers[name]}" for name in ("via", "server") if name in headers)
        self.proxy = ", ".join(named) or None
        return stream


def _ms_since(began: float) -> float:
    return round(1000 * (monotonic() - began), 2)


def by_watch(client: Topics, topic: str, wait_s: float) -> Stream:
    """Receive over an event stream."""
    query = urlencode({"topic": topic, "heartbeat_ms": int(1000 * HEARTBEAT_S)})
    headers, path = {"Accept": "text/event-stream"}, f"/v0/watch?{query}"
    try:
        with client.http.stream("GET", path, headers=headers, timeout=wait_s) as answer:
            if answer.status_code != 200:
                raise error_of(answer.status_code, answer.headers, answer.read())
            yield answer.headers
            for line in answer.iter_lines():
                yield from _payloads(line[5:]) if line.startswith("data:") else (None,)
    except httpx2.ReadTimeout:
        raise TimeoutError from None
    except httpx2.RequestError as error:
        raise lost(error, client.target) from error


def by_web_socket(client: Topics, topic: str, wait_s: float) -> Stream:
    """Receive over a WebSocket. Its heartbeats are too rare, so pings request one each second."""
    try:
        with client.http.websocket("/v0/ws", timeout=wait_s) as socket:
            assert socket.response is not None
            yield socket.response.headers
            socket.send_json({"op": "subscribe", "topic": topic, "from_seq": 0})
            heard = monotonic()
            while True:
                try:
                    yield from _payloads(socket.receive_text(HEARTBEAT_S))
                    heard = monotonic()
                except TimeoutError:
                    if monotonic() - heard >= wait_s:
                        raise
                    socket.send_json({"op": "ping"})
    except WebSocketUpgradeError as error:
        raise error_of(error.response.status_code, error.response.headers, b"") from None
    except httpx2.ReadTimeout:
        raise TimeoutError from None
    except (httpx2.RequestError, HTTPXWSException) as error:
        raise ConnectionLost(f"{client.target.url}: {error or type(error).__name__}") from error


def _payloads(text: str) -> list[Any]:
    """Return the payloads of the records in a message, or a single None if it has no records."""
    records = msgspec.json.decode(text).get("records", ())
    return [record["data"] for record in records] or [None]

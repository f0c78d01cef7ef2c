"""The WebSocket route: a handshake is answered before the connection changes its protocol."""

from __future__ import annotations

from tests.support.front import HANDSHAKE, Running, running
from tests.support.raw_client import RawClient, request
from tests.support.ws import TEXT, accept_of, frame_bytes
from topics.front.limits import Cap

SHAKE = request("GET", "/v0/ws", b"", **HANDSHAKE)
PING = frame_bytes(TEXT, b'{"op":"ping","request_id":1}', mask=b"abcd")
PONG = frame_bytes(TEXT, b'{"op":"pong","request_id":1}')


async def heard(client: RawClient, end: bytes) -> bytes:
    """All that came, up to this end."""
    while not client._buffer.endswith(end):
        await client._more()
    return client._buffer


async def fill(run: Running) -> None:
    """Let one socket take all the room there is."""
    run.server.slots.streams.in_all = Cap("max_streams", 1)
    client = await run.connect()
    await client.say(SHAKE + PING)
    await heard(client, PONG)


async def test_a_handshake_makes_the_connection_a_socket_for_what_follows_it() -> None:
    async with running() as run:
        client = await run.connect()
        await client.say(SHAKE + PING)
        head, _, frames = (await heard(client, PONG)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        accept = f"sec-websocket-accept: {accept_of(HANDSHAKE['sec_websocket_key'])}"
        assert accept.encode() in head
        assert frames == PONG
        run.stop.set()


async def test_without_room_for_one_more_stream_the_connection_stays_http() -> None:
    async with running() as run:
        await fill(run)
        client = await run.connect()
        await client.say(SHAKE)
        answer = await client.hear()
        assert (answer.status, answer.code) == (429, "throttled")
        assert answer.json()["error"]["detail"]["limit"] == "max_streams"
        assert (await client.ask("GET", "/v0/health")).status == 200


async def test_a_request_that_is_no_handshake_is_told_so_also_without_room() -> None:
    async with running() as run:
        await fill(run)
        client = await run.connect()
        answer = await client.ask("GET", "/v0/ws")
        assert (answer.status, answer.headers["upgrade"]) == (426, "websocket")

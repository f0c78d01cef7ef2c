"""The decoder and the frames beside another implementation of RFC 6455, wsproto."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from wsproto import events as peer
from wsproto.connection import Connection, ConnectionState, ConnectionType

from tests.support.websocket_streams import STREAMS, parse
from topics.formats.api.websocket_frames import (
    Binary,
    Close,
    Event,
    Failure,
    Ping,
    Pong,
    Text,
    close_frame,
    ping_frame,
    pong_frame,
    text_frame,
)

BAD_GATEWAY = 1014  # the newest close code in IANA's registry


def peers_view(stream: bytes) -> list[Event]:
    """What wsproto makes of a client's stream."""
    connection = Connection(ConnectionType.SERVER)
    connection.receive_data(stream)
    events: list[Event] = []
    parts: list[bytes] = []
    for event in connection.events():
        if isinstance(event, peer.TextMessage | peer.BytesMessage):
            parts.append(event.data.encode() if isinstance(event.data, str) else bytes(event.data))
            if event.message_finished:
                kind = Text if isinstance(event, peer.TextMessage) else Binary
                events.append(kind(b"".join(parts)))
                parts.clear()
        elif isinstance(event, peer.Ping):
            events.append(Ping(bytes(event.payload)))
        elif isinstance(event, peer.Pong):
            events.append(Pong(bytes(event.payload)))
        elif isinstance(event, peer.CloseConnection):
            events.append(Close(int(event.code), event.reason or ""))
    return events


MESSAGES = st.lists(
    st.one_of(
        st.builds(peer.TextMessage, data=st.text(max_size=300), message_finished=st.booleans()),
        st.builds(peer.BytesMessage, data=st.binary(max_size=300), message_finished=st.booleans()),
        st.builds(peer.Ping, payload=st.binary(max_size=125)),
        st.builds(peer.Pong, payload=st.binary(max_size=125)),
    ),
    max_size=8,
)


@given(MESSAGES, st.sampled_from([None, 1000, 1012, 3000, 4999]), st.text(max_size=20))
def test_frames_of_another_implementation_are_decoded_as_it_decodes_them(
    messages: list[peer.Event], code: int | None, reason: str
) -> None:
    client, open_kind = Connection(ConnectionType.CLIENT), None
    sent = []
    for message in messages:
        if isinstance(message, peer.Message):
            if open_kind not in (None, type(message)):
                continue  # it would begin within the other
            open_kind = None if message.message_finished else type(message)
        sent.append(client.send(message))
    if code is not None:
        sent.append(client.send(peer.CloseConnection(code=code, reason=reason)))
    stream = b"".join(sent)
    assert parse(stream) == peers_view(stream)


@given(
    st.lists(st.text(max_size=300), max_size=5),
    st.binary(max_size=125),
    st.sampled_from([1000, 1009, 4000]),
    st.text(max_size=200),
)
def test_encoded_frames_are_decoded_by_another_implementation(
    texts: list[str], payload: bytes, code: int, reason: str
) -> None:
    client = Connection(ConnectionType.CLIENT)
    for text in texts:
        client.receive_data(text_frame(text.encode()))
    client.receive_data(text_frame(b"x" * 70_000))
    client.receive_data(ping_frame(payload) + pong_frame(payload) + close_frame(code, reason))
    *told, ping, pong, close = client.events()
    assert (
        "".join(event.data for event in told if isinstance(event, peer.TextMessage))
        == "".join(texts) + "x" * 70_000
    )
    assert isinstance(ping, peer.Ping)
    assert isinstance(pong, peer.Pong)
    assert ping.payload == pong.payload == payload
    assert isinstance(close, peer.CloseConnection)
    assert close.code == code
    assert reason.startswith(close.reason or "")
    assert client.state is ConnectionState.REMOTE_CLOSING


@given(STREAMS)
def test_another_implementation_finds_the_same_events_before_a_failure(stream: bytes) -> None:
    events = parse(stream)
    if events and isinstance(events[-1], Failure):
        return  # wsproto notices some of it later
    if events and isinstance(events[-1], Close) and events[-1].code == BAD_GATEWAY:
        return  # wsproto does not know this code
    assert peers_view(stream)[: len(events)] == events

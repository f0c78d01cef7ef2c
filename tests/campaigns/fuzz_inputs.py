"""Inputs of `tests.campaigns.fuzz`: bytes, and the permitted effects of these bytes.

The module is pure: the source of randomness determines all inputs.

kind      topic      permitted effect
broken    never.*    no success, and the topic is never created: certainly malformed
mutated   maybe.*    any well-formed response; acknowledged records are stored, and no others
"""

from __future__ import annotations

import gzip
import json
import random
import re
from dataclasses import dataclass
from typing import Any

from tests.campaigns.hostile import malformed
from tests.support.api import request
from tests.support.ws import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, frame_bytes, handshake

BROKEN, MUTATED = "broken", "mutated"
PLANES = ("data", "admin", "socket")
JSON_CHUNKED = ("Content-Type: application/json", "Transfer-Encoding: chunked")
RECORDS = (
    b'{"records":[{"data":{"a":[1,2.50,"\xc3\xa9\\u00e9"]},"tag":"t","meta":{"m":null}},'
    b'{"data":"x"}]}'
)
CONFIG = b'{"durability":"disk","description":"xyz"}'
ROUTER = b'{"source":"never.x","dest":"never.y"}'  # both topics would be created


@dataclass(frozen=True, slots=True)
class Case:
    """Bytes for one connection, and how they are split into sends."""

    kind: str
    name: str
    wire: bytes
    cuts: tuple[int, ...]
    publishes: int = 0  # over a WebSocket; the close of the connection may overtake their responses

    def fragments(self) -> list[bytes]:
        ends = [*self.cuts, len(self.wire)]
        return [
            self.wire[start:end]
            for start, end in zip([0, *ends], ends, strict=False)
            if end > start
        ]


def case(source: random.Random, plane: str, worker: int) -> Case:
    """Return the next case of a worker."""
    kind, publishes = source.choice((BROKEN, MUTATED)), 0
    if plane == "socket":
        name, wire, publishes = _socket_case(source, worker, kind)
    elif kind == BROKEN:
        name, wire = _broken(source, plane, worker)
    else:
        content = source.choice(
            _data_requests(worker) if plane == "data" else _admin_requests(worker)
        )
        name, wire = "request", mutated(source, content)
    most = min(max(len(wire) - 1, 0), source.choice((0, 0, 1, 3, 40)))
    cuts = sorted(source.sample(range(1, max(len(wire), 1)), most))
    return Case(kind, name, wire, tuple(cuts), publishes)


# HTTP: certainly malformed


def _broken(source: random.Random, plane: str, worker: int) -> tuple[str, bytes]:
    method, path, body = (
        ("POST", f"/v0/topics/never.{worker}", RECORDS)
        if plane == "data"
        else ("PUT", f"/v0/routers/never.{worker}", ROUTER)
    )
    content = request(method, path, body)
    compressed = gzip.compress(body, mtime=0)

    def framed(framing: bytes, rest: bytes = body) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return head.encode() + framing + b"\r\n\r\n" + rest

    def length(text: str) -> bytes:
        return framed(f"Content-Length: {text}".encode())

    def with_field(field: bytes) -> bytes:
        return content.replace(b"\r\n", b"\r\n" + field + b"\r\n", 1)

    choice, many = source.choice, (1, 2, 1000, 10**6, 10**9, 10**17)
    x, lengths = bytes([source.randrange(32)]), ("", "-1", "+5", "0x1f", "1e3", "5, 5", "٣", "nan")
    deep = b',"a":' + b"[" * source.randint(1, 30_000)
    chunked = request(method, path, None, *JSON_CHUNKED)
    kinds: dict[str, bytes] = {
        "hostile": malformed(source),
        "cut": content[: source.randint(1, len(content) - 1)],
        "too short a length": length(str(source.randint(1, len(body) - 1))),
        "too long a length": length(str(len(body) + choice(many))),
        "no length": length(choice((*lengths, "9" * 40))),
        "two lengths": with_field(b"Content-Length: %d" % len(body)),
        "both framings": with_field(b"Transfer-Encoding: chunked"),
        "another coding": framed(b"Transfer-Encoding: " + choice(CODINGS)),
        "two hosts": with_field(b"Host: localhost"),
        "no host": content.replace(b"Host: localhost\r\n", b""),
        "a foreign host": content.replace(b"Host: localhost", b"Host:" + choice(HOSTS)),
        "a bad octet in a field": with_field(b"X-A: a" + choice(BAD_OCTETS) + b"b"),
        "a bad field name": with_field(choice(BAD_NAMES)),
        "a bad line": re.sub(rb"^(\S+) (\S+) (\S+)", choice(LINES), content, count=1),
        "another version": content.replace(b"HTTP/1.1", choice(VERSIONS)),
        "the preface": PREFACE + source.randbytes(source.randint(0, 200)),
        "a long head": with_field(b"X-A: " + b"a" * source.randint(66_000, 90_000)),
        "bad UTF-8": request(method, path, body.replace(b"x", choice(BAD_UTF8), 1)),
        "a control character": request(method, path, body.replace(b"x", x, 1)),
        "bad JSON": request(method, path, body[:-1] + choice(BAD_ENDS)),
        "deep JSON": request(method, path, body[:-1] + deep),
        "bad chunks": chunked + _bad_chunks(source, body),
        "bad gzip": request(method, path, _corrupted(source, compressed), GZIPPED),
        "cut gzip": request(
            method, path, compressed[: source.randint(1, len(compressed) - 1)], GZIPPED
        ),
    }
    name = choice(sorted(kinds))
    return name, kinds[name]


LINES = (
    *(rb"\1  \2 \3", rb"\1 \2 x \3", b"\\1 \\2\xc3\xa9 \\3", rb"\1 \2", rb"\1\t\2 \3"),
    *(rb" \1 \2 \3", rb"(\1) \2 \3", rb"\1 %2e\2 \3", rb"\1 \2%0a \3"),
)
VERSIONS = (b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.2", b"http/1.1", b"HTTP/1")
BAD_ENDS = (b"", b",}", b"}}", b"]", b',"a":NaN}', b',"a":01}', b"\0}")
PREFACE, GZIPPED = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "Content-Encoding: gzip"
CODINGS = (b"gzip", b"chunked, chunked", b"x", b"chunked;q=1")
HOSTS = (b" evil.example", b" a..b", b" @", b"")
BAD_OCTETS = (b"\0", b"\n", b"\r", b"\x7f", b"\x1b", b"\r\n b")
BAD_NAMES = (b"X A: b", b": b", b"X-A : b", b"\xc3\xa9: b", b"XA", b" X: y")
BAD_UTF8 = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5")


def _bad_chunks(source: random.Random, body: bytes) -> bytes:
    half, rest = body[:20], body[20:]
    first = b"%x\r\n%b\r\n" % (len(half), half)
    last = b"%x\r\n%b\r\n" % (len(rest), rest)
    return first + source.choice(
        (
            b"g\r\n" + last,
            b"-1\r\n" + last,
            b"0x5\r\n" + last,
            b"\r\n" + last,
            b"f" * 17 + b"\r\n",
            b"f" * 16 + b"\r\n" + rest,
            last[:-2] + b"x\r\n0\r\n\r\n",
            last.replace(b"\r\n", b"\n", 1) + b"0\r\n\r\n",
            last + b"0\r\nno trailer\r\n\r\n",
            last + b"0\r\n",
            last[:-9],
            b"5;" + b"x" * 5000 + b"\r\n",
            b"0\r\n\r\n",
        )
    )


def _corrupted(source: random.Random, compressed: bytes) -> bytes:
    """Return the bytes with one flipped bit in the checksum or the length."""
    at = len(compressed) - 1 - source.randrange(8)
    return (
        compressed[:at] + bytes([compressed[at] ^ 1 << source.randrange(8)]) + compressed[at + 1 :]
    )


# HTTP: well-formed, then mutated


def _data_requests(worker: int) -> list[bytes]:
    path = f"/v0/topics/maybe.fast.{worker}"
    compressed = gzip.compress(RECORDS, mtime=0)
    first, rest = RECORDS[:20], RECORDS[20:]
    chunks = b"14;x=y\r\n%b\r\n%x\r\n%b\r\n0\r\na: b\r\n\r\n" % (first, len(rest), rest)
    return [
        request("POST", path, RECORDS),
        request("POST", f"http://localhost{path}?return_seqs=false", RECORDS),
        request("POST", path, None, *JSON_CHUNKED) + chunks,
        request("POST", path, compressed, "Content-Encoding: gzip"),
        request(
            "POST", f"{path}/diff", b'{"from_seq":0,"limit":2,"node":["n"],"tag":["Glob","t*"]}'
        ),
        request("POST", f"{path}/delete", b'{"match":["tag","Glob","q*"],"before_seq":2}'),
        request("POST", path, RECORDS) + request("POST", f"{path}/diff", b"{}"),
    ]


def _admin_requests(worker: int) -> list[bytes]:
    path = f"/v0/topics/maybe.admin.{worker}"
    return [
        request("PUT", path, CONFIG),
        request("PUT", path, None, *JSON_CHUNKED)
        + b"%x\r\n%b\r\n0\r\n\r\n" % (len(CONFIG), CONFIG),
        request("PUT", path, gzip.compress(CONFIG, mtime=0), "Content-Encoding: gzip"),
        request("GET", f"{path}?touch=false"),
        request("GET", "/v0/topics?prefix=maybe&page_size=3&touch=false"),
        request("PUT", f"/v0/routers/never.{worker}", ROUTER),
        request("GET", "/v0/routers?source=maybe.admin.0&page_size=3"),
        request("GET", f"/v0/topics/maybe.fast.{worker}/leases?page_size=2"),
        request("POST", f"{path}/redrive", b'{"max":3}'),
        request("GET", "http://localhost/v0/ready", None, "Upgrade: h2c", "HTTP2-Settings: AAMA"),
        request(
            "POST", "/v0/watch", b'{"topics":{"maybe.admin.0":{"from_seq":0}},"heartbeat_ms":5000}'
        ),
        request("GET", "/v0/watch/0123456789abcdef"),
        request("DELETE", f"/v0/topics/absent-from-here.{worker}?if_empty=true"),
        request("GET", "/v0/health") + request("GET", path),
    ]


def mutated(source: random.Random, wire: bytes) -> bytes:
    """Return the bytes with a few of them flipped, deleted, inserted or duplicated."""
    data = bytearray(wire)
    for _ in range(source.choice((1, 1, 2, 3))):
        at = source.randrange(len(data))
        what = source.randrange(5)
        if what == 0:
            data[at] ^= 1 << source.randrange(8)
        elif what == 1:
            data[at] = (
                source.choice(b'\0\r\n :;,{}[]"\\%/0\x7f\xff')
                if source.random() < 0.7
                else source.randrange(256)
            )
        elif what == 2:
            del data[at : at + source.choice((1, 1, 2, 8))]
        elif what == 3:
            data[at:at] = source.randbytes(source.choice((1, 1, 2, 8)))
        else:
            data[at:at] = data[at : at + source.choice((1, 2, 8, 30))]
        data = data or bytearray(b"\0")
    return bytes(data)


# WebSocket


def _socket_case(source: random.Random, worker: int, kind: str) -> tuple[str, bytes, int]:
    if kind == BROKEN:
        name, frames = _broken_frames(source, worker)
        return name, handshake() + frames, 0
    parts = [_good_frames(source, worker) for _ in range(source.randint(1, 5))]
    frames = b"".join(frames for frames, _ in parts)
    publishes = sum(is_publish for _, is_publish in parts)
    if source.random() < 0.15:
        return "handshake", mutated(source, handshake()) + frames, publishes
    return "frames", handshake() + mutated(source, frames), publishes


def _mask(source: random.Random) -> bytes:
    # With a mask of zeros, mutations change the JSON directly.
    return bytes(4) if source.random() < 0.5 else source.randbytes(4)


def _good_frames(source: random.Random, worker: int) -> tuple[bytes, bool]:
    """Return one command in one or two frames, and whether it publishes."""
    topic = f"maybe.socket.{worker}"
    short = [{"data": {"a": [1, "é"]}, "tag": "t"}]
    long = [{"data": "x" * source.choice((1, 200, 70_000))}]
    commands: list[dict[str, Any]] = [
        {"op": "publish", "topic": topic, "records": short, "request_id": "1"},
        {"op": "publish", "topic": topic, "records": long},
        {"op": "subscribe", "topic": topic, "from_seq": 0, "limit": 3, "request_id": "2"},
        {"op": "unsubscribe", "topic": topic},
        {"op": "ping", "request_id": "3"},
    ]
    command = source.choice(commands)
    publishes = command["op"] == "publish"
    text = json.dumps(command, ensure_ascii=False).encode()
    if source.random() < 0.5:
        return frame_bytes(TEXT, text, mask=_mask(source)), publishes
    at = source.randrange(len(text) + 1)
    noise, mask = source.randbytes(source.randint(0, 125)), _mask(source)
    between = frame_bytes(source.choice((PING, PONG)), noise, mask=mask)
    first = frame_bytes(TEXT, text[:at], fin=False, mask=_mask(source))
    return first + between + frame_bytes(CONTINUATION, text[at:], mask=_mask(source)), publishes


def _broken_frames(source: random.Random, worker: int) -> tuple[str, bytes]:
    command = {"op": "publish", "topic": f"never.{worker}", "records": [{"data": "x"}]}
    text = json.dumps(command | {"request_id": "n"}).encode()
    mask, choice = _mask(source), source.choice

    def frame(opcode: int, payload: bytes, **more: Any) -> bytes:
        return frame_bytes(opcode, payload, mask=mask, **more)

    good, control = frame(TEXT, text), choice((PING, PONG, CLOSE))
    start = frame(TEXT, text[:9], fin=False)
    code = choice((0, 999, 1004, 1005, 1006, 1015, 2999)).to_bytes(2, "big")
    size = choice((b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\0\0\0\1\0\0\0\0"))
    not_json = text[:-1], text + b"}", b"", b"null", b"[]", b'"op"', b"\0", b"[" * 50_000
    half = frame(TEXT, b'{"\xc3', fin=False)
    kinds: dict[str, bytes] = {
        "no mask": frame_bytes(TEXT, text),
        "reserved bits": frame(TEXT, text, rsv=choice((0x10, 0x20, 0x40, 0x70))) + good,
        "a reserved opcode": frame(choice((3, 4, 7, 11, 12, 15)), text[:125]) + good,
        "a cut control frame": frame(control, b"", fin=False) + good,
        "a long control frame": frame(control, b"x" * 126) + good,
        "an absurd length": b"\x81\xff" + size + mask + text + good,
        "bad UTF-8": frame(TEXT, text.replace(b'"x"', b'"\xff"')) + good,
        "bad UTF-8 in two frames": half + frame(CONTINUATION, text) + good,
        "nothing to continue": frame(CONTINUATION, text) + good,
        "a message within a message": start + good,
        "a close of one byte": frame(CLOSE, b"x") + good,
        "a close with a bad code": frame(CLOSE, code) + good,
        "after the close": frame(CLOSE, b"\x03\xe8") + good,
        "a cut frame": good[: source.randint(1, len(good) - 1)],
        "binary": frame(BINARY, text),
        "bad JSON": frame(TEXT, choice(not_json)),
        "no such op": frame(TEXT, text.replace(b"publish", b"publisH")),
        "many pings, then noise": frame(PING, b"") * 300 + b"\xff" * 50 + good,
    }
    name = choice(sorted(kinds))
    return name, kinds[name]

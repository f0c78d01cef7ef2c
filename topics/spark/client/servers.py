"""Servers: a list of servers. Each topic is on one of them.

A list consists of addresses with optional names, separated by commas:

    http://10.0.0.1:4000                              one server
    a=http://10.0.0.1:4000,b=http://10.0.0.2:4000     two servers, named a and b

The name of a server is its identity. It is stored in the offsets of queries, so a server that keeps
its name may move to another address. If an entry has no name, its address is the name. User info in
an address (``user:password@``) is a secret and is never part of the name.

A new topic is created on the server that rendezvous hashing selects: the score of a server is a
hash of its name and the topic's name, and the highest score wins. All clients select the same
server for any order of the list. An existing topic stays on its server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b

from topics.client.errors import Invalid
from topics.client.settings import checked_url

NAME_MAX_CHARS = 128
EXAMPLE = "it looks like http://HOST:PORT"


@dataclass(frozen=True, slots=True, order=True)
class Server:
    """A server: its name and its address."""

    name: str
    url: str = field(repr=False)  # may contain user info, which is secret

    @property
    def address(self) -> str:
        """The address without user info."""
        return without_user_info(self.url)

    @property
    def entry(self) -> str:
        """The server as an entry of a list that `Servers.parse` reads."""
        return self.url if self.name == self.address else f"{self.name}={self.url}"


class BadServers(ValueError):
    """The list of servers is invalid. The text is one line for the user."""


@dataclass(frozen=True, slots=True)
class Servers:
    """One or more servers, sorted by name."""

    members: tuple[Server, ...]

    @classmethod
    def parse(cls, text: str) -> Servers:
        """Return the servers of a list. Raise `BadServers`."""
        try:
            members = sorted(_server(part.strip()) for part in text.split(",") if part.strip())
        except Invalid as error:
            # If an address has user info, any part of it may be a fragment of the password.
            what = "an address with user info" if "@" in text else str(error)
            raise BadServers(f"{what} is not an address of a server; {EXAMPLE}") from None
        if not members:
            raise BadServers(f"servers names no server; {EXAMPLE},...")
        for what, values in (
            ("name", [member.name for member in members]),
            ("address", [member.address for member in members]),
        ):
            if twice := min((value for value in values if values.count(value) > 1), default=None):
                raise BadServers(f"servers has the {what} {twice} twice")
        return cls(tuple(members))

    def owner(self, topic: str) -> Server:
        """Return the server on which a new topic is created."""
        return max(self.members, key=lambda member: (_score(member.name, topic), member.name))

    def index(self, name: str) -> int:
        """Return the index of a name among the sorted names. Raise KeyError if it is unknown."""
        return {member.name: index for index, member in enumerate(self.members)}[name]


def _server(text: str) -> Server:
    name, equals, url = text.partition("=")
    if not equals or "://" in name:  # an address that contains ``=`` is refused below
        name, url = "", text
    try:
        url = checked_url(url)
    except Invalid:
        raise Invalid(repr(text), code="bad_url") from None
    if not (name.isascii() and name.isprintable()) or " " in name:
        raise BadServers(f"the server name {name!r} is not visible ASCII")
    if len(name) > NAME_MAX_CHARS:
        raise BadServers(f"the server name {name!r} is longer than {NAME_MAX_CHARS} characters")
    return Server(name or without_user_info(url), url)


def without_user_info(url: str) -> str:
    """Return an address, or a text that contains an address, without ``user:password@``."""
    return re.sub(r"//[^\s/]*@", "//", url)


def _score(server: str, topic: str) -> bytes:
    return blake2b(repr((server, topic)).encode(), digest_size=16).digest()

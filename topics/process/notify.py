"""Notifications to systemd: datagrams of ``NAME=value`` lines to ``$NOTIFY_SOCKET`` (sd_notify(3)).
Without systemd nothing is sent. A notification never waits and never raises.
"""

from __future__ import annotations

import socket
from collections.abc import MutableMapping

import structlog

log = structlog.get_logger()


class Notifier:
    """The supervisor's socket to systemd."""

    def __init__(self, address: str | None = None, *, watchdog_ms: int = 0) -> None:
        """``address`` is a path, or ``@name`` in the abstract namespace. ``watchdog_ms`` 0: no
        watchdog.
        """
        self.watchdog_ms = watchdog_ms
        self._address = "\0" + address[1:] if address and address.startswith("@") else address or ""
        self._socket = (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            if address
            else None
        )
        self._last_status = ""
        self._is_loss_logged = False

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str], pid: int) -> Notifier:
        """Take systemd's variables out of ``environ``: they are for this process, not for its
        children.
        """
        address = environ.pop("NOTIFY_SOCKET", None)
        watchdog_pid = environ.pop("WATCHDOG_PID", str(pid))
        watchdog_usec = environ.pop("WATCHDOG_USEC", "0")
        is_ours = watchdog_pid == str(pid) and watchdog_usec.isdecimal()
        return cls(address, watchdog_ms=int(watchdog_usec) // 1000 if is_ours else 0)

    def ready(self) -> None:
        """Start-up is over; from now on the watchdog counts."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``; sent when it changes, again if it was not taken."""
        if text != self._last_status and self._send(f"STATUS={text}"):
            self._last_status = text

    def extend_timeout(self, ms: int) -> None:
        """Start-up or stop is still making progress and may take this much longer from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={ms * 1000}")

    def watchdog(self) -> None:
        """A sign of life of the supervisor."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The drain has begun."""
        self._send("STOPPING=1")

    def close(self) -> None:
        """Close the socket, in a child: only the supervisor notifies."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, line: str) -> bool:
        """False when systemd did not get it."""
        if self._socket is None:
            return True
        try:
            self._socket.sendto(line.encode(), socket.MSG_DONTWAIT, self._address)
        except OSError as error:  # the server goes on without systemd; the loss is logged once
            if not self._is_loss_logged:
                self._is_loss_logged = True
                log.warning("systemd notification failed", reason=error.strerror, lost=line)
            return False
        return True

"""Notifications to systemd: sends ``NAME=value`` datagrams to ``$NOTIFY_SOCKET`` (sd_notify(3)).

If the server was not started by systemd, nothing is sent. A notification never blocks or raises.
"""

from __future__ import annotations

import socket
from collections.abc import MutableMapping

import structlog

log = structlog.get_logger()


class Notifier:
    """The supervisor's socket to systemd."""

    def __init__(self, address: str | None = None, *, watchdog_ms: int = 0) -> None:
        """Create the socket. If ``address`` is None, notifications are discarded.

        ``address`` is a path, or ``@name`` for the abstract namespace. ``watchdog_ms`` is the
        timeout of systemd's watchdog; 0 means that it is disabled.
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
        """Create a notifier from systemd's variables, and remove them from ``environ``.

        Child processes must not inherit these variables. ``pid`` is the pid of this process; a
        watchdog that is meant for a different pid is ignored.
        """
        address = environ.pop("NOTIFY_SOCKET", None)
        watchdog_pid = environ.pop("WATCHDOG_PID", str(pid))
        watchdog_usec = environ.pop("WATCHDOG_USEC", "0")
        is_ours = watchdog_pid == str(pid) and watchdog_usec.isdecimal()
        return cls(address, watchdog_ms=int(watchdog_usec) // 1000 if is_ours else 0)

    def ready(self) -> None:
        """Notify systemd that startup is complete. This also activates its watchdog."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Set the line that ``systemctl status`` shows.

        The line is sent only when it changes. If sending fails, the next call sends it again.
        """
        if text != self._last_status and self._send(f"STATUS={text}"):
            self._last_status = text

    def extend_timeout(self, ms: int) -> None:
        """Extend systemd's timeout for startup or shutdown to ``ms`` milliseconds from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={ms * 1000}")

    def watchdog(self) -> None:
        """Send the supervisor's heartbeat to systemd's watchdog."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Notify systemd that the server is stopping."""
        self._send("STOPPING=1")

    def close(self) -> None:
        """Close the socket. Called in children, because only the supervisor sends notifications."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, line: str) -> bool:
        """Send one datagram. Returns False if it could not be sent."""
        if self._socket is None:
            return True
        try:
            self._socket.sendto(line.encode(), socket.MSG_DONTWAIT, self._address)
        except OSError as error:
            # The server continues without systemd. The failure is logged once.
            if not self._is_loss_logged:
                self._is_loss_logged = True
                log.warning("systemd notification failed", error=error.strerror, notification=line)
            return False
        return True

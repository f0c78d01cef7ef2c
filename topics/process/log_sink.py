"""Log sink: whole lines to stderr, without waiting for its reader or failing with it.

Other programs may share stderr, so its own file description is never set to non-blocking:

    pipe, terminal      opened once more through /proc, non-blocking
    another user's pipe cannot be opened: the room is checked before each write
    socket (journal)    sent with MSG_DONTWAIT
    anything else       written: a file waits for no reader (another user's terminal does at Ctrl-S)
    closed              /dev/null from now on, so that no data file ever gets the number 2

A line that cannot be written (EAGAIN, ENOSPC, EIO, EPIPE) is dropped and counted; nothing is kept
for later. A line that is cut short counts, too, and the next one begins on a line of its own.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import select
import socket
import stat
import sys
import termios
from collections.abc import Callable
from functools import partial

PIPE_BUF = select.PIPE_BUF
Send = Callable[[bytes], int]
_NON_BLOCKING = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class DescriptorSink:
    """Where lines go: a descriptor, as the table above says."""

    def __init__(self, fd: int) -> None:
        self.dropped = 0  # lines since the last report
        self.fd, self._send, self._close = _open(fd)
        self._is_torn = False

    def write(self, line: str) -> bool:
        """Write a line, without its end. False when it was dropped. Never waits, never raises."""
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        if self._is_torn:
            data = b"\n" + data
        try:
            sent = self._send(data)
        except OSError:
            sent = 0
        if sent:
            self._is_torn = sent < len(data)
        if sent < len(data):
            self.dropped += 1
        return sent == len(data)

    def isatty(self) -> bool:
        """A person reads along."""
        return os.isatty(self.fd)

    def close(self) -> None:
        """Give back what was opened here; ``fd`` itself stays as it is."""
        self._close()


def open_missing_descriptors() -> None:
    """Put /dev/null where stdin, stdout or stderr is closed: the next file would get the number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            found = os.open(os.devnull, os.O_RDWR)
            assert found == fd, "the lowest free descriptor is taken"
            os.set_inheritable(fd, True)
    for fd, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # so it is when its descriptor was closed at the start
            setattr(sys, name, os.fdopen(fd, "w", closefd=False))


def _open(fd: int) -> tuple[int, Send, Callable[[], None]]:
    """The descriptor to use for ``fd``, how to send there (bytes sent, or OSError), how to close
    it.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):
        own = socket.socket(fileno=os.dup(fd))
        return (
            own.fileno(),
            lambda data: own.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL),
            own.close,
        )
    if stat.S_ISFIFO(mode) or os.isatty(fd):
        with contextlib.suppress(OSError):  # another user's, or a FIFO without a reader
            own_fd = os.open(f"/proc/self/fd/{fd}", _NON_BLOCKING)
            return own_fd, partial(os.write, own_fd), partial(os.close, own_fd)
    return fd, partial(_write_what_fits if stat.S_ISFIFO(mode) else os.write, fd), _nothing


def _nothing() -> None: ...


def _write_what_fits(pipe: int, data: bytes) -> int:
    """Write to a blocking pipe as much as does not block."""
    sent = 0
    while sent < len(data) and _has_room(pipe):
        sent += os.write(pipe, data[sent : sent + PIPE_BUF])
    return sent


def _has_room(pipe: int) -> bool:
    """Room for PIPE_BUF bytes, also when each process that shares the pipe has just checked."""
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    if not poll.poll(0):
        return False
    waiting = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, waiting)
    return waiting[0] < fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) // 4

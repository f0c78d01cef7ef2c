"""Forking a child, so that it never outlives its parent and never unwinds into the parent's code;
and the signals and limits of a process.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import NoReturn

import structlog
from setproctitle import setproctitle

from topics.errors import ExitCode
from topics.process import logs

KEPT_BYTES = 16 << 20
# A larger limit is of no use, and slows down programs that close every possible descriptor.
FILES_MAX = 1 << 20

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_SIGSET_BYTES = 128
_libc = ctypes.CDLL(None, use_errno=True)


def fork(name: str, main: Callable[[], None], *, log_level: str = "info") -> int:
    """Run ``main`` in a child that is called ``topics: NAME``; its pid. Only for a process without
    threads.

    The child exits with DONE when ``main`` returns, with the code of a ``SystemExit``, and with
    FAILED after logging any other exception, that of a thread too. ``OSError`` when the system has
    no room for another process.
    """
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):  # or the child would write their buffers once more
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    pid = os.fork()
    if pid == 0:
        _be_child(name, main, parent, log_level)
    return pid


def _be_child(name: str, main: Callable[[], None], parent: int, log_level: str) -> NoReturn:
    exit_code: int = ExitCode.FAILED
    try:
        die_with(parent)
        logs.configure(name, log_level)
        threading.excepthook = partial(_end_with_thread, threading.excepthook)
        setproctitle(f"topics: {name}")
        faulthandler.enable(file=logs.crash_descriptor())
        keep_memory()
        _reset_signals()
        main()
        exit_code = ExitCode.DONE
    except SystemExit as leaving:
        if leaving.code is None:
            exit_code = ExitCode.DONE
        elif isinstance(leaving.code, int):
            exit_code = leaving.code
    except BaseException:  # the outermost frame: what is not logged here is never seen
        structlog.get_logger().exception("process failed")
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(exit_code)


def _end_with_thread(
    tell: Callable[[threading.ExceptHookArgs], object], failure: threading.ExceptHookArgs
) -> NoReturn:
    """Without its thread the process would wait for ever for what the thread does."""
    tell(failure)
    os._exit(ExitCode.FAILED)


def keep_memory() -> None:
    """Let malloc keep freed memory for the next request, up to KEPT_BYTES, instead of giving the
    memory of every long body back to the kernel.

    A new page from the kernel costs more than the copy into it. Nothing happens where malloc is not
    glibc's.
    """
    with contextlib.suppress(AttributeError):
        _libc.mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        _libc.mallopt(_M_TRIM_THRESHOLD, 2 * KEPT_BYTES)


def raise_file_limit() -> tuple[int, int]:
    """Raise the soft limit of open files to the hard one, for this process and its children;
    returns it before and after.

    Every client takes a descriptor, and the soft limit is often 1,024. A limit that must not be
    raised (a system call filter) stays as it is: the front counts its clients by it.
    """
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if before == resource.RLIM_INFINITY or before >= wanted:
        return before, before
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return before, before
    return before, wanted


def die_with(parent: int) -> None:
    """From now on this process is killed when its parent dies; at once, if it already has."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(ExitCode.FAILED)


def forbid_dumps() -> None:
    """From now on neither a core dump nor another process of the same user shows the memory of this
    process and of its children: heads of requests hold keys.
    """
    if _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")


def _reset_signals() -> None:
    """Defaults for everything, then nothing blocked.

    Every process of the terminal receives Ctrl-C and hang-ups; only the parent acts on them.
    """
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def wait_for_signal(numbers: Iterable[signal.Signals], seconds: float) -> signal.Signals | None:
    """Take one of these signals, which are blocked; None when none comes in time.

    Not `signal.sigtimedwait`: after a stop (Ctrl-Z) longer than its time it returns a signal that
    was never sent.
    """
    wanted = ctypes.create_string_buffer(_SIGSET_BYTES)
    _libc.sigemptyset(wanted)
    for number in numbers:
        _libc.sigaddset(wanted, int(number))
    whole = int(seconds)
    found = _libc.sigtimedwait(
        wanted, None, (ctypes.c_long * 2)(whole, int((seconds - whole) * 1e9))
    )
    return signal.Signals(found) if found > 0 else None


def on_sigterm(act: Callable[[], object]) -> None:
    """From now on SIGTERM has the running trio loop call ``act``, and does not end this process.

    Before this call it ends the process at once, so there is no moment at which it is lost. When
    the loop has ended, further signals do nothing: they must not cut the stop short.
    """
    import trio  # not in the parent

    token = trio.lowlevel.current_trio_token()

    def received(_number: int, _frame: object) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(act)

    signal.signal(signal.SIGTERM, received)


def describe_exit(wait_status: int) -> dict[str, int | str]:
    """How a process ended, as fields of a log line."""
    code = os.waitstatus_to_exitcode(wait_status)
    if code >= 0:
        return {"exit_code": code}
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal between the first and the last has no name
        name = f"SIG{-code}"
    return {"signal": name}

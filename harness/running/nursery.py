"""Fresh worker processes without the price of importing torch for each: forks of one that has run nothing.

A nursery imports a worker's module once and then only forks. Each child starts from that image: no case, no adapter
and no CUDA (which cannot be forked) has ever been in it, so it is as fresh as a new process to everything that a
case can leave behind. What a new process would draw anew and a fork does not: Python's hash seed and the addresses
that the loader gave to libraries.

Nothing outlives its parent: the nursery ends with the parent's end of its socket and takes its children along, and a
child is killed by the system when the nursery is lost. A child in an endless loop would not see its input end.

    parent -> "{...environment...}" with three file descriptors      one fork, which gets them as 0, 1 and 2
    nursery -> {"ready": true}, {"forked": pid}, {"ended": pid, "code": exit code or minus the signal}
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import IO, Any

LONGEST_REQUEST = 1 << 20  # bytes of an environment
KILL_LIMIT = 30.0  # seconds for a killed process to be reported
PR_SET_PDEATHSIG = 1  # prctl(2)


class NurseryLost(Exception):
    """The nursery ended, or never began."""


# -- the parent's end ------------------------------------------------------------------------------
class Nursery:
    """One process of `python -m harness.running.nursery MODULE`. Safe to use from several threads."""

    def __init__(self, python: str, module: str, environment: dict[str, str], stderr: IO[str]) -> None:
        """Starts it, and does not wait. Raises OSError if `python` cannot be run."""
        self._socket, theirs = socket.socketpair()
        self._stderr = stderr
        self._news = threading.Condition()
        self._ready = self._over = False
        self._forked: list[int] = []
        self._codes: dict[int, int] = {}
        self._asking = threading.Lock()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    # -P: a file of the current folder that is named as a module of Python's (random.py) is not it.
                    [python, "-P", "-m", __name__, module, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for the parent, which then ends its workers
                )
        except OSError:
            self._socket.close()
            raise
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._socket.makefile() as lines:
            for line in lines:
                news = json.loads(line)
                with self._news:
                    if "forked" in news:
                        self._forked.append(news["forked"])
                    elif "ended" in news:
                        self._codes[news["ended"]] = news["code"]
                    self._ready = True
                    self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()

    def fork(self, environment: dict[str, str], limit: float) -> Forked:
        """A fresh process with `environment`, within `limit` seconds. Raises NurseryLost."""
        with self._asking:
            with self._news:
                self._news.wait_for(lambda: self._ready or self._over, limit)
                if self._over or not self._ready:
                    raise NurseryLost
            ours_in, theirs_out = os.pipe()
            theirs_in, ours_out = os.pipe()
            try:
                request = json.dumps(environment).encode()
                socket.send_fds(self._socket, [request], [theirs_in, theirs_out, self._stderr.fileno()])
                with self._news:
                    self._news.wait_for(lambda: self._forked or self._over, limit)
                    if not self._forked:
                        raise NurseryLost
                    pid = self._forked.pop()
            except (OSError, NurseryLost):
                os.close(ours_in)
                os.close(ours_out)
                raise NurseryLost from None
            finally:
                os.close(theirs_in)
                os.close(theirs_out)
        return Forked(self, pid, os.fdopen(ours_out, "w", encoding="utf-8"), os.fdopen(ours_in, "rb", buffering=0))

    def code_of(self, pid: int, timeout: float | None = 0.0) -> int | None:
        """How a child ended, waiting for it; None if it has not. A lost nursery's children count as killed."""
        with self._news:
            self._news.wait_for(lambda: pid in self._codes or self._over, timeout)
            return self._codes.get(pid, -signal.SIGKILL if self._over else None)

    @property
    def lost(self) -> bool:
        """It ended, and its children with it."""
        with self._news:
            return self._over

    def close(self) -> None:
        """End it, and its children with it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Forked:
    """A child of a nursery, with as much of subprocess.Popen as a worker's parent uses; `stdout` is not buffered."""

    def __init__(self, nursery: Nursery, pid: int, stdin: IO[str], stdout: io.FileIO) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.nursery = nursery

    def poll(self) -> int | None:
        return self.nursery.code_of(self.pid)

    def wait(self, timeout: float | None = KILL_LIMIT) -> int:
        code = self.nursery.code_of(self.pid, timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
        return code

    def kill(self) -> None:
        if self.poll() is None:  # else its number may be another's by now
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def kill_group(self) -> None:
        """The child and whatever it started: it leads a session of its own."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


# -- the nursery -----------------------------------------------------------------------------------
def serve(module: str, control: socket.socket) -> None:
    """Fork until the parent closes `control`."""
    importlib.import_module(module)
    wakeup, on_signal = os.pipe()
    for end in (wakeup, on_signal):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(on_signal)

    def tell(news: dict[str, Any]) -> None:
        control.sendall(json.dumps(news).encode() + b"\n")

    living: set[int] = set()
    try:
        tell({"ready": True})
        while True:
            watched: list[Any] = [control, wakeup]
            ready, _, _ = select.select(watched, [], [])
            if wakeup in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wakeup, 4096)
                for pid, code in _ended():
                    living.discard(pid)
                    tell({"ended": pid, "code": code})
            if control in ready:
                request, descriptors, _, _ = socket.recv_fds(control, LONGEST_REQUEST, 3)
                if not request:
                    return
                sys.stdout.flush()  # what is in a buffer would be written by both
                sys.stderr.flush()
                nursery = os.getpid()
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for end in (wakeup, on_signal, control.detach()):
                        os.close(end)
                    _become(module, nursery, json.loads(request), descriptors)
                living.add(pid)
                for descriptor in descriptors:
                    os.close(descriptor)
                tell({"forked": pid})
    except (BrokenPipeError, ConnectionResetError):  # the parent ended
        return
    finally:
        for pid in living:
            _kill(pid)


def die_with_parent(parent: int) -> None:
    """In a child: be killed when the process `parent` ends, however that comes. Only Linux has this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # it ended before
            os._exit(1)


def _kill(pid: int) -> None:
    """A child that is not waited for yet and, as soon as it leads a session, whatever it started."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _ended() -> list[tuple[int, int]]:
    """(pid, code) of each child that ended since the last look."""
    found = []
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((ended[0], os.waitstatus_to_exitcode(ended[1])))
    return found


def _become(module: str, nursery: int, environment: dict[str, str], descriptors: list[int]) -> None:
    """In the child of process `nursery`: run `module` as its program. Does not return."""
    code = 1
    try:
        die_with_parent(nursery)
        os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(environment)
        del sys.modules[module]  # it is run as a program, as `python -m` does
        sys.argv = [module]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # told as Python tells it; the nursery's own frames must not go on
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))

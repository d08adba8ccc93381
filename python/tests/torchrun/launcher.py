"""Starts the processes of the tests, owns them, and tells how they end.

Run by harness.Launcher with one end of a SOCK_SEQPACKET pair as argument; each message
is a JSON object. Importing torch costs seconds of CPU time per node, so this process
imports torchrun once and forks: the child then runs a module as `python -m` would, in a
session of its own, and ends like any interpreter, except that it leaves torch's modules as
they are: to take them apart, page by page of the fork, costs half a second. A request without a
module is for a fresh program instead.

All descendants stay below this process, also workers whose agent was killed: so what
has to be cleaned up is exactly what is below it.

    <- {"discovers": whether torchrun finds the plug-in by itself}
    -> {"argv": [...], "module": name or null, "env": {...}, "log": path,
        "hook": path or null, "netns": name or null}
    <- {"started": pid}
    <- {"ended": pid, "code": exit code, or minus the signal}
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from typing import NoReturn

import psutil

PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNET = 0x40000000
MAX_MESSAGE = 1 << 17


def libc_call(name: str, *args: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*args) != 0:
        raise OSError(ctypes.get_errno(), name)


def warm_up() -> bool:
    """Imports what every node needs; returns whether this torch looks for plug-ins.

    The library itself must not be loaded by that: torch loads plug-ins for every job,
    and a Go library would not survive the fork.
    """
    importlib.import_module("torch.distributed.run")
    registry = importlib.import_module("torch.distributed.elastic.rendezvous.registry")

    with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
        if "librallypoint" in f.read():
            raise SystemExit("importing torchrun has loaded librallypoint")
    if threading.active_count() != 1:
        raise SystemExit(f"threads that a fork would lose: {threading.enumerate()}")
    # Else runpy warns that the module is about to be run a second time.
    del sys.modules["torch.distributed.run"]
    gc.freeze()  # what the children share must not be copied by their collections
    return hasattr(registry, "_register_out_of_tree_handlers")


def serve(control: socket.socket) -> dict | None:
    """Answers requests until the tests are gone, then returns None.

    Returns in each child, too: the request that it is to become.
    """
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    mine: set[int] = set()
    while True:
        ready, _, _ = select.select([control, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            for pid, code in reap():
                if pid in mine:
                    mine.discard(pid)
                    control.send(json.dumps({"ended": pid, "code": code}).encode())
        if control in ready:
            message = control.recv(MAX_MESSAGE)
            if not message:
                return None
            request = json.loads(message)
            pid = os.fork()
            if pid == 0:
                for fd in (wake, waker):
                    os.close(fd)
                control.close()
                return request
            mine.add(pid)
            control.send(json.dumps({"started": pid}).encode())


def reap() -> list[tuple[int, int]]:
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def become(request: dict) -> None:
    """Turns this child into the process that was asked for."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(fd, target)
    os.close(null)
    os.close(log)
    if request["netns"]:
        enter_namespace(request["netns"])
    os.environ.clear()
    os.environ.update(request["env"])
    argv = request["argv"]
    if request["module"] is None:
        os.execvp(argv[0], argv)
    sys.argv = ["", *argv]
    if request["hook"]:
        runpy.run_path(request["hook"])
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def end(code: object) -> NoReturn:
    """Ends this child as an interpreter ends at SystemExit, up to the teardown of its modules."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # joins what is no daemon
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit((code or 0) & 0xFF)


def enter_namespace(name: str) -> None:
    fd = os.open(f"/run/netns/{name}", os.O_RDONLY)
    libc_call("setns", fd, CLONE_NEWNET)
    os.close(fd)


def kill_descendants() -> None:
    """Kills all below this process until there is nothing left."""
    while below := psutil.Process().children(recursive=True):
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(below, timeout=1)
        reap()


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    libc_call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A Ctrl-C is for the tests, which then close the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    discovers = warm_up()
    control.send(json.dumps({"discovers": discovers}).encode())
    request = serve(control)
    if request is None:
        kill_descendants()
        return
    try:
        become(request)
    except SystemExit as exit:
        end(exit.code)
    end(0)


if __name__ == "__main__":
    main()

"""Starts the processes of the tests, owns them, and tells how they end.

Run by harness.Launcher with one end of a SOCK_SEQPACKET pair as argument; each message
is a JSON object. Importing torch costs seconds of CPU time per node, so this process
imports torchrun once and forks: the child then runs the module torch.distributed.run
as `python -m` would, in a session of its own, and ends like any interpreter. A request
may ask for a fresh program instead ("cold").

All descendants stay below this process, also workers whose agent was killed: so what
has to be cleaned up is exactly what is below it.

    <- {"ready": true, "plugin": bool}
    -> {"argv": [...], "cold": bool, "env": {...}, "log": path,
        "hook": path or null, "netns": name or null}
    <- {"started": pid}
    <- {"ended": pid, "code": exit code, or minus the signal}
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading

import psutil

PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNET = 0x40000000
MAX_MESSAGE = 1 << 17

BACKEND = "rallypoint"


def libc_call(name: str, *args: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*args) != 0:
        raise OSError(ctypes.get_errno(), name)


def warm_up() -> bool:
    """Imports what every node needs; returns whether torch looks for plug-ins.

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
    return hasattr(registry, "_register_out_of_tree_handlers")


def register_by_hand() -> None:
    """What a user of a torch without plug-in discovery (before 2.5) has to do."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    from rallypoint._plugin import creator_factory

    rendezvous_handler_registry.register(BACKEND, creator_factory())


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


def become(request: dict, found: bool) -> None:
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
    if request["cold"]:
        os.execvp(argv[0], argv)
    sys.argv = ["torchrun", *argv]
    if not found:
        register_by_hand()
    if request["hook"]:
        runpy.run_path(request["hook"])
    runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)


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
    found = warm_up()
    control.send(json.dumps({"ready": True, "plugin": found}).encode())
    request = serve(control)
    if request is None:
        kill_descendants()
    else:
        become(request, found)


if __name__ == "__main__":
    main()

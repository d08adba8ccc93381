"""`rallypoint serve` as the console script of the wheel runs it: Go's command in a Python
process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

RALLYPOINT = Path(sys.executable).with_name("rallypoint")


def test_peers_that_are_gone_do_not_end_the_server() -> None:
    """A server that was stopped answers many who have gone: writing to their connections
    raises SIGPIPE, which must not end it."""
    server = subprocess.Popen(
        [RALLYPOINT, "serve", "--listen", "127.0.0.1:0", "--log-level", "error"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().rpartition(":")[2])
        for _ in range(3):  # the answer has several pieces
            server.send_signal(signal.SIGSTOP)
            for _ in range(50):
                with socket.create_connection(("127.0.0.1", port)) as s:
                    s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            server.send_signal(signal.SIGCONT)
            with socket.create_connection(("127.0.0.1", port)) as s:
                s.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                answer = b""
                while piece := s.recv(1000):
                    answer += piece
                assert answer.endswith(b"ok\n")
        server.terminate()
        assert server.wait(60) == 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()

"""A network of our own, in which there is nothing but 127.0.0.1.

torch's TCPStore asks a name server for the name of each peer. A hundred questions at
once are too many for some, and an answer that does not come costs 5 s: that would be
measured, and not the rendezvous. And ten thousand nodes on one machine have ten thousand
local ports: of the usual 28 000 the kernel is slow to find a free one.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
PORTS = "/proc/sys/net/ipv4/ip_local_port_range"
SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1


def isolate() -> bool:
    """Moves this process into a new network namespace; False if that is not allowed.

    To be called before there are threads, so before torch is imported.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    flags = CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWNET | CLONE_NEWUSER
    if libc.unshare(flags) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        name = b"lo".ljust(16, b"\0")
        request = fcntl.ioctl(s, SIOCGIFFLAGS, name + bytes(24))
        (up,) = struct.unpack_from("H", request, 16)
        fcntl.ioctl(s, SIOCSIFFLAGS, name + struct.pack("H", up | IFF_UP) + bytes(22))
    with contextlib.suppress(OSError), open(PORTS, "w") as file:
        file.write("10000 65535")
    return True

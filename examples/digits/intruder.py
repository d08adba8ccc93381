"""Asks TCPStores for a key without having a token; prints what it got, as JSON.

    intruder.py UID KEY ADDRESS:PORT...

It first becomes the user UID, unless that is "-". Each store's entry is what it has
answered, "" if it has closed the connection without a word. Exit code 3: a user
namespace has no such user.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys

LIMIT = 20  # seconds, for a store that neither answers nor closes


def ask(address: str, port: int, key: bytes) -> str:
    """Speaks to a store as PyTorch's client does; returns all that it answers."""
    validate = b"\x00" + (0x3C85F7CE).to_bytes(4, "little")
    get = b"\x03" + len(key).to_bytes(8, "little") + key
    answer = b""
    with socket.socket() as store:
        store.settimeout(LIMIT)
        try:
            store.connect((address, port))
            store.sendall(validate + get)
            while data := store.recv(4096):
                answer += data
        except TimeoutError:
            answer += b"(the connection stays open)"
        except ConnectionError:
            pass
    return answer.decode("ascii", "backslashreplace")


def main() -> int:
    user, key, *places = sys.argv[1:]
    if user != "-":
        try:
            os.setgroups([])
            os.setgid(int(user))
            os.setuid(int(user))
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EPERM):
                return 3
            raise
    answers = {}
    for place in places:
        address, _, port = place.rpartition(":")
        answers[place] = ask(address, int(port), key.encode())
    print(json.dumps(answers))
    return 0


if __name__ == "__main__":
    sys.exit(main())

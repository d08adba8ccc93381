"""Hands events, a line of JSON each on stdin, to the handler of torch that argv names.

It says "ok" if there is such a handler, else what is wrong, and goes on without its parent: the agent
takes every child of its own for a worker's.
"""
import logging
import os
import sys

try:
    from torch.distributed.elastic.events import get_logging_handler

    handler = get_logging_handler(sys.argv[1])
except Exception as error:
    print(f"{type(error).__name__}: {error}"[:150].replace("\n", " "), flush=True)
    sys.exit(1)
print("ok", flush=True)
if os.fork():
    os._exit(0)
os.setsid()
handler.setLevel(logging.INFO)
for line in sys.stdin:
    handler.handle(logging.LogRecord("events", logging.INFO, "", 0, line.rstrip("\n"), None, None))
handler.close()

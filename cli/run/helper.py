"""What a child interpreter that keeps a plug-in begins with.

It talks to the launcher over the socket at 0 and 1: a line "ok" and its process id once `ready` is
called, or what is wrong, by `refuse`. It forks first, so that it is no child of the launcher, which
takes every child of its own for a worker's. What a plug-in does in one go may take PATIENCE seconds;
then the process shows on stderr where it hangs, and ends. What a plug-in prints goes to stderr.
"""
import sys

if sys.path[:1] == [""]:
    del sys.path[0]  # the current directory, which another user may own
import faulthandler
import os

if os.fork():
    os._exit(0)
os.setsid()
PATIENCE = float(sys.argv[1])
faulthandler.dump_traceback_later(PATIENCE, exit=True)
requests = os.fdopen(os.dup(0), encoding="utf-8", errors="surrogateescape")
answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="surrogateescape")
_null = os.open(os.devnull, os.O_RDONLY)
os.dup2(_null, 0)
os.close(_null)
os.dup2(2, 1)


def reason(error):
    return f"{type(error).__name__}: {error}"[:500].replace("\n", " ")


def refuse(text):
    print(text, file=answers, flush=True)
    sys.exit(1)


def ready():
    try:
        print("ok", os.getpid(), file=answers, flush=True)
    except BrokenPipeError:  # the parent was ended meanwhile
        os._exit(1)


def each_request():
    """The lines of the parent, until it closes; the end may take as long as a request."""
    while True:
        faulthandler.cancel_dump_traceback_later()
        line = requests.readline()
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        if not line:
            return
        yield line



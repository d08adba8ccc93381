"""fail.py RANK HOW [ATTEMPTS]: rank RANK ends as HOW says, the others sleep until they are stopped.

HOW is an exit code, a signal's name, "exception" or "record" (an error file by hand).
With ATTEMPTS, only attempts below it fail and the others end well.
"""
import json, os, signal, sys, time

rank, how = os.environ["RANK"], sys.argv[2]
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if len(sys.argv) > 3 and attempt >= int(sys.argv[3]):
    sys.stdout.write(f"well {rank} {attempt}\n")
    sys.exit(0)
ready = f"ready.{rank}.{attempt}"
open(ready, "w").close()
if rank != sys.argv[1]:
    if os.environ.get("STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
world = int(os.environ["WORLD_SIZE"])
while any(not os.path.exists(f"ready.{r}.{attempt}") for r in range(world)):
    time.sleep(0.01)
time.sleep(0.2)
if how == "exception":
    raise ValueError("Gr\u00fc\u00dfe")
if how == "record":
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as f:
        json.dump({"message": {"message": "ValueError: Gr\u00fc\u00dfe", "extraInfo": {
            "py_callstack": "Traceback (most recent call last):\n  File \"x.py\", line 1\nValueError: Gr\u00fc\u00dfe\n",
            "timestamp": "1700000000"}}}, f)
    sys.exit(1)
if how.startswith("SIG"):
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)
os._exit(int(how))

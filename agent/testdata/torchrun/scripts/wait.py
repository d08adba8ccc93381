"""Say that it is ready, then sleep until a signal comes."""
import os, signal, sys, time

if os.environ.get("STUBBORN"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("ready." + os.environ["RANK"], "w").close()
time.sleep(60)

"""Write down what the launcher gave this process: environment, argv, session."""
import json, os, sys

rank = os.environ["RANK"]
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
sys.stdout.write(f"out {rank} {attempt}\n")
sys.stderr.write(f"err {rank} {attempt}\n")
with open(f"dump.{rank}.{attempt}.json", "w") as f:
    json.dump({
        "env": dict(os.environ),
        "argv": sys.argv[1:],
        "session": os.getsid(0) == os.getpid() == os.getpgid(0),
    }, f)

import json, os, sys
with open("dump.%s.0.json" % os.environ["RANK"], "w") as f:
    json.dump({"env": dict(os.environ), "argv": sys.argv[1:], "session": os.getsid(0) == os.getpid()}, f)

"""worker.sh in Python, which a template can fork. worker.py HISTORY STOP"""

import os
import sys
import time

NAMES = ("NODE_NAME", "RALLYPOINT_ROUND", "GROUP_RANK", "RANK", "WORLD_SIZE")
env = os.environ
words = [*map(env.get, NAMES), f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}", os.getppid()]
with open(sys.argv[1], "a") as history:
    print(*words, file=history)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.3)

"""Looks into the store of the services with PyTorch's own TCPStore, and stops them.

python read.py HOST PORT INSTANCES, with host and port as the services print them.
"""

import sys
import time
from datetime import timedelta

from torch.distributed import TCPStore

host, port, instances = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=30))
store.wait(["instances"])
deadline = time.monotonic() + 30
while store.add("instances", 0) < instances:
    assert time.monotonic() < deadline, "the services did not come"
    time.sleep(0.02)
for rank in range(instances):
    print(f"requests of {rank}: {int(store.get(f'requests/{rank}'))}", flush=True)
store.set("stop", "1")

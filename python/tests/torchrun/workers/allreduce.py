"""A worker that adds up ones over gloo: what it gets must be the world size.

Reports like worker.py and obeys the same orders.
"""

import sys

import torch
import torch.distributed as dist
from worker import emit, emit_start, obey

dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
emit("sum", rank=dist.get_rank(), sum=int(ones.item()))
emit_start()
code = obey()
dist.destroy_process_group()
sys.exit(code)

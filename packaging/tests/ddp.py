"""A plain DDP script without Rallypoint and without a checkpoint: for `make test-prove`."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(10**9):
    optimizer.zero_grad()
    model(torch.randn(64, 20)).square().mean().backward()
    optimizer.step()

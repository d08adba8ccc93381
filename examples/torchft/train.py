"""A replica group of torchft: trains in step with the other groups.

The group is a run of Rallypoint, whose id is its name. When its worker dies, the run starts it
again, and it fetches the model from a group that lives.
"""

import os
import sys
import time
from datetime import timedelta

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

import rallypoint

STEPS = int(sys.argv[1])

group = os.environ["TORCHELASTIC_RUN_ID"]
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)


def load(state):
    model.load_state_dict(state["model"])
    sgd.load_state_dict(state["optimizer"])


def save():
    return {"model": model.state_dict(), "optimizer": sgd.state_dict()}


manager = Manager(
    ProcessGroupGloo(timeout=timedelta(seconds=5)),
    load,
    save,
    min_replica_size=1,  # one group trains on alone
    replica_id=group,
    timeout=timedelta(seconds=10),
    use_async_quorum=False,
)
network, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, sgd)
while manager.current_step() < STEPS:
    optimizer.zero_grad()
    network(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
    step, groups = manager.current_step(), manager.num_participants()
    rallypoint.progress(step)
    print(f"{group}: step {step} with {groups} groups, pid {os.getpid()}", flush=True)
    time.sleep(0.05)
manager.shutdown(wait=False)

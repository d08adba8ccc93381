"""Kills torchrun when a round is complete and its ranks are not assigned yet."""

import os
import signal

from torch.distributed.elastic.agent.server.api import SimpleElasticAgent


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


SimpleElasticAgent._assign_worker_ranks = die

"""Stops torchrun by SIGSTOP while it assigns the ranks of its first round.

RALLYPOINT_TEST_STOP_AT names the method of the store before whose first call it does.
"""

import os
import signal
from typing import Any

from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

METHOD = os.environ["RALLYPOINT_TEST_STOP_AT"]

assign = SimpleElasticAgent._assign_worker_ranks


def assign_late(self: SimpleElasticAgent, store: Any, *args: Any) -> Any:
    SimpleElasticAgent._assign_worker_ranks = assign
    method = getattr(store, METHOD)

    def stop(*args: Any) -> Any:
        delattr(store, METHOD)
        print(f"stops before {METHOD}", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        return method(*args)

    setattr(store, METHOD, stop)
    return assign(self, store, *args)


SimpleElasticAgent._assign_worker_ranks = assign_late

"""JAX: `jax.distributed.initialize()` without arguments."""

from __future__ import annotations

import os
import socket

import jax
from jax._src.clusters import ClusterEnv  # it has no public name

from .. import world

_KEY = "jax/coordinator"
_BESIDE = 8  # ports above MASTER_PORT that agents forward in a job with a token


class RallypointCluster(ClusterEnv):
    """Where the processes of a job find each other, for jax.distributed.initialize().

    To import this module is enough:

        import jax
        import rallypoint.integrations.jax

        jax.distributed.initialize()

    Process 0 hosts JAX's coordinator, at the first free port of MASTER_PORT+1 to +8, or at
    JAX_COORDINATOR_PORT. A process uses all GPUs that it sees if it is the only one on its node,
    and otherwise the one with its local rank.

    It goes before JAX's own detection of Slurm and Kubernetes, which count tasks and pods, not
    workers, and is absent in a process that no launcher has started. It turns JAX's preemption
    service off, unless JAX_ENABLE_PREEMPTION_SERVICE says otherwise: a process that has it does
    not end at SIGTERM, so each restart would wait for the agent's SIGKILL.
    """

    name = "rallypoint"

    @classmethod
    def is_env_present(cls) -> bool:
        """Whether a launcher, `rallypoint run` or torchrun, has started this process."""
        return "TORCHELASTIC_RUN_ID" in os.environ

    @classmethod
    def get_coordinator_address(
        cls, timeout_secs: int | None, override_coordinator_port: str | None
    ) -> str:
        """Chooses the place of the coordinator in process 0, and tells the others by the store."""
        host = world().store.host
        host = f"[{host}]" if ":" in host else host
        if override_coordinator_port:
            return f"{host}:{override_coordinator_port}"
        with world().store.client(timeout_secs or 300) as store:
            if world().rank == 0:
                store.set(_KEY, str(_free_port(world().store.port)))
            return f"{host}:{store.get(_KEY).decode()}"

    @classmethod
    def get_process_count(cls) -> int:
        """Returns the number of workers."""
        return world().size

    @classmethod
    def get_process_id(cls) -> int:
        """Returns this worker's rank."""
        return world().rank

    @classmethod
    def get_local_process_id(cls) -> int | None:
        """Returns the local rank where a node has several workers."""
        return world().local_rank if world().local_size > 1 else None


def _free_port(above: int) -> int:
    for port in range(above + 1, min(above + _BESIDE, 65535) + 1):
        with socket.socket() as s:
            try:
                s.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"JAX's coordinator has no free port: {above + 1} to {above + _BESIDE} are taken")


if RallypointCluster.is_env_present() and "JAX_ENABLE_PREEMPTION_SERVICE" not in os.environ:
    jax.config.update("jax_enable_preemption_service", False)

# What was declared first is asked first, and JAX's own were.
ClusterEnv._cluster_types.insert(0, ClusterEnv._cluster_types.pop())

"""A component of TorchX that runs a script by `rallypoint run`, as dist.ddp does by torchrun.

    torchx run -s slurm component.py:ddp -j 2:4x8 --script train.py -- --lr 0.1

The first replica's node hosts the control plane. A replica that the scheduler starts again
takes part again in the place of the one before.
"""

from typing import Optional

import torchx.specs as specs
from torchx.specs import macros

# TorchX reads the annotations below as they are: no `from __future__ import annotations`.
#
# The script's arguments come behind it and are never read by the shell.
COMMAND = 'exec rallypoint run --rdzv-endpoint="${%s:-localhost}:%d" "$@"'


def ddp(
    *script_args: str,
    script: str,
    image: str = "",
    name: str = "train",
    j: str = "1x2",
    h: Optional[str] = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,
    max_restarts: int = 3,
    rdzv_port: int = 29400,
    token_file: str = "",
) -> specs.AppDef:
    """Runs a script in workers on several nodes, by rallypoint run.

    Args:
        script_args: arguments of the script
        script: the script
        image: image to run in, where the scheduler uses images
        name: name of the job
        j: [{min_nnodes}:]{nnodes}x{nproc_per_node}
        h: a registered named resource, in the place of cpu, gpu and memMB
        cpu: CPUs of a node
        gpu: GPUs of a node
        memMB: memory of a node in MB
        max_restarts: how often the workers may be restarted after a failure
        rdzv_port: port of the first replica's node
        token_file: token that the nodes share, a file on each of them
    """
    nodes, _, workers = j.rpartition("x")
    low, _, high = (nodes or "1").rpartition(":")
    arguments = [
        f"--rdzv-id={macros.app_id}",
        f"--nnodes={nodes or 1}",
        f"--nproc-per-node={workers}",
        f"--max-restarts={max_restarts}",
        f"--rdzv-conf=node_id=replica-{macros.replica_id}",
        "--tee=3",
    ]
    if token_file:
        arguments.append(f"--token-file={token_file}")
    shell = COMMAND % (macros.rank0_env, rdzv_port)
    role = specs.Role(
        name="node",
        image=image,
        entrypoint="bash",
        args=["-c", shell, "ddp", *arguments, script, *script_args],
        num_replicas=int(high),
        min_replicas=int(low) if low else None,
        retry_policy=specs.RetryPolicy.REPLICA,
        resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        port_map={"rallypoint": rdzv_port},
    )
    return specs.AppDef(name=name, roles=[role])

"""Functions of a notebook: workers that torch's own launcher forks from this process.

Workers of Rallypoint's agent are fresh interpreters, which cannot import what a notebook
defines. A forked one has it. What else it has makes a fork dangerous, and is refused.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

from .._entrypoint import creator_factory
from .._errors import invalid
from .config import LaunchConfig

# Modules whose threads a kernel runs all the time; their locks are of no worker's concern.
_KERNEL = ("ipykernel", "IPython", "zmq", "tornado", "debugpy", "traitlets")


def launch(config: LaunchConfig, function: Callable[..., Any], args: list[Any]) -> dict[int, Any]:
    """Launches a function by torch's launcher, in forked workers."""
    from .failure import ChildFailedError, SignalException, has_torch

    if not has_torch():
        raise invalid("start_method is fork, which needs torch: it forks the workers")
    from torch.distributed.elastic.multiprocessing import SignalException as TorchSignal
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError as TorchFailed
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.launcher.api import LaunchConfig as TorchConfig
    from torch.distributed.launcher.api import launch_agent

    if why := _unsafe():
        raise invalid(
            f"start_method is fork, but {why}; restart the kernel and launch first, or put the "
            "function into a module, whose workers are fresh interpreters"
        )
    known = {field.name for field in dataclasses.fields(TorchConfig)}
    plain = LaunchConfig(0, 0, 0)  # a size that no job has
    ours = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(LaunchConfig)
        if getattr(config, field.name) != getattr(plain, field.name)
    }
    if extra := sorted(ours.keys() - known):
        raise invalid(
            f"start_method is fork, where torch's launcher has no {', '.join(extra)}: put the "
            "function into a module"
        )
    given = {name: value for name, value in ours.items() if name in known}
    given.setdefault("rdzv_backend", config.rdzv_backend)
    given.setdefault("role", config.role)
    if not config.rdzv_endpoint:
        given["rdzv_endpoint"] = "127.0.0.1:0"
    rendezvous_handler_registry.register("rallypoint", creator_factory())
    try:
        with _gpus_by_nvml():
            returned: dict[int, Any] = launch_agent(TorchConfig(**given), function, args)
    except TorchFailed as e:
        raise ChildFailedError(e.name, e.failures) from None
    except TorchSignal as e:
        raise SignalException(str(e), e.sigval) from None
    return returned


@contextmanager
def _gpus_by_nvml() -> Iterator[None]:
    """Has torch's launcher ask NVML whether there are GPUs, which it does before it forks. If it
    asked CUDA, no forked process could use one."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    given = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if given is not None:
            os.environ[name] = given


def _unsafe() -> str:
    """Why this process cannot be forked; "" if it can."""
    torch = sys.modules.get("torch")
    for device in ("cuda", "xpu"):
        module = getattr(torch, device, None)
        if module is not None and module.is_initialized():
            return f"this process has used {device.upper()}, which no forked process can use"
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not _of_kernel(thread):
            return (
                f"thread {thread.name!r} runs, whose locks would stay locked in the workers: end it"
            )
    if threading.current_thread() is not threading.main_thread():
        return "this is not the main thread"
    return ""


def _of_kernel(thread: threading.Thread) -> bool:
    """Whether a thread is one of the notebook's kernel, or of this package."""
    target = getattr(thread, "_target", None)
    modules = [type(thread).__module__, str(getattr(target, "__module__", ""))]
    owner = getattr(target, "__self__", None)
    modules.append(type(owner).__module__)
    return any(m.split(".")[0] in (*_KERNEL, "rallypoint") for m in modules)

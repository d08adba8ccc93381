"""What only the call frames of torch's agent and launcher tell a handler.

torch calls shutdown() without saying why, and takes an end without failure for a crash in one
place. No argument and no hook of its tells the two apart, so the handler looks at who calls it.
Each function says which versions of torch it serves; `make test` and `make test-long` run the
handler under torch 2.4, 2.8 and the newest that is pinned. Where torch renames one of these
functions, the answer is False, which is the right one for a caller that is not torch.
"""

from __future__ import annotations

import sys
from types import FrameType


def ending_unknown() -> bool:
    """Whether torch's agent stops its workers before it is known how its part ended.

    Up to torch 2.7 the agent shuts its handler down each time it stops its workers for good
    (SimpleElasticAgent._stop_workers, and LocalElasticAgent._shutdown), also before the failure
    is raised; launch_agent() does so again at the very end, when the exception in flight tells
    how. Newer ones call shutdown() only there.

    To be called by the method that torch calls.
    """
    caller = _above(2)
    if caller is None or caller.f_code.co_name != "_shutdown":
        return False
    above = caller.f_back
    if above is not None and above.f_code.co_name == "_stop_workers":
        return True
    while above is not None:
        if above.f_code.co_name == "launch_agent":
            return True
        above = above.f_back
    return False


def workers_failed() -> bool:
    """Whether the caller is an agent of torch whose workers failed.

    Needed up to torch 2.7, for an agent that runs without torch's launcher: it returns the
    failure, so that no exception is in flight.

    To be called by the method that torch calls.
    """
    caller = _above(2)
    agent = caller.f_locals.get("self") if caller is not None else None
    state = getattr(getattr(agent, "_worker_group", None), "state", None)
    return getattr(state, "name", None) == "FAILED"


def under_torchrun() -> bool:
    """Whether torchrun's own main is among the callers.

    In all versions since 2.4 the main of torch.distributed.run makes a crash of
    RendezvousGracefulExitError, which its agent raises for a node that the run never needed.
    """
    frame = _above(1)
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if (
            frame.f_code.co_name in ("main", "run")
            and getattr(spec, "name", None) == "torch.distributed.run"
        ):
            return True
        frame = frame.f_back
    return False


def _above(count: int) -> FrameType | None:
    """The frame so many calls above the function that asks; None above the outermost."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and count > 0:
        frame, count = frame.f_back, count - 1
    return frame

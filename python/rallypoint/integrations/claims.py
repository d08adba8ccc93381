"""The fence of the folder that a training library writes its checkpoints into."""

from __future__ import annotations

import itertools
import json
import os
from contextlib import AbstractContextManager

import torch.distributed

from .. import Fence, RallypointError
from .._errors import make_error

_PATIENCE = 240.0  # seconds for the lock; the others wait in the store for 300, by torch's default
_numbers = itertools.count()  # of this process's claims, which all ranks make in one order


class Claims:
    """Claims a folder for each checkpoint of a job, so that no other job writes there unseen.

    The main process has the fence and claims; the others learn the result, and fail alike.

    Args:
        fence: True, False for no fence, or one that was opened before.
    """

    def __init__(self, fence: Fence | bool) -> None:
        self._fence = fence if isinstance(fence, Fence) else None
        self._wanted = fence is not False
        self._main = True
        self._begun = False
        self._claim: AbstractContextManager[str] | None = None

    def open(self, folder: str | os.PathLike[str] | None, main: bool) -> None:
        """Remembers the folder's version, before a checkpoint is loaded; again: nothing.

        Args:
            folder: None: there is none, and nothing is claimed.
            main: whether this is the process that claims, one of the job.
        """
        self._main = main
        self._wanted = self._wanted and (self._fence is not None or bool(folder))
        if self._wanted and main and self._fence is None and folder:
            self._fence = Fence(folder, into=True)

    def begin(self) -> None:
        """Claims the folder before a checkpoint is written there; again: nothing.

        All processes of the job call it.

        Raises:
            FencedError and what else Fence.claim raises, in all of them.
        """
        if not self._wanted or self._begun:
            return
        refused: RallypointError | None = None
        if self._main and self._fence is not None:
            claim = self._fence.claim(_PATIENCE)
            try:
                claim.__enter__()
                self._claim = claim
            except RallypointError as e:
                refused = e
        refused = _share(refused, self._main)
        if refused is not None:
            raise refused
        self._begun = True

    def end(self) -> None:
        """Ends what begin began, once all processes have written; without it: nothing."""
        claim, self._claim, self._begun = self._claim, None, False
        if claim is not None:
            claim.__exit__(None, None, None)


def _share(refused: RallypointError | None, main: bool) -> RallypointError | None:
    """The main process's result, in all processes. It goes through the store of the process
    group: a collective would meet another one of a rank that saves at another step."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return refused
    if torch.distributed.get_world_size() == 1:
        return refused
    store = torch.distributed.distributed_c10d._get_default_store()
    key = f"rallypoint/claim/{next(_numbers)}"
    if main:
        told = [refused.code, str(refused), refused.retryable] if refused else []
        store.set(key, json.dumps(told))
        return refused
    told = json.loads(store.get(key))
    return make_error(*told) if told else None

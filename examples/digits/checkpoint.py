"""A checkpoint file that is always whole and that an older round cannot overwrite.

When a node is cut off, its workers may continue for a while without knowing that the others
have regrouped. Such an orphan must not overwrite what the newer round has written. So
each checkpoint records the round of its writer, and a write is refused if the file is
already of a later one. A round that resumes marks the file as its own before it trains,
so that an orphan is refused from then on, not only after the first new checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


class StaleRoundError(RuntimeError):
    """A later round owns the checkpoint: this process is an orphan and must end."""


def current_round() -> int:
    """Returns the number of the rendezvous round this worker belongs to, 0 if unknown.

    Rallypoint sets RALLYPOINT_ROUND, which grows with each regroup of a run. Other
    backends have no such number. TORCHELASTIC_RESTART_COUNT is none: nodes that came at
    different times disagree on it, so the next writer's may be lower than the last one's.
    """
    return int(os.environ.get("RALLYPOINT_ROUND") or 0)


class Checkpoint:
    """The checkpoint at `path`, for one process per round (the worker of rank 0).

    Rounds are compared within one run id, and only while that run is unfinished. Another
    run takes the file over. A worker without a round number (round 0) is not refused.

    Writers exclude each other by a lock on `path`.lock. The folder may be shared by
    several machines if its file system has flock.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.round = current_round()
        self._run = os.environ.get("TORCHELASTIC_RUN_ID", "none")

    def claim(self) -> bytes:
        """Marks the file as this round's and returns its content, b"" if there is none.

        Raises StaleRoundError if a later round of this run has claimed or written it.
        """
        with self._locked():
            state = self._read_unless_stale()
            if state is None:
                return b""
            return self._replace(state)

    def save(self, state: dict[str, Any]) -> None:
        """Replaces the file by `state`: a reader sees the old or the new, never a part.

        On return the new one is on the disk. `state["finished"]` says that the run needs no
        further round. Raises StaleRoundError, and leaves the file as it is, if a later round
        of this run has claimed or written it.
        """
        with self._locked():
            self._read_unless_stale()
            self._replace(state)

    def _read_unless_stale(self) -> dict[str, Any] | None:
        if not self.path.exists():
            return None
        state = load(self.path.read_bytes())
        same_run = state["run"] == self._run and not state["finished"]
        if same_run and 0 < self.round < state["round"]:
            raise StaleRoundError(
                f"{self.path} belongs to round {state['round']} of run {self._run!r}, this is"
                f" round {self.round}. If the whole job was started again, give it a new --rdzv-id."
            )
        return state

    def _replace(self, state: dict[str, Any]) -> bytes:
        buffer = io.BytesIO()
        torch.save({**state, "run": self._run, "round": self.round}, buffer)
        data = buffer.getvalue()
        temporary = self.path.with_name(self.path.name + ".tmp")
        with open(temporary, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, self.path)
        _sync_folder(self.path.parent)
        return data

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        path = self.path.with_name(self.path.name + ".lock")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)  # gives up the lock


def load(data: bytes) -> dict[str, Any]:
    """Returns the state in a checkpoint. Content that is not plain data is refused."""
    state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return state


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""Folders for temporary files of this process; those of killed processes are removed later."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time

_PREFIX = "rallypoint_"
# A folder has this name only once it is locked (flock(2)), for as long as its process lives.
_LOCKED = "-locked"
# How long to look for folders of killed processes, where others may make any number of names.
_LOOKING = 0.05


class OwnFolder:
    """A folder below TMPDIR that only this user may enter, until it is closed.

    Before it is made, those of this user's processes that were killed are removed.

    Attributes:
        path: of the folder.
    """

    def __init__(self) -> None:
        _remove_left(tempfile.gettempdir())
        self.path = tempfile.mkdtemp(prefix=_PREFIX)  # mode 0700
        self._lock = -1
        try:
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(self.path, self.path + _LOCKED)
            self.path += _LOCKED
        except OSError:  # the file system has no locks: nobody else removes the folder
            pass

    def close(self) -> None:
        """Removes the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_left(base: str) -> None:
    end = time.monotonic() + _LOOKING
    try:
        with os.scandir(base) as entries:
            for entry in entries:
                if time.monotonic() > end:
                    return
                if entry.name.startswith(_PREFIX) and entry.name.endswith(_LOCKED):
                    _remove_unlocked(entry)
    except OSError:
        pass


def _remove_unlocked(entry: os.DirEntry[str]) -> None:
    try:
        if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
            return
        lock = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(entry.path, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(lock)

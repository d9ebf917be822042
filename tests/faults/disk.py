"""The one seam through which disks fail: counts what a process does to files below a folder, and lets the n-th go wrong.

Counted are the writes to opened files, tensors saved, flushes, renames and new folders: all that `headstart.files`, the
shards and safetensors do to a disk. Half of what a failing write was given reaches the file, as on a real disk.
"""

import errno
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headstart.store import tensors

Act = Callable[[], None]


def full() -> None:
    """The disk is full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken() -> None:
    """The disk is broken."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def killed() -> None:
    """The process ends here, without a chance to tidy up."""
    os.kill(os.getpid(), signal.SIGKILL)


class Disk:
    """While it is entered, whatever happens below `root` is counted, and the operation number `at` goes wrong.

    Args:
        act: what happens then.
        late: the operation is done first, then it goes wrong.
    """

    def __init__(self, root: Path, at: int | None = None, act: Act = full, *, late: bool = False) -> None:
        self.root, self.at, self.act, self.late = str(root.resolve()), at, act, late
        self.log: list[str] = []
        """The operations so far, as `rename manifest.json`."""

    def __enter__(self) -> Self:
        self._before = (io.open, os.fsync, os.rename, os.replace, os.mkdir, tensors.save_file)
        _, fsync, rename, replace, mkdir, _ = self._before
        io.open = self._open
        os.fsync = lambda handle: self._do("flush", _path_of(handle), lambda: fsync(handle))
        os.rename = lambda old, new, **more: self._do("rename", new, lambda: rename(old, new, **more))
        os.replace = lambda old, new, **more: self._do("rename", new, lambda: replace(old, new, **more))
        os.mkdir = lambda path, *more, **named: self._do("folder", path, lambda: mkdir(path, *more, **named))
        tensors.save_file = self._save_file
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        io.open, os.fsync, os.rename, os.replace, os.mkdir, tensors.save_file = self._before

    def _do(self, kind: str, path: Any, work: Callable[[], Any], half: Callable[[], Any] = lambda: None) -> Any:
        folder = os.path.abspath(os.fspath(path)) if path is not None else ""
        if not folder.startswith(self.root):
            return work()
        number = len(self.log)
        self.log.append(f"{kind} {os.path.basename(folder)}")
        if number == self.at:
            (work if self.late else half)()
            self.act()
        return work()

    def _open(self, path: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        file = self._before[0](path, mode, *more, **named)
        return _Counted(file, path, self) if set(mode) & set("wax+") else file

    def _save_file(self, content: Any, path: Any, *more: Any) -> None:
        save_file = self._before[-1]

        def half() -> None:
            save_file(content, path, *more)
            os.truncate(path, os.path.getsize(path) // 2)

        self._do("write", path, lambda: save_file(content, path, *more), half)


class _Counted:
    """A file whose writes are counted."""

    def __init__(self, file: Any, path: Any, disk: Disk) -> None:
        self._file, self._path, self._disk = file, path, disk

    def write(self, content: Any) -> int:
        def half() -> None:
            self._file.write(content[: len(content) // 2])
            self._file.flush()

        return self._disk._do("write", self._path, lambda: self._file.write(content), half)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _path_of(handle: int) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return None

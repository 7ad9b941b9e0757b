"""What a process does that no reader may: start programs, connect, change files of others."""

import os
import sys
from pathlib import Path

STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn",
          "os.spawn", "pty.spawn", "socket.connect", "webbrowser.open")  # fmt: skip
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink",
           "os.chmod", "os.chown", "os.utime", "shutil.rmtree", "shutil.move")  # fmt: skip


class Watch:
    """An audit hook that notes each program, each connection, and each file that is opened to be
    written, moved, made or removed outside a folder.
    """

    def __init__(self, folder: Path):
        self.folder, self.on, self.seen = str(folder), False, []
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple) -> None:
        if not self.on:
            return
        if event in STARTS:
            self.seen.append(f"{event} {arguments!r:.200}")
        elif event in CHANGES or (event == "open" and self._writes(arguments)):
            paths = arguments[:2] if event in ("os.rename", "shutil.move") else arguments[:1]
            for path in paths:
                if isinstance(path, (str, bytes, os.PathLike)) and not self._inside(path):
                    self.seen.append(f"{event} {arguments!r:.200}")

    @staticmethod
    def _writes(arguments: tuple) -> bool:
        _, mode, flags = arguments
        by_flags = (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        return bool(by_flags) or any(letter in (mode or "") for letter in "wax+")

    def _inside(self, path) -> bool:
        real = os.path.realpath(os.fsdecode(path))
        # shutil.rmtree works with names relative to an open folder, which it reports as they are
        return real.startswith(self.folder) or not os.path.isabs(os.fsdecode(path))

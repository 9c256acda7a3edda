"""Tools that list, read and write the files of one folder, and nothing outside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from agentkit_fast.tools import ToolSet, tool

__all__ = ["FolderTools", "OutsideFolder"]

_MOST_BYTES = 1 << 20


class OutsideFolder(ValueError):
    """A path that leads out of the folder."""


class FolderTools:
    """File tools confined to `folder`.

    Paths are relative to the folder. One that leads out of it (`..`, an absolute path, a symbolic link) is
    refused with a message that the model can act on.
    """

    def __init__(self, folder: str | os.PathLike[str], *, write: bool = True) -> None:
        self.folder = Path(folder).resolve(strict=True)
        if not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is not a folder")
        self._write = write

    def _inside(self, path: str) -> Path:
        full = (self.folder / path).resolve()
        if full != self.folder and self.folder not in full.parents:
            raise OutsideFolder(
                f"{path!r} is outside the folder; use a path relative to it, such as notes.txt"
            )
        return full

    def list_files(self) -> str:
        """List the files of the folder, one a line, with their sizes in bytes."""
        rows = []
        for root, folders, names in os.walk(self.folder):
            folders.sort()
            for name in sorted(names):
                path = Path(root) / name
                if path.is_file() and not path.is_symlink():
                    rows.append(f"{path.relative_to(self.folder).as_posix()} ({path.stat().st_size} bytes)")
        return "\n".join(rows) or "The folder is empty."

    def read_file(self, path: str) -> str:
        """Read a text file of the folder.

        Args:
            path: Name of the file, relative to the folder.
        """
        full = self._inside(path)
        if not full.is_file():
            return f"ERROR: there is no file {path!r}. The files are:\n{self.list_files()}"
        size = full.stat().st_size
        if size > _MOST_BYTES:
            return (
                f"ERROR: {path!r} has {size} bytes, more than the {_MOST_BYTES} that can be read at once."
            )
        return full.read_bytes().decode("utf-8", "replace")

    def write_file(self, path: str, content: str) -> str:
        """Write a text file of the folder, replacing one of the same name.

        Args:
            path: Name of the file, relative to the folder.
            content: The whole text of the file.
        """
        full = self._inside(path)
        if full.is_dir():
            return f"ERROR: {path!r} is a folder; give the name of a file."
        full.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode("utf-8", "replace")
        full.write_bytes(data)
        return f"Wrote {len(data)} bytes to {full.relative_to(self.folder).as_posix()}."

    def tools(self) -> ToolSet:
        """The tools, as a set to give to a session."""
        functions: list[Callable[..., str]] = [self.list_files, self.read_file]
        if self._write:
            functions.append(self.write_file)
        return ToolSet([tool(function) for function in functions])

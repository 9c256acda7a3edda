"""Sequences kept on disk, so that a session resumes in another process without being evaluated again.

A file is believed only when all of it is there and its checksum fits; any other is deleted and the tokens are
evaluated, as if it had never been.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentkit_fast._core import GgufHeader
from agentkit_fast.errors import AgentkitError
from agentkit_fast.runners._local.llama import Model

__all__ = ["StateCache", "model_key"]

log = logging.getLogger("agentkit_fast.local")

Ids = NDArray[np.int32]
State = NDArray[np.uint8]

_MAGIC = b"agentkit-fast state 1\n"
_SUFFIX = ".akstate"
# A header is a line of JSON; anything longer is no file of ours.
_MAX_HEADER = 4096
_CHUNK = 16 << 20
# A file still being written is younger than this.
_ABANDONED_S = 3600.0
_UNUSABLE = (OSError, ValueError, MemoryError, msgspec.MsgspecError)


class Stored(NamedTuple):
    """A file and the ids whose state it holds."""

    path: Path
    ids: Ids
    size: int


class Header(msgspec.Struct, kw_only=True, frozen=True):
    """The line before the ids and the state."""

    model: str
    tokens: Annotated[int, msgspec.Meta(ge=0)]
    state: Annotated[int, msgspec.Meta(ge=0)]
    digest: int


class StateCache:
    """A folder of states, of at most `limit` bytes; those not used for longest go first.

    Several processes may use one folder: files appear whole or not at all.
    """

    def __init__(self, folder: str | os.PathLike[str], key: str, limit: int) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._key = key
        self._limit = limit

    def stored(self) -> list[Stored]:
        """What is there for this model: headers and ids are read, no states."""
        found = []
        for path in sorted(self.folder.glob(f"{self._key[:16]}-*{_SUFFIX}")):
            try:
                with path.open("rb") as file:
                    header, ids = self._read_head(file)
                    size = os.fstat(file.fileno()).st_size
                    if file.tell() + header.state != size:
                        raise ValueError(f"it has {size} bytes")
            except FileNotFoundError:  # another process took it away just now
                continue
            except _UNUSABLE as error:
                self._discard(path, error)
                continue
            if header.model == self._key:
                found.append(Stored(path, ids, size))
        return found

    def _read_head(self, file: BinaryIO) -> tuple[Header, Ids]:
        """The header and the ids; the file stands at the state then."""
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it does not begin as one")
        header = msgspec.json.decode(file.readline(_MAX_HEADER), type=Header)
        size = os.fstat(file.fileno()).st_size
        if header.tokens * 4 + header.state > size:
            raise ValueError(f"it is cut short at {size} bytes")
        return header, np.frombuffer(file.read(header.tokens * 4), dtype="<i4").astype(np.int32)

    def load(self, stored: Stored, progress: Callable[[float], None] = lambda _: None) -> State | None:
        """The state, or nothing where the file is damaged (then it is gone). `progress` hears what part is read."""
        reading = self._read_state(stored)
        while True:
            try:
                part = next(reading)
            except StopIteration as done:
                state: State = done.value
                break
            except FileNotFoundError:
                # Another process took it away: a longer state has its place, or the folder was full.
                log.info("%s is no longer there.", stored.path)
                return None
            except _UNUSABLE as error:
                self._discard(stored.path, error)
                return None
            progress(part)
        with contextlib.suppress(OSError):
            os.utime(stored.path)
        return state

    def _read_state(self, stored: Stored) -> Generator[float, None, State]:
        """Yields what part of the file is read."""
        with stored.path.open("rb") as file:
            header, ids = self._read_head(file)
            state = np.empty(header.state, dtype=np.uint8)
            digest = _digest(header.model, ids)
            for start in range(0, len(state), _CHUNK):
                piece = state[start : start + _CHUNK]
                if file.readinto(piece.data) != len(piece):
                    raise ValueError("it is cut short")
                digest = zlib.crc32(piece.data, digest)
                yield (start + len(piece)) / (len(state) + 1)
        if header.digest != digest or header.model != self._key:
            raise ValueError("its checksum does not fit")
        return state

    def save(self, ids: Ids, state: State) -> Stored | None:
        """Write a state. A full disk is logged, not raised: a cache must not break a conversation."""
        name = f"{self._key[:16]}-{hashlib.sha256(ids.astype('<i4').tobytes()).hexdigest()[:32]}{_SUFFIX}"
        path = self.folder / name
        if state.nbytes > self._limit:
            return None
        digest = zlib.crc32(state.data, _digest(self._key, ids))
        header = Header(model=self._key, tokens=len(ids), state=state.nbytes, digest=digest)
        head = msgspec.json.encode(header) + b"\n"
        try:
            with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".tmp", delete=False) as file:
                try:
                    file.write(_MAGIC + head + ids.astype("<i4").tobytes())
                    file.write(state.data)
                    file.close()
                    Path(file.name).replace(path)
                except BaseException:
                    with contextlib.suppress(OSError):
                        Path(file.name).unlink()
                    raise
        except OSError as error:
            log.warning("A state of %d bytes could not be kept in %s: %s", state.nbytes, self.folder, error)
            return None
        self.trim()
        return Stored(path, ids, state.nbytes)

    def trim(self) -> None:
        """Delete the files longest unused until the rest fit, and what a killed process left half written."""
        for path in self.folder.glob("*.tmp"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink()
        files = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._limit:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size

    def drop(self, stored: Stored) -> None:
        """Delete a file, because a longer one holds its conversation."""
        with contextlib.suppress(OSError):
            stored.path.unlink()

    def _discard(self, path: Path, error: Exception) -> None:
        log.warning("%s is no usable state and is deleted: %s.", path, error)
        with contextlib.suppress(OSError):
            path.unlink()


def _digest(key: str, ids: Ids) -> int:
    """The checksum of all but the state, which goes on from it.

    Against damage, not against malice: CRC-32 reads 70 MB in 0.07 s where blake2b takes 0.36 s, and a session of
    3,000 tokens is to resume in a hundredth of its evaluation.
    """
    return zlib.crc32(ids.astype("<i4").tobytes(), zlib.crc32(key.encode()))


def model_key(model: Model, folder: str | os.PathLike[str], settings: dict[str, Any]) -> str:
    """Names a model by what it computes: its weights' bytes, its architecture's figures, and the settings.

    Hashing 100 MB takes a tenth of a second, so the result is remembered beside the states for as long as the
    file's size, time and inode stay.
    """
    weights = _weights_digest(model.path, Path(folder))
    arch = model.metadata.get("general.architecture", "")
    figures = {key: value for key, value in model.metadata.items() if key.startswith(f"{arch}.")}
    text = json.dumps([weights, arch, figures, settings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _weights_digest(path: Path, folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    status = path.stat()
    name = str(path.resolve())
    mark = [name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    memo = folder / f"weights-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(memo.read_text(encoding="utf-8"))
        if known["file"] == mark:
            return str(known["digest"])
    digest = hashlib.blake2b(digest_size=32)
    try:
        start = int(GgufHeader(path).byte_len)
    except (AgentkitError, OSError, ValueError):
        start = 0  # an exotic header: hashed with the rest
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    found = digest.hexdigest()
    with (
        contextlib.suppress(OSError),
        tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False) as file,
    ):
        json.dump({"file": mark, "digest": found}, file)
        file.close()
        Path(file.name).replace(memo)
    return found

"""The models folder, with the layout of ComfyUI's.

root/checkpoints/name.safetensors     single file
root/checkpoints/sub/name.safetensors named "sub/name.safetensors"
root/checkpoints/name/model_index.json a diffusers folder, named "name"
root/name.safetensors                 a checkpoint may also lie here
root/checkpoints/name.config/         sizes of name.safetensors where they are not standard
root/loras/, vae/, controlnet/, ...    the other kinds, in the same way
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.errors import CheckpointUnavailable

CHECKPOINTS = "checkpoints"
CONTROL_NETS = "controlnet"
UPSCALE_MODELS = "upscale_models"
LORAS = "loras"
VAES = "vae"
EMBEDDINGS = "embeddings"
CONFIG_SUFFIX = ".config"
_MODEL_SUFFIX = ".safetensors"
_PICKLED = (".ckpt", ".pt", ".pth", ".bin")
FOLDER_MARK = "model_index.json"


class ModelsFolder:
    """Names and paths of the models below `root`. A listing is read again after `ttl_s` seconds."""

    def __init__(
        self, root: Path, *, ttl_s: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._root = Path(root)
        self._ttl_s = ttl_s
        self._clock = clock
        self._listings: dict[str, tuple[float, dict[str, Path]]] = {}

    def names(self, kind: str) -> tuple[str, ...]:
        """The models of a kind ("checkpoints", "loras", ...), sorted."""
        return tuple(self._listing(kind))

    def path(self, kind: str, name: str) -> Path:
        """The path of a model. Raises CheckpointUnavailable if no such model is listed.

        Only listed names have a path, so no name leads out of the folder.
        """
        _, known = self._listings.get(kind, (0.0, {}))
        path = known.get(name)
        if path is not None and path.exists():
            # The device thread asks so, and must not wait for a large folder to be read.
            return path
        path = self._listing(kind).get(name)
        if path is None or not path.exists():
            if pickled := self.pickled(kind).get(name):
                raise pickled_refused(pickled)
            raise CheckpointUnavailable(
                f"no {name!r} in {kind}: put it there or name one of GET /v1/models"
            )
        return path

    def pickled(self, kind: str) -> dict[str, Path]:
        """The pickled files of a kind, by name with and without suffix. Listings leave them out."""
        found: dict[str, Path] = {}
        for name, path in self._pickled(kind):
            found.setdefault(name, path)
            found.setdefault(name.removesuffix(path.suffix), path)
        return found

    def _pickled(self, kind: str) -> Iterator[tuple[str, Path]]:
        if not _is_kind(kind):
            return
        folders = [(self._root / kind, "**/*")]
        if kind == CHECKPOINTS:
            folders.append((self._root, "*"))
        for folder, pattern in folders:
            for path in folder.glob(pattern):
                if path.suffix in _PICKLED:
                    yield path.relative_to(folder).as_posix(), path

    def _listing(self, kind: str) -> dict[str, Path]:
        read_at, listing = self._listings.get(kind, (float("-inf"), {}))
        now = self._clock()
        if now - read_at >= self._ttl_s:
            listing = dict(sorted(self._read(kind)))
            self._listings[kind] = (now, listing)
        return listing

    def _read(self, kind: str) -> Iterator[tuple[str, Path]]:
        if kind == CHECKPOINTS:
            yield from _models_at_top(self._root)
        if not _is_kind(kind):
            return
        folder = self._root / kind
        for path in _models_below(folder):
            yield path.relative_to(folder).as_posix(), path


def pickled_refused(path: Path) -> CheckpointUnavailable:
    return CheckpointUnavailable(
        f"{path.name} is pickled, and a pickled file can run any code when it is read: "
        "convert it to .safetensors and put that there"
    )


def _is_kind(kind: str) -> bool:
    """Whether it is the name of a folder, and not a path."""
    return Path(kind).name == kind and kind != ".."


def _models_at_top(root: Path) -> Iterator[tuple[str, Path]]:
    for path in root.iterdir() if root.is_dir() else ():
        if _is_model_file(path.name) or _is_model_folder(path):
            yield path.name, path


def _models_below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        here = Path(parent)
        models = {name for name in folders if _is_model_folder(here / name)}
        folders[:] = [n for n in folders if n not in models and not n.endswith(CONFIG_SUFFIX)]
        yield from (here / name for name in models)
        yield from (here / name for name in files if _is_model_file(name))


def _is_model_file(name: str) -> bool:
    return name.endswith(_MODEL_SUFFIX) and not name.startswith(".")


def _is_model_folder(path: Path) -> bool:
    return not path.name.endswith(CONFIG_SUFFIX) and (path / FOLDER_MARK).is_file()

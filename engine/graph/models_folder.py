"""The models folder, with the layout of ComfyUI's models folder.

root/checkpoints/name.safetensors     single file
root/checkpoints/sub/name.safetensors named "sub/name.safetensors"
root/checkpoints/name/model_index.json a diffusers folder, named "name"
root/name.safetensors                 also a checkpoint
root/checkpoints/name.config/         the configuration, if name.safetensors has unusual sizes
root/loras/, vae/, controlnet/, ...    the other kinds, in the same way
root/diffusion_models/, or unet/       networks without their text encoders and VAE
root/text_encoders/, or clip/          text encoders
root/hypernetworks/name.pt             hypernetworks
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from copy import copy
from errno import ENOTDIR
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import Any

from engine.errors import CheckpointUnavailable, ModelsUnavailable
from engine.timed_reads import TimedReads

CHECKPOINTS = "checkpoints"
CONTROL_NETS = "controlnet"
UPSCALE_MODELS = "upscale_models"
LORAS = "loras"
VAES = "vae"
EMBEDDINGS = "embeddings"
HYPERNETWORKS = "hypernetworks"
DIFFUSION_MODELS = "diffusion_models"
TEXT_ENCODERS = "text_encoders"
CLIP_VISIONS = "clip_vision"
STYLE_MODELS = "style_models"
MODEL_PATCHES = "model_patches"
GLIGENS = "gligen"
_OLD_FOLDERS = {DIFFUSION_MODELS: "unet", TEXT_ENCODERS: "clip"}
"""Earlier names of ComfyUI for the folders of some kinds. These folders are read as well."""
CONFIG_SUFFIX = ".config"
MODEL_SUFFIX = ".safetensors"
_OTHER_SUFFIXES = {HYPERNETWORKS: ".pt"}
"""The suffixes of kinds that have no safetensors files. The readers of these files run no code."""
_PICKLED = (".ckpt", ".pt", ".pth", ".bin")
FOLDER_MARK = "model_index.json"
_MOST_JSON_BYTES = 2**24
_DEEPEST = 64


class ModelsFolder:
    """Names and paths of the models below `root`. A listing is read again after `ttl_s` seconds.

    If the folder does not respond within `timeout_s` seconds, the last listing is used. If there is
    no last listing, the methods that read the folder raise ModelsUnavailable.
    """

    def __init__(
        self,
        root: Path,
        *,
        comfyui_dir: Path | None = None,
        ttl_s: float = 2.0,
        timeout_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root = Path(root)
        self.comfyui_dir = comfyui_dir or self.root.parent
        """The configured ComfyUI install, or the parent of the models folder, which may be one."""
        self.reads = TimedReads(ttl_s=ttl_s, timeout_s=timeout_s, clock=clock)
        """Reads files of the folder in a separate thread, so that its callers cannot hang."""
        self.hashes = TimedReads(
            ttl_s=ttl_s, timeout_s=timeout_s, clock=clock, subject="A hash of a model"
        )
        """Computes hashes of whole files in another thread, so that other reads do not wait."""
        self._checkpoints: frozenset[str] | None = None
        """The checkpoints that may be listed; None means all checkpoints."""

    def only(self, checkpoints: Collection[str]) -> ModelsFolder:
        """Return a view of the same folder that lists only these checkpoints."""
        view = copy(self)
        view._checkpoints = frozenset(checkpoints)
        return view

    def exists(self) -> bool:
        """Whether `root` is a folder. Raises ModelsUnavailable."""
        return self.reads.read("root", self.root.is_dir)

    def names(self, kind: str) -> tuple[str, ...]:
        """Return the names of the models of a kind ("checkpoints", "loras", ...), sorted."""
        return tuple(self._listing(kind))

    def paths(self, kind: str) -> Mapping[str, Path]:
        """Return the paths of the models of a kind by name, from the last listing."""
        return self._listing(kind)

    def top_level_path(self, name: str) -> Path:
        """Return the path of a file beside the folders of models."""
        return self.root / name

    def path(self, kind: str, name: str) -> Path:
        """Return the path of a model. Raises CheckpointUnavailable if no such model is listed.

        Only listed names have a path, so a name cannot point outside of the folder.
        """
        known: Mapping[str, Path] = self.reads.last(("listing", kind)) or {}
        path = known.get(name)
        if path is not None and self._lists(kind, name) and self._may_exist(path):
            # The device thread calls this method, and must not read the listing of a large folder.
            return path
        path = self._listing(kind).get(name)
        if path is None or not self._may_exist(path):
            if pickled := self.pickled(kind).get(name):
                raise pickled_refused(pickled)
            raise CheckpointUnavailable(
                f"there is no {name!r} in {kind}: put the file there, or use a name of GET "
                "/v1/models"
            )
        return path

    def pickled(self, kind: str) -> dict[str, Path]:
        """Return the pickled files of a kind, by name with and without suffix.

        They only explain errors, so none are known while the folder does not respond.
        """
        try:
            return self.reads.read(("pickled", kind), partial(_read_pickled, self.root, kind))
        except ModelsUnavailable:
            return {}

    def require_answer(self) -> None:
        """Raise ModelsUnavailable if the folder does not respond now."""
        self.reads.read_now(self.root, self.root.exists, ttl_s=0)

    def _may_exist(self, path: Path) -> bool:
        with suppress(ModelsUnavailable):
            return self.reads.read(path, path.exists)
        return True  # The folder does not answer, but the model was listed before.

    def _listing(self, kind: str) -> Mapping[str, Path]:
        listing: Mapping[str, Path] = self.reads.read(
            ("listing", kind), partial(_read_listing, self.root, kind)
        )
        if kind != CHECKPOINTS or self._checkpoints is None:
            return listing
        return {name: path for name, path in listing.items() if self._lists(kind, name)}

    def _lists(self, kind: str, name: str) -> bool:
        return kind != CHECKPOINTS or self._checkpoints is None or name in self._checkpoints


def _read_listing(root: Path, kind: str) -> dict[str, Path]:
    """Return the models of a kind.

    Raises NotADirectoryError if `root` is missing, for example because a disk is not mounted yet.
    """
    if not root.is_dir():
        raise NotADirectoryError(ENOTDIR, "the folder is missing")
    return dict(sorted(_models_of(root, kind)))


def _models_of(root: Path, kind: str) -> Iterator[tuple[str, Path]]:
    if kind == CHECKPOINTS:
        yield from _models_at_top(root)
    if not _is_kind(kind):
        return
    for folder in _folders(root, kind):
        for path in _models_below(folder, _OTHER_SUFFIXES.get(kind, MODEL_SUFFIX)):
            yield path.relative_to(folder).as_posix(), path


def _folders(root: Path, kind: str) -> list[Path]:
    """Return the folders of a kind. A model in a later folder replaces a model of the same name."""
    old = [root / _OLD_FOLDERS[kind]] if kind in _OLD_FOLDERS else []
    return [*old, root / kind]


def _read_pickled(root: Path, kind: str) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, path in _pickled_of(root, kind):
        found.setdefault(name, path)
        found.setdefault(name.removesuffix(path.suffix), path)
    return found


def _pickled_of(root: Path, kind: str) -> Iterator[tuple[str, Path]]:
    if not _is_kind(kind):
        return
    suffixes = {each for each in _PICKLED if each != _OTHER_SUFFIXES.get(kind)}
    for folder in _folders(root, kind):
        for here, _, files in _walk(folder):
            for path in (here / name for name in files):
                if path.suffix in suffixes:
                    yield path.relative_to(folder).as_posix(), path
    if kind == CHECKPOINTS and root.is_dir():
        yield from ((path.name, path) for path in root.iterdir() if path.suffix in suffixes)


def pickled_refused(path: Path) -> CheckpointUnavailable:
    return CheckpointUnavailable(
        f"{path.name} is pickled, and a pickled file can run any code when it is read: convert it "
        "to .safetensors, and put the new file there"
    )


def _is_kind(kind: str) -> bool:
    """Whether `kind` is the name of a folder, and not a path."""
    return Path(kind).name == kind and kind != ".."


def _models_at_top(root: Path) -> Iterator[tuple[str, Path]]:
    for path in root.iterdir() if root.is_dir() else ():
        if _is_model_file(path.name) or _is_model_folder(path):
            yield path.name, path


def _models_below(folder: Path, suffix: str) -> Iterator[Path]:
    for here, folders, files in _walk(folder):
        models = {name for name in folders if _is_model_folder(here / name)}
        folders[:] = [n for n in folders if n not in models and not n.endswith(CONFIG_SUFFIX)]
        yield from (here / name for name in models)
        yield from (here / name for name in files if _is_model_file(name, suffix))


def _walk(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Like os.walk, but not below `_DEEPEST` folders, because os.walk may be recursive."""
    for parent, folders, files in os.walk(folder, onerror=_raise_unless_absent):
        here = Path(parent)
        if len(here.parts) - len(folder.parts) >= _DEEPEST:
            folders.clear()
        yield here, folders, files


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
        raise error


def _is_model_file(name: str, suffix: str = MODEL_SUFFIX) -> bool:
    return name.endswith(suffix) and not name.startswith(".")


def _is_model_folder(path: Path) -> bool:
    return not path.name.endswith(CONFIG_SUFFIX) and (path / FOLDER_MARK).is_file()


def require_file(path: Path) -> os.stat_result:
    """Return the state of a regular file. Raises CheckpointUnavailable.

    Reading a named pipe would wait forever, and some devices have no end.
    """
    try:
        state = path.stat()
    except FileNotFoundError as error:
        raise CheckpointUnavailable(f"{path.name} does not exist any more") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointUnavailable(f"{path.name} cannot be read: {reason}") from error
    if not S_ISREG(state.st_mode):
        raise CheckpointUnavailable(f"{path.name} is not a file that a models folder may contain")
    return state


def read_json(path: Path) -> dict[str, Any]:
    """Return a configuration. Raises CheckpointUnavailable."""
    name = "/".join(path.parts[-3:])
    if require_file(path).st_size > _MOST_JSON_BYTES:
        raise CheckpointUnavailable(f"{name} has more than {_MOST_JSON_BYTES} bytes")
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, RecursionError, ValueError) as error:
        raise CheckpointUnavailable(f"{name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointUnavailable(f"{name} is not a configuration, because it is not an object")
    return found

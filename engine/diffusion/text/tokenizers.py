"""The tokenizers of language models, from files that the operator puts beside the encoders."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from engine.errors import CheckpointUnavailable
from engine.graph.models_folder import CONFIG_SUFFIX

TOKENIZER = "tokenizer.json"


def require_vocabulary(tokenizer: Tokenizer, size: int, name: str) -> None:
    """Raises CheckpointUnavailable for a tokenizer of more tokens than the encoder `name` knows.

    To look up one beyond them is an error of a GPU that ends all that its process does.
    """
    last = max(tokenizer.get_vocab().values(), default=0)
    if last >= size:
        raise CheckpointUnavailable(
            f"the tokenizer of {name} is that of another model: it has a token {last}, and the "
            f"encoder knows {size}"
        )


def tokenizer_file(place: Path, kind: str, shared: Path) -> Path:
    """The file of the tokenizer for an encoder of that kind; raises CheckpointUnavailable.

    `place` is the file of the encoder, or its folder in a diffusers folder, which has `tokenizer/`
    beside it, the second `tokenizer_2/`. For a file it lies in `name.config/` beside it, or in
    `kind.config/` of the folder `shared`, for all encoders of the kind.
    """
    if place.is_dir():
        number = place.name.removeprefix("text_encoder")
        places = [place.parent / f"tokenizer{number}" / TOKENIZER]
    else:
        folders = [place.with_suffix(CONFIG_SUFFIX), shared / f"{kind}{CONFIG_SUFFIX}"]
        places = [folder / TOKENIZER for folder in folders]
    for each in places:
        if each.is_file():
            return each
    wanted = " or ".join("/".join(each.parts[-3:]) for each in places)
    raise CheckpointUnavailable(
        f"{place.name} needs the tokenizer of {kind}, which is missing: put its {TOKENIZER} at "
        f"{wanted}"
    )


def read_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer, which is kept until its file changes; raises CheckpointUnavailable."""
    try:
        state = path.stat()
        return _read(path, state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise CheckpointUnavailable(f"{path.name} cannot be read: {error.strerror}") from error


@lru_cache(maxsize=8)
def _read(path: Path, _size_bytes: int, _changed_ns: int) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise CheckpointUnavailable(
            f"{'/'.join(path.parts[-2:])} is no tokenizer: {error}"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer

"""UploadStore: stores the files that callers upload. A file's name is never used as a path.

An image is decoded, rotated by its EXIF data and encoded as a plain PNG. A latent is encoded again.
Therefore stored images and latents contain no metadata and no trailing data, and none is valid in
two formats. Video and audio files are stored as they were sent, and are never decoded here.
"""

from __future__ import annotations

import hashlib
import io
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from events.ids import new_id
from events.log import utc_now
from events.store.records import Upload
from serve_app.access.owner_limits import OwnerLimits
from serve_app.fair_threads import FairThreads
from serve_app.file_signatures import IMAGE_SUFFIXES, MEDIA_SUFFIXES, suffix_in, suffixes_of
from serve_app.refusals import InvalidImage, InvalidLatent, InvalidUploadName, TooManyUploadBytes
from settings.constant import constant
from storage.file_names import upload_key, without_folder
from storage.images import ImageStore

if TYPE_CHECKING:
    from events.store.uploads import Uploads

_FORMATS = ("PNG", "JPEG", "WEBP")
_COMPRESSION = 3  # This level is fast, and an upload is read only a few times before it is removed.
_TENSOR = "latent_tensor"
_VERSION = "latent_format_version_0"
_KINDS = {np.dtype(np.float32), np.dtype(np.float16)}
_PIXELS_PER_CELL = 8
_MAX_PIXELS = constant("MAX_UPLOAD_PIXELS", 2**25)
_MAX_SIDE = 2**17
"""The largest side of an image. Decoding takes long for many rows, whatever their length."""
_JPEG_START, _JPEG_SCAN = b"\xff\xd8", b"\xff\xda"
_MAX_SCANS = 500
"""The most scans of a JPEG. A scan can be very short, but decoding it visits the whole image."""
_MAX_LATENT_HEADER_BYTES = 2**21
"""The largest header of a latent file, which grows with the number of tensors. ComfyUI also stores
the graph there.
"""
_MAX_NAME_CHARS = constant("MAX_UPLOAD_NAME_CHARS", 255)
_DECODES = constant("UPLOAD_DECODES", 2)
"""The number of threads of one replica that decode uploads. One owner cannot use all threads."""
_CONTENT_DIGITS = 40
_OWN_NAME = re.compile(
    rf"(sent-[0-9a-f]{{{_CONTENT_DIGITS}}}|blake3-[0-9a-f]{{64}}|output-[0-9a-f-]{{36}}-).*",
    re.IGNORECASE,
)
"""The names that the service gives: inline images, assets of Comfy API v2, and copies of results.
Such a name is trusted to stand for its content, and is removed with its job.
"""
_SEPARATORS = re.compile(r"[/\\]")
_CONTROL = {"Cc", "Cs"}
_INVISIBLE = _CONTROL | {"Cf", "Zl", "Zp"}
"""Categories of characters that could disguise a name, such as marks of the direction of text."""
_JOINERS = "\u200c\u200d"
"""Invisible characters that Persian words and emoji need."""
LATENT_SUFFIX = ".latent"


@dataclass(frozen=True, slots=True)
class SanitizedFile:
    """A file to store.

    Width and height of a latent are the sides of its decoded image. Those of a video or audio file
    are 0.
    """

    data: bytes
    width: int
    height: int


def read_input_file(data: bytes, name: str, *, max_pixels: int) -> SanitizedFile:
    """Return the form in which an upload is stored. Blocks the thread.

    Raises InvalidImage, InvalidLatent, and InvalidUploadName if the suffix of the name is not that
    of the video or audio file.
    """
    name = without_folder(name)
    if name.endswith(LATENT_SUFFIX):
        return read_input_latent(data, max_pixels=max_pixels)
    suffixes = suffixes_of(data)
    if suffixes == IMAGE_SUFFIXES:
        return read_input_image(data, max_pixels=max_pixels)
    if not suffixes:
        raise InvalidImage(
            "The file is neither a PNG, JPEG or WebP image nor a video or audio file "
            f"({', '.join(MEDIA_SUFFIXES)})."
        )
    if suffix_in(name, suffixes) is None:
        shown = " or ".join(f".{each}" for each in suffixes)
        raise InvalidUploadName(f"By its content, the name of the file must end with {shown}.")
    return SanitizedFile(data, width=0, height=0)


def read_input_image(data: bytes, *, max_pixels: int) -> SanitizedFile:
    """Decode an image, and encode it as a plain PNG. Blocks the thread. Raises InvalidImage."""
    if data.startswith(_JPEG_START) and data.count(_JPEG_SCAN) > _MAX_SCANS:
        raise InvalidImage(f"The JPEG has more than {_MAX_SCANS} scans.")
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _require_size(image, max_pixels)
            _require_still(image)
            image.load()
            plain = _plain(ImageOps.exif_transpose(image))
    except InvalidImage:
        raise
    except UnidentifiedImageError as error:
        raise InvalidImage("The file is not a PNG, JPEG or WebP image.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_many_pixels(max_pixels) from error
    except Exception as error:  # Decoders raise all kinds of errors for a damaged file.
        raise InvalidImage("The image is damaged or cut off.") from error
    out = io.BytesIO()
    plain.save(out, "PNG", compress_level=_COMPRESSION)
    return SanitizedFile(out.getvalue(), plain.width, plain.height)


def has_transparency(data: bytes) -> bool:
    """Return whether a valid input image may be transparent. Reads only the header."""
    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        return image.has_transparency_data


def _require_size(image: Image.Image, max_pixels: int) -> None:
    """Check the size in the header, before the image is decoded. Raises InvalidImage."""
    if image.width * image.height > max_pixels:
        raise _too_many_pixels(max_pixels)
    if max(image.size) > _MAX_SIDE:
        raise InvalidImage(f"The image has a side of more than {_MAX_SIDE} pixels.")


def _require_still(image: Image.Image) -> None:
    """Raise InvalidImage for an animation. An MPO file, a JPEG with a second image, is allowed."""
    if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
        raise InvalidImage("The image is animated. Send a single picture.")


def _plain(image: Image.Image) -> Image.Image:
    """Return the pixels as RGB, or as RGBA if the image has transparency, with 8 bits each."""
    if image.mode.startswith("I"):  # Pillow would clip grey values of 16 bits at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    plain = image.convert("RGBA" if image.has_transparency_data else "RGB")
    plain.info = {}
    return plain


def _too_many_pixels(max_pixels: int) -> InvalidImage:
    return InvalidImage(f"The image has more than {max_pixels} pixels.")


def read_input_latent(data: bytes, *, max_pixels: int) -> SanitizedFile:
    """Read a latent, (batch, channels, height, width), in the format of ComfyUI's SaveLatent.

    Other tensors and the metadata are dropped. Raises InvalidLatent.
    """
    header_bytes = int.from_bytes(data[:8], "little")
    if header_bytes > _MAX_LATENT_HEADER_BYTES and header_bytes <= len(data):
        raise InvalidLatent(
            f"The header of the latent has more than {_MAX_LATENT_HEADER_BYTES} bytes."
        )
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise InvalidLatent("The file is not a safetensors file, or it is damaged.") from error
    latent = tensors.get(_TENSOR)
    if latent is None or latent.ndim != 4 or latent.dtype not in _KINDS or not latent.size:
        raise InvalidLatent(
            f"The file has no {_TENSOR} of 16 or 32 bits and (batch, channels, height, width)."
        )
    if not np.isfinite(latent).all():
        raise InvalidLatent("The latent has values that are not finite.")
    height, width = (side * _PIXELS_PER_CELL for side in latent.shape[-2:])
    if len(latent) * height * width > max_pixels:
        raise InvalidLatent(f"The decoded image of the latent has more than {max_pixels} pixels.")
    sanitized = {_TENSOR: latent}
    if _VERSION in tensors:
        sanitized[_VERSION] = np.zeros(0, np.float32)
    return SanitizedFile(save(sanitized), width, height)


def upload_name(file_name: str) -> str:
    """Return the last part of a file name, normalized (NFC). Raises InvalidUploadName."""
    name = unicodedata.normalize("NFC", _SEPARATORS.split(file_name)[-1]).strip()
    if name in {"", ".", ".."}:
        raise InvalidUploadName("The file has no name.")
    if len(name) > _MAX_NAME_CHARS:
        raise InvalidUploadName(f"The file's name is longer than {_MAX_NAME_CHARS} characters.")
    if any(unicodedata.category(char) in _INVISIBLE and char not in _JOINERS for char in name):
        raise InvalidUploadName(
            "The file's name has invisible characters, such as control characters or marks of the "
            "direction of text. Choose another name."
        )
    if _OWN_NAME.fullmatch(name):
        raise InvalidUploadName(
            "Names that begin with sent-<hash>, blake3-<hash> or output-<job id>- are reserved for "
            "files that the service names. Choose another name."
        )
    return name


def is_upload_name(text: str) -> bool:
    """Return whether an upload may have the text as its name, also one of an earlier version."""
    if not 0 < len(text) <= _MAX_NAME_CHARS or _SEPARATORS.search(text):
        return False
    return not any(unicodedata.category(char) in _CONTROL for char in text)


def content_name(data: bytes) -> str:
    """Return the upload name of an image without a name. `upload_name` refuses such names."""
    return f"sent-{hashlib.sha256(data).hexdigest()[:_CONTENT_DIGITS]}.png"


class UploadStore:
    """Stores files in the image store, and adds a database row for each file."""

    def __init__(
        self,
        *,
        rows: Uploads,
        images: ImageStore,
        owner_limits: OwnerLimits,
    ) -> None:
        self.rows = rows
        self._images = images
        self.max_pixels = _MAX_PIXELS
        """The largest number of pixels of an input image."""
        self._owner_limits = owner_limits
        self.decodes = FairThreads(_DECODES)

    def stop(self) -> None:
        self.decodes.stop()

    async def add(self, owner: str, file_name: str, data: bytes) -> Upload:
        """Store a file under the last part of its file name.

        If the owner already has the same file under this name, returns the existing upload. Raises
        UploadRefused, Busy, DatabaseUnavailable, ImageStoreUnavailable.
        """
        return await self.add_own(owner, upload_name(file_name), data)

    async def add_own(self, owner: str, name: str, data: bytes) -> Upload:
        """Like `add`, under a name that the service chose and that `add` may refuse."""
        return await self._store(owner, name, data, partial(read_input_file, name=name))

    async def add_beside(self, owner: str, file_name: str, data: bytes) -> Upload:
        """Like `add`, but another file with the same name keeps its name.

        As in ComfyUI, the new file is then called `cat (1).png`, or has a higher number.
        """
        name = upload_name(file_name)
        read = partial(read_input_file, name=name)
        return await self._store(owner, name, data, read, is_beside=True)

    async def add_content(self, owner: str, data: bytes) -> Upload:
        """Store an image under a name that is derived from its bytes.

        If the image was stored before, returns the existing upload. Raises the errors of `add`.
        """
        name = await self.decodes.run(owner, content_name, data, is_quick=False)
        known = (await self.rows.use(owner, [name], utc_now())).get(name)
        if known is not None:
            return known
        return await self._store(owner, name, data, read_input_image)

    async def _store(
        self,
        owner: str,
        name: str,
        data: bytes,
        read: Callable[..., SanitizedFile],
        *,
        is_beside: bool = False,
    ) -> Upload:
        sanitize = partial(_sanitize, read, data, self.max_pixels)
        file, digest = await self.decodes.run(owner, sanitize, is_quick=False)
        now, upload_id = utc_now(), new_id()
        known = (await self.rows.use(owner, [name], now)).get(name)
        if known is not None and known.digest == digest:
            return known
        upload = Upload(
            id=upload_id,
            owner=owner,
            name=name,
            digest=digest,
            storage_key=upload_key(owner, digest, upload_id),
            width=file.width,
            height=file.height,
            size_bytes=len(file.data),
            created_at=now,
            used_at=now,
        )
        return await self._add(upload, file.data, is_beside=is_beside)

    async def _add(self, upload: Upload, data: bytes, *, is_beside: bool) -> Upload:
        """Store the file and its database row. Returns the row. Raises TooManyUploadBytes.

        The first check uses a recent sum. The second check is in the database, and is exact.
        """
        if max_bytes := self._owner_limits.settings.max_upload_bytes:
            used_bytes = (await self._owner_limits.kept_bytes(upload.owner)).upload_bytes
            if used_bytes + upload.size_bytes > max_bytes:
                raise TooManyUploadBytes(used_bytes, upload.size_bytes, max_bytes)
        await self._images.put(upload.storage_key, data)
        added: Upload | int | None
        if is_beside:
            added = await self.rows.add_beside(upload, max_bytes=max_bytes)
        else:
            added = await self.rows.add(upload, max_bytes=max_bytes)
        if added is None:
            return upload
        if isinstance(added, int) or added.id != upload.id:
            await self._images.delete(upload.storage_key)
        if isinstance(added, int):
            raise TooManyUploadBytes(added, upload.size_bytes, max_bytes)
        return added


def _sanitize(
    read: Callable[..., SanitizedFile], data: bytes, max_pixels: int
) -> tuple[SanitizedFile, str]:
    """Return the file to store, and its SHA-256 digest. Raises UploadRefused."""
    file = read(data, max_pixels=max_pixels)
    return file, f"sha256:{hashlib.sha256(file.data).hexdigest()}"

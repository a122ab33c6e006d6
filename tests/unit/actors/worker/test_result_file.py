import io
import json
import struct

import numpy as np
from PIL import Image
from safetensors.numpy import load

from actors.worker.result_file import encode_result
from engine.reports import ImageReady, LatentReady
from storage.keys import SAFETENSORS

TEXT = {"prompt": '{"1": "größer"}', "seed": "7"}


def test_a_picture_becomes_a_png_with_its_text() -> None:
    pixels = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(4, 6, 3)
    file = encode_result(ImageReady(0, "9", pixels, 7), TEXT)
    assert (file.width, file.height, file.media_type) == (6, 4, None)
    image = Image.open(io.BytesIO(file.content))
    assert np.array_equal(np.asarray(image), pixels)
    assert image.info == TEXT


def test_a_latent_becomes_a_file_that_comfyui_reads() -> None:
    samples = np.arange(2 * 4 * 3 * 5, dtype=np.float32).reshape(2, 4, 3, 5)
    strided = samples.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2)
    file = encode_result(LatentReady(0, "9", strided, 7), TEXT)
    assert (file.width, file.height, file.media_type) == (40, 24, SAFETENSORS)
    tensors = load(file.content)
    assert tensors.keys() == {"latent_tensor", "latent_format_version_0"}
    assert np.array_equal(tensors["latent_tensor"], samples)
    assert tensors["latent_format_version_0"].shape == (0,)
    (length,) = struct.unpack("<Q", file.content[:8])
    assert json.loads(file.content[8 : 8 + length])["__metadata__"] == TEXT

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from actors.worker.result_file import encode_result
from engine.diffusion.images.input_files import read_latent
from engine.graph.limits import Limits
from engine.reports import LatentReady
from serve_app.refusals import UploadRefused
from serve_app.upload_store import read_input_latent
from tests.support.edge import Client, refusal

MAX_PIXELS = 10_000
SAMPLES = np.arange(2 * 4 * 2 * 3, dtype=np.float32).reshape(2, 4, 2, 3)


def latent_file(samples: Any = SAMPLES, **tensors: Any) -> bytes:
    return save({"latent_tensor": samples, **tensors}, metadata={"prompt": "secret"})


@pytest.mark.parametrize("version", [{}, {"latent_format_version_0": np.zeros(0, np.float32)}])
def test_the_tensor_and_its_scale_are_kept_and_nothing_else(version: Mapping[str, Any]) -> None:
    found = read_input_latent(latent_file(**version, more=np.ones(9)), max_pixels=MAX_PIXELS)
    assert (found.width, found.height) == (24, 16)
    assert b"secret" not in found.data
    kept = load(found.data)
    assert kept.keys() == {"latent_tensor", *version}
    assert np.array_equal(kept["latent_tensor"], SAMPLES)


def test_what_a_job_saved_comes_back_as_it_was() -> None:
    saved = encode_result(LatentReady(0, "9", SAMPLES, None), {"prompt": "{}"})
    found = read_input_latent(saved.content, max_pixels=MAX_PIXELS)
    latent = read_latent(found.data, "x.latent", Limits())
    assert np.array_equal(latent.samples.numpy(), SAMPLES)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a safetensors"),
        (b"\x89PNG\r\n\x1a\n" + bytes(60), "not a safetensors"),
        (latent_file()[:-1], "damaged"),
        ((2**21 + 1).to_bytes(8, "little") + b" " * (2**21 + 1), "more than 2097152 bytes"),
        (save({"samples": SAMPLES}), "no latent_tensor"),
        (latent_file(SAMPLES[0]), "no latent_tensor"),
        (latent_file(SAMPLES.astype(np.int32)), "16 or 32 bits"),
        (latent_file(SAMPLES[:0]), "no latent_tensor"),
        (latent_file(SAMPLES + np.inf), "not finite"),
        (latent_file(np.zeros((5, 4, 8, 8), np.float32)), "more than 10000 pixels"),
    ],
)
def test_what_is_no_latent_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(UploadRefused, match=message):
        read_input_latent(data, max_pixels=MAX_PIXELS)


@given(st.binary(max_size=200))
def test_nothing_else_is_raised(data: bytes) -> None:
    with pytest.raises(UploadRefused):
        read_input_latent(data, max_pixels=MAX_PIXELS)


async def test_a_latent_is_uploaded_by_its_name(client: Client) -> None:
    files = {"image": ("old.latent", latent_file())}
    answer = await client.post("/v1/uploads", files=files)
    assert answer.status_code == 200
    assert (answer.json()["name"], answer.json()["width"]) == ("old.latent", 24)
    refused = await client.post("/v1/uploads", files={"image": ("old.latent", b"no")})
    assert refusal(refused) == (400, "invalid_latent")

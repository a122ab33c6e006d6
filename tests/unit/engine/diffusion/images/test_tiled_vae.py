"""A VAE that works tile by tile where memory runs out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL

from engine.batcher import Work
from engine.diffusion.images.latents import Latent
from engine.diffusion.images.tiled_vae import decoded_within_memory, encoded_within_memory
from engine.diffusion.images.vae import Decode, Encode, Vae
from engine.errors import OutOfMemory
from engine.reports import Finished
from tests.support.engine.workflows import Watched, text_to_image, with_input
from training.tiny_transformers import VAE

SIDE = 64
"""Of the latent, which 32 cells cut."""


@pytest.fixture(scope="module")
def vae() -> Vae:
    torch.manual_seed(1)
    return Vae(AutoencoderKL(**VAE).eval().requires_grad_(False))


def run(work: Work[Any], *, most_cells: int) -> tuple[Any, list[int]]:
    """What the work returns where calls for more cells fail, and the cells of all calls."""
    calls: list[int] = []
    try:
        request = next(work)
        while True:
            assert isinstance(request, Decode | Encode)
            cells = request.rows  # in a fixed number of cells
            calls.append(cells)
            if cells > most_cells:
                request = work.throw(OutOfMemory())
            else:
                (result,) = type(request).run_batch([request])  # type: ignore[list-item]  # its own
                request = work.send(result)
    except StopIteration as stop:
        return stop.value, calls


WHOLE = SIDE * SIDE // 128


def test_what_fits_is_decoded_at_once_and_nothing_is_noted(vae: Vae) -> None:
    noted: list[int] = []
    latent = Latent(torch.randn(2, 16, SIDE, SIDE))
    images, calls = run(
        decoded_within_memory(vae, latent, lambda: noted.append(1)), most_cells=WHOLE
    )
    assert (calls, noted, images.shape) == ([WHOLE] * 2, [], (2, 8 * SIDE, 8 * SIDE, 3))


def test_where_memory_runs_out_it_is_decoded_in_tiles_and_noted(vae: Vae) -> None:
    noted: list[int] = []
    latent = Latent(torch.randn(1, 16, SIDE, SIDE, generator=torch.Generator().manual_seed(1)))
    whole, _ = run(decoded_within_memory(vae, latent, lambda: None), most_cells=WHOLE)
    tiled, calls = run(
        decoded_within_memory(vae, latent, lambda: noted.append(1)), most_cells=WHOLE // 2
    )
    assert max(calls[1:]) <= WHOLE // 2
    assert noted == [1]
    assert tiled.shape == whole.shape
    assert (tiled - whole).abs().mean() < 0.05


def test_where_memory_runs_out_it_is_encoded_in_tiles_and_noted(vae: Vae) -> None:
    noted: list[int] = []
    image = torch.rand(1, 8 * SIDE, 8 * SIDE, 3, generator=torch.Generator().manual_seed(1))
    whole, _ = run(encoded_within_memory(vae, image, lambda: None), most_cells=WHOLE)
    tiled, calls = run(
        encoded_within_memory(vae, image, lambda: noted.append(1)), most_cells=WHOLE // 2
    )
    assert max(calls[1:]) <= WHOLE // 2
    assert noted == [1]
    assert (tiled.samples - whole.samples).abs().mean() < 0.1 * whole.samples.abs().mean()


def test_where_tiles_do_not_help_memory_has_run_out(vae: Vae) -> None:
    for side in (8, SIDE):
        latent = Latent(torch.zeros(1, 16, side, side))
        with pytest.raises(OutOfMemory):
            run(decoded_within_memory(vae, latent, lambda: None), most_cells=0)


def test_a_run_whose_vae_ran_out_of_memory_says_it_at_its_end(
    submit: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, decode = (SIDE, SIDE), AutoencoderKL.decode

    def decode_within_memory(vae: AutoencoderKL, z: torch.Tensor, **options: Any) -> Any:
        if z.shape[2:] == whole:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return decode(vae, z, **options)

    monkeypatch.setattr(AutoencoderKL, "decode", decode_within_memory)
    watched = submit(with_input(text_to_image(steps=1), "5", width=8 * SIDE, height=8 * SIDE))
    assert watched.images()[0].pixels.shape == (8 * SIDE, 8 * SIDE, 3)
    end = watched.events[-1]
    assert isinstance(end, Finished)
    assert end.notes == ("vae_tiled",)

"""Flux.1 with pictures as inputs: reference latents, further input channels, and no guidance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.diffusion.conditioning.condition import ConcatImage, Condition
from engine.diffusion.denoise import Denoise
from engine.diffusion.families.flux import reference_places
from engine.diffusion.images.latents import Latent
from engine.diffusion.loading.checkpoints import load_diffusion_model
from engine.diffusion.model import Model
from engine.diffusion.trajectory import Guidance, NoiseConfig, SamplerSchedule, trajectory
from engine.errors import EngineError
from engine.families.recognition import problems_of
from engine.graph.models_folder import DIFFUSION_MODELS, ModelsFolder
from engine.options import UnetOptions
from tests.support.engine.bodies import output_of
from tests.support.engine.stores import store_of
from training.tiny_transformers import FLUX, write_flux, write_z_image


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


WIDE = {"fill": 384, "depth": 128, "other": 320}
"""The widths of the patches of networks with pictures as inputs."""
TEXT = Condition(
    drawn(1, 1, 8, FLUX["joint_attention_dim"]), drawn(2, 1, FLUX["pooled_projection_dim"])
)
CLEAN = drawn(3, 1, 16, 10, 8)
REFERENCE, OTHER = drawn(4, 1, 16, 7, 9), drawn(5, 1, 16, 12, 6)
MASK = torch.zeros(1, 80, 64)
MASK[:, 19, 5] = 1.0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("flux-edits")
    write_flux(root)
    write_z_image(root)
    weights = load_file(root / "unet/tiny-flux-dev.safetensors")
    for name, width in WIDE.items():
        own = weights["img_in.weight"]
        more = drawn(6, len(own), width - own.shape[1]) * own.std()
        save_file(
            weights | {"img_in.weight": torch.cat([own, more], dim=1)},
            root / f"unet/{name}.safetensors",
        )
    return root


def model_of(root: Path, name: str) -> Model:
    return load_diffusion_model(store_of(root), f"{name}.safetensors", "default")


@pytest.fixture(scope="module")
def dev(root: Path) -> Model:
    return model_of(root, "tiny-flux-dev")


def request_of(model: Model, condition: Condition, **latent: Any) -> Denoise:
    """The first request of a sampler with that condition."""
    work = trajectory(
        model,
        Latent(CLEAN, **latent),
        SamplerSchedule("euler", torch.tensor([0.8, 0.0])),
        guidance=Guidance((condition,), (), 1.0),
        noise_config=NoiseConfig(1),
        on_sigmas_passed=lambda _: None,
    )
    request = next(work)
    assert isinstance(request, Denoise)
    return request


def x0_of(*requests: Denoise) -> list[Tensor]:
    with torch.inference_mode():
        return list(Denoise.run_batch(requests))


def given_to(model: Model, condition: Condition, **latent: Any) -> dict[str, Any]:
    """The inputs that the network gets."""
    found: dict[str, Any] = {}

    def keep(_network: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        found.update(named, pixels=inputs[0])

    hook = model.unet.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        x0_of(request_of(model, condition, **latent))
    finally:
        hook.remove()
    return found


def patches_of(x: Tensor) -> Tensor:
    """The patches of a latent with even sides, as in FluxPipeline of diffusers."""
    count, channels, height, width = x.shape
    cells = x.view(count, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return cells.reshape(count, height // 2 * width // 2, channels * 4)


@pytest.mark.parametrize(
    ("method", "places"),
    [
        # In patches, for a latent of 10 x 7 and pictures of 6 x 8, 4 x 6 and 3 x 2 cells. With
        # "offset", the second is below the first, and the third is to the right of the first.
        ("offset", [(1, 0, 0), (1, 3, 0), (1, 0, 4)]),
        ("index_timestep_zero", [(1, 0, 0), (1, 3, 0), (1, 0, 4)]),
        ("index", [(1, 0, 0), (2, 0, 0), (3, 0, 0)]),
        ("uxo", [(0, 5, 4), (0, 8, 8), (0, 10, 11)]),
    ],
)
def test_each_method_places_references(method: str, places: list[tuple[int, int, int]]) -> None:
    sizes = [(6, 8), (4, 6), (3, 2)]
    references = [torch.zeros(1, 16, *size) for size in sizes]
    assert reference_places(torch.zeros(1, 16, 10, 7), references, method) == places


def test_references_are_appended_with_their_positions(dev: Model) -> None:
    """The picture is that of the first patches. As in FluxKontextPipeline, a reference has 1."""
    condition = replace(TEXT, reference_latents=(OTHER,))
    given = given_to(dev, condition)
    assert given["pixels"].shape == (1, 5 * 4 + 6 * 3, 64)
    assert torch.equal(given["pixels"][:, 20:], patches_of((OTHER - 0.1159) * 0.3611))
    positions = [[1, row, column] for row in range(6) for column in range(3)]
    assert given["img_ids"][20:].tolist() == positions
    assert not given["img_ids"][:20, 0].any()
    (x0,), (without,) = x0_of(request_of(dev, condition)), x0_of(request_of(dev, TEXT))
    assert x0.shape == without.shape == CLEAN.shape
    assert float((x0 - without).abs().max()) > 1e-3


def test_jobs_share_a_call_if_their_references_have_equal_sizes(dev: Model) -> None:
    def conditions() -> Iterator[Condition]:
        yield replace(TEXT, reference_latents=(REFERENCE,))
        yield replace(TEXT, reference_latents=(REFERENCE * 2,))
        yield replace(TEXT, reference_latents=(OTHER,))
        yield replace(TEXT, reference_latents=(REFERENCE,), reference_method="uxo")
        yield TEXT

    requests = [request_of(dev, each) for each in conditions()]
    keys = [each.key for each in requests]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
    counts: list[int] = []
    hook = dev.unet.register_forward_pre_hook(lambda _, inputs: counts.append(len(inputs[0])))
    together = x0_of(*requests)
    hook.remove()
    assert sorted(counts) == [1, 1, 1, 2]
    for found, request in zip(together, requests, strict=True):
        (alone,) = x0_of(request)
        assert torch.allclose(found, alone, atol=1e-5)


def test_a_batch_of_references_is_repeated(dev: Model) -> None:
    both = torch.cat([REFERENCE, REFERENCE * 2])
    latents = dev.to_latent(CLEAN.repeat(3, 1, 1, 1))
    (own,) = dev.with_size_conditioning(
        (replace(TEXT, reference_latents=(both,)),), latents, negative=False, seed=0
    )
    assert torch.equal(own.references[0], dev.scaled_latent(both[[0, 1, 0]]))


def test_a_row_without_guidance_shares_a_call(dev: Model) -> None:
    texts = [replace(TEXT, guidance=each) for each in (None, 3.5, 0.0)]
    requests = [request_of(dev, each) for each in texts]
    together = x0_of(*requests)
    alone = [x0_of(each)[0] for each in requests]
    assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(together, alone, strict=True))
    assert not torch.allclose(alone[0], alone[2], atol=1e-3)
    embedder = dev.unet.time_text_embed.guidance_embedder
    hook = embedder.register_forward_hook(lambda _module, _inputs, output: output * 0)
    (zeroed,) = x0_of(requests[1])
    hook.remove()
    assert torch.allclose(alone[0], zeroed, atol=1e-5)


def test_times_and_guidance_are_embedded_without_rounding_in_half_precision(root: Path) -> None:
    """By itself, diffusers would embed 944 and 3504."""
    store = store_of(root, unets=UnetOptions(precision="bfloat16"))
    half = load_diffusion_model(store, "tiny-flux-dev.safetensors", "default")
    assert half.dtype == torch.bfloat16
    embedded: list[Tensor] = []
    proj = half.unet.time_text_embed.time_proj
    proj.register_forward_pre_hook(lambda _module, inputs: embedded.extend(inputs))
    request = replace(request_of(half, replace(TEXT, guidance=3.5)), sigma=torch.tensor(0.9471))
    x0_of(request)
    assert [float(each) for each in embedded] == pytest.approx([947.1, 3500.0], rel=1e-6)


def test_fill_gets_the_picture_and_the_pixels_of_the_mask(root: Path) -> None:
    fill = model_of(root, "fill")
    image = ConcatImage(
        REFERENCE[:, :, :5, :4].repeat_interleave(2, 2).repeat_interleave(2, 3), MASK
    )
    given = given_to(fill, replace(TEXT, concat_image=image))["pixels"]
    # Four values of each channel: 16 of the noise, 16 of the picture, and 64 of the mask.
    picture, mask = given[..., 64:128], given[..., 128:]
    assert torch.allclose(picture, patches_of(fill.scaled_latent(image.samples)), atol=1e-6)
    # The pixel (19, 5) is in the cell (2, 0), and there (3, 5): channel 29 of the patch (1, 0).
    assert mask.nonzero().tolist() == [[0, 4, 29 * 4]]


def test_fill_without_a_picture_paints_everywhere(root: Path) -> None:
    fill = model_of(root, "fill")
    given = given_to(fill, TEXT)["pixels"]
    assert torch.allclose(given[..., 64:128], torch.tensor(-0.1159 * 0.3611))
    assert bool((given[..., 128:] == 1).all())
    masked = given_to(fill, TEXT, noise_mask=torch.zeros(1, 80, 64))["pixels"]
    assert not masked[..., 128:].any()


def test_a_model_of_depth_gets_the_picture_alone(root: Path) -> None:
    depth = model_of(root, "depth")
    image = ConcatImage(drawn(7, 1, 16, 10, 8))
    given = given_to(depth, replace(TEXT, concat_image=image))["pixels"]
    assert torch.allclose(
        given[..., 64:], patches_of(depth.scaled_latent(image.samples)), atol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "condition", "message"),
    [
        ("tiny-flux-dev", {"reference_latents": (torch.zeros(1, 4, 8, 8),)}, "4 channels"),
        ("fill", {"reference_latents": (REFERENCE,)}, "takes no reference latents"),
        ("fill", {"concat_image": ConcatImage(torch.zeros(1, 4, 8, 8))}, "4 channels"),
    ],
)
def test_a_picture_that_does_not_fit_is_refused(
    name: str, condition: dict[str, Any], message: str, root: Path
) -> None:
    with pytest.raises(EngineError, match=message):
        request_of(model_of(root, name), replace(TEXT, **condition))


def test_z_image_refuses_references(root: Path) -> None:
    model = model_of(root, "tiny-z-image")
    text = Condition(torch.zeros(1, 4, model.unet.config.cap_feat_dim))
    with pytest.raises(EngineError, match="Z-Image does not support reference latents"):
        request_of(model, replace(text, reference_latents=(REFERENCE,)))


@pytest.mark.parametrize("name", WIDE)
def test_only_known_widths_of_patches_are_accepted(name: str, root: Path) -> None:
    problem = problems_of(ModelsFolder(root), DIFFUSION_MODELS, f"{name}.safetensors").whole
    assert problem is None if name != "other" else "320 values" in str(problem)


def test_nodes_set_references_their_method_and_the_guidance() -> None:
    texts = (TEXT, replace(TEXT, guidance=2.0))
    (first,) = [output_of("ReferenceLatent", conditioning=texts, latent=Latent(REFERENCE))]
    both = output_of("ReferenceLatent", conditioning=first, latent=Latent(OTHER))
    assert [each.reference_latents for each in both] == [(REFERENCE, OTHER)] * 2
    assert output_of("ReferenceLatent", conditioning=texts) == texts
    placed = output_of(
        "FluxKontextMultiReferenceLatentMethod",
        conditioning=texts,
        reference_latents_method="uxo/uno",
    )
    assert [each.reference_method for each in placed] == ["uxo", "uxo"]
    unguided = output_of("FluxDisableGuidance", conditioning=texts)
    assert [each.guidance for each in unguided] == [None, None]


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (512, 512, (1024, 1024)),
        (2000, 900, (1504, 688)),
        (900, 2000, (688, 1504)),
        (10, 400, (672, 1568)),
        (640, 480, (1184, 880)),
    ],
)
def test_images_get_the_closest_size_of_kontext(
    width: int, height: int, expected: tuple[int, int]
) -> None:
    scaled = output_of("FluxKontextImageScale", image=torch.rand(1, height, width, 3))
    assert scaled.shape == (1, expected[1], expected[0], 3)

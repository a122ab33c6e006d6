"""Redux: SigLIP sees a picture, a style model makes tokens of it, and Flux.1 attends to them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder
from safetensors.torch import save_file
from torch import Tensor
from transformers import SiglipVisionConfig, SiglipVisionModel

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.families.flux import Flux
from engine.diffusion.families.model_family import Call, CallRows
from engine.diffusion.loading.checkpoints import load_diffusion_model
from engine.diffusion.vision.clip_vision import (
    ClipVisionOutput,
    EncodeVision,
    inspect_clip_vision,
    load_clip_vision,
    preprocessed,
    siglip_config,
)
from engine.diffusion.vision.redux import EncodeStyle, read_style_model, with_style
from engine.errors import CheckpointUnavailable, EngineError
from engine.families.recognition import problems_of
from engine.graph.models_folder import CLIP_VISIONS, STYLE_MODELS, ModelsFolder
from tests.support.engine.control_nets import picture
from tests.support.engine.engines import running
from tests.support.engine.stores import CPU, store_of
from tests.support.engine.transformer_graphs import flux_graph, latent_of, saving_latent
from tests.support.engine.workflows import node
from tests.support.vision.clip_vision import VISION, write_vision
from training.make_tiny import with_large_weights
from training.tiny_transformers import FLUX, write_flux

NAME = "tiny.safetensors"
TEXT_WIDTH: int = FLUX["joint_attention_dim"]
SIDE = 32
CONFIG: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "patch_size": 8,
    "image_size": SIDE,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-5,
}
STATES = 16


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def siglip() -> Any:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(7)
        network = SiglipVisionModel(SiglipVisionConfig(**CONFIG, vision_use_head=False))
        with_large_weights(network, seed=7)
        for each in network.parameters():
            each.copy_(each.half().float())
    return network.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def root(siglip: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("redux")
    write_flux(root)
    write_vision(root / CLIP_VISIONS)
    state = {f"vision_model.{name}": each for name, each in siglip.state_dict().items()}
    save_file(state | {"vision_model.head.probe": torch.zeros(1)}, root / CLIP_VISIONS / NAME)
    config = root / CLIP_VISIONS / "tiny.config" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps({"model_type": "siglip_vision_model", **CONFIG}))
    (root / STYLE_MODELS).mkdir()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        redux: Any = ReduxImageEncoder(redux_dim=24, txt_in_features=TEXT_WIDTH)
    save_file(redux.state_dict(), root / STYLE_MODELS / NAME)
    save_file({"style_embedding": torch.zeros(1)}, root / STYLE_MODELS / "t2i.safetensors")
    return root


def seen_by(root: Path, name: str, *images: Tensor) -> ClipVisionOutput:
    network = load_clip_vision(store_of(root), CLIP_VISIONS, name)
    with torch.inference_mode():
        found = EncodeVision.run_batch([EncodeVision(network, each, True) for each in images])
    return ClipVisionOutput.joined(found)


def test_siglip_gives_what_transformers_gives(siglip: Any, root: Path) -> None:
    seen = seen_by(root, NAME, image := picture(1, 40, 56))
    normal = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
    with torch.inference_mode():
        pixels = preprocessed(image, SIDE, crop=True, normal=normal)
        expected = siglip(pixels, output_hidden_states=True)
    assert -1.0 <= float(pixels.min()) < float(pixels.max()) <= 1.0
    for found, wanted in (
        (seen.last_hidden_states, expected.last_hidden_state),
        (seen.penultimate_hidden_states, expected.hidden_states[-2]),
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert seen.image_embeds.shape == (1, 0)


@pytest.mark.parametrize(("patch", "states", "side"), [(14, 729, 384), (16, 1024, 512)])
def test_the_sizes_of_a_file_tell_that_it_is_so400m(patch: int, states: int, side: int) -> None:
    shapes = {
        "vision_model.embeddings.patch_embedding.weight": (1152, 3, patch, patch),
        "vision_model.embeddings.position_embedding.weight": (states, 1152),
        "vision_model.encoder.layers.0.mlp.fc1.weight": (4304, 1152),
        **{f"vision_model.encoder.layers.{at}.x": (1,) for at in range(27)},
    }
    weights: Any = SimpleNamespace(name="x", shapes=shapes)
    config = siglip_config(weights, Path("x.safetensors"))
    assert (config["image_size"], config["num_attention_heads"]) == (side, 16)
    assert (config["hidden_size"], config["intermediate_size"]) == (1152, 4304)


def test_another_siglip_needs_its_configuration(root: Path, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes((root / CLIP_VISIONS / NAME).read_bytes())
    with pytest.raises(CheckpointUnavailable, match="the known SigLIP is So400m"):
        inspect_clip_vision(tmp_path / NAME)


def test_the_tokens_of_all_pictures_follow_the_text(root: Path) -> None:
    redux = read_style_model(root / STYLE_MODELS / NAME, CPU)
    seen = seen_by(root, NAME, picture(1, 40, 56), picture(2, 32, 32))
    with torch.inference_mode():
        (tokens,) = EncodeStyle.run_batch([EncodeStyle(redux, seen)])
        expected = [redux(each[None]).image_embeds for each in seen.last_hidden_states]
    torch.testing.assert_close(tokens, torch.cat(expected, dim=1))
    texts = (Condition(drawn(1, 1, 5, TEXT_WIDTH)), Condition(drawn(2, 1, 9, TEXT_WIDTH)))
    for text, styled in zip(texts, with_style(texts, tokens, 0.5, is_bias=False), strict=True):
        assert torch.equal(styled.tokens, torch.cat([text.tokens, tokens * 0.5], dim=1))
        assert styled.attention_biases == ()


@pytest.fixture(scope="module")
def network(root: Path) -> Any:
    return load_diffusion_model(store_of(root), "tiny-flux-dev.safetensors", "default").unet


def velocities(network: Any, *conditions: Condition) -> Tensor:
    x = drawn(3, 1, 16, 8, 6)
    call = Call(
        x.repeat(len(conditions), 1, 1, 1),
        torch.full((len(conditions),), 0.7),
        [CallRows(1, each) for each in conditions],
        0,
    )
    with torch.inference_mode():
        return Flux().velocity(network, call)


TEXT = Condition(drawn(4, 1, 12, TEXT_WIDTH), drawn(5, 1, FLUX["pooled_projection_dim"]))
TOKENS = drawn(6, 1, 7, TEXT_WIDTH)


def test_a_strength_of_0_hides_the_tokens_from_text_and_image(network: Any) -> None:
    (hidden,) = with_style((TEXT,), TOKENS, 0.0, is_bias=True)
    (whole,) = with_style((TEXT,), TOKENS, 1.0, is_bias=True)
    assert whole.attention_biases == ()
    plain = velocities(network, TEXT)
    assert torch.allclose(velocities(network, hidden), plain, atol=1e-5)
    assert float((velocities(network, whole) - plain).abs().max()) > 1e-3


def test_a_strength_of_2_counts_as_the_tokens_twice(network: Any) -> None:
    (strong,) = with_style((TEXT,), TOKENS, 2.0, is_bias=True)
    (twice,) = with_style((TEXT,), TOKENS.repeat(1, 2, 1), 1.0, is_bias=True)
    # Of a single block of each kind, only the style tokens themselves attend otherwise.
    found, wanted = velocities(network, strong)[0], velocities(network, twice)[0]
    plain = velocities(network, with_style((TEXT,), TOKENS, 1.0, is_bias=True)[0])[0]
    assert float((found - wanted).abs().max()) < 0.2 * float((found - plain).abs().max())


def test_rows_with_equal_biases_are_as_alone_and_others_share_no_call(network: Any) -> None:
    (first,) = with_style((TEXT,), TOKENS, 0.3, is_bias=True)
    (other,) = with_style((TEXT,), TOKENS * 3, 0.3, is_bias=True)
    together = velocities(network, first, other)
    for found, row in zip(together, (first, other), strict=True):
        assert torch.allclose(found, velocities(network, row)[0], atol=1e-5)
    assert float((together[0] - together[1]).abs().max()) > 1e-3
    (second,) = with_style((first,), TOKENS * 2, 1.5, is_bias=True)
    longer = replace(first, tokens=second.tokens)
    kinds = [Flux().row_sharing(each) for each in (first, other, second, longer, TEXT)]
    assert kinds[0] == kinds[1]
    assert len(set(kinds)) == 4
    # ComfyUI keeps the logarithms in half precision.
    biases = [float(torch.tensor(each).half()) for each in (math.log(0.3), math.log(1.5))]
    assert [tuple(each) for each in second.attention_biases] == [
        (12, 19, pytest.approx(biases[0])),
        (19, 26, pytest.approx(biases[1])),
    ]


def test_what_does_not_fit_is_refused(root: Path) -> None:
    redux = read_style_model(root / STYLE_MODELS / NAME, CPU)
    with pytest.raises(EngineError, match="use SigLIP So400m"):
        EncodeStyle(redux, seen_by(root, VISION, picture(1, 40, 56)))
    with pytest.raises(EngineError, match="but this text has 64"):
        with_style((Condition(torch.zeros(1, 77, 64)),), TOKENS, 1.0, is_bias=False)
    problem = problems_of(ModelsFolder(root), STYLE_MODELS, "t2i.safetensors").whole
    assert "is a style adapter of T2I-Adapter" in str(problem)
    with pytest.raises(CheckpointUnavailable, match=r"only Flux\.1 Redux is supported"):
        read_style_model(root / STYLE_MODELS / "t2i.safetensors", CPU)


def test_a_graph_with_redux_follows_its_picture(root: Path) -> None:
    def graph(colour: int) -> dict[str, Any]:
        made = saving_latent(flux_graph(steps=1))
        made["8"]["inputs"]["positive"] = ["24", 0]
        sides = {"width": 40, "height": 32, "batch_size": 1}
        return made | {
            "20": node("EmptyImage", **sides, color=colour),
            "21": node("CLIPVisionLoader", clip_name=NAME),
            "22": node("CLIPVisionEncode", clip_vision=["21", 0], image=["20", 0], crop="center"),
            "23": node("StyleModelLoader", style_model_name=NAME),
            "24": node(
                "StyleModelApply",
                conditioning=["4", 0],
                style_model=["23", 0],
                clip_vision_output=["22", 0],
                strength=0.7,
                strength_type="attn_bias",
            ),
        }

    with running(root) as service:
        red, blue = (latent_of(service.submit(graph(each))) for each in (0xFF0000, 0x0000FF))
    assert float((red - blue).abs().max()) > 1e-3

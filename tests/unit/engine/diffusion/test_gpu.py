"""The engine on a fake GPU: nothing mixes devices, and a step keeps to a budget of GPU work."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from PIL import Image
from safetensors.torch import save_file

from engine.diffusion.images.upscale_models import Compact
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION, flow_levels
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.diffusion.samplers.sampler_lookup import sampling_of
from engine.diffusion.samplers.schedules import sigmas_for
from engine.graph import names
from engine.graph.models_folder import CLIP_VISIONS, CONTROL_NETS, GLIGENS, MODEL_PATCHES
from engine.options import DeviceOptions
from engine.reports import Finished
from engine.webui.sampler_names import follows_timesteps
from tests.support.comfyui.cases import CASES
from tests.support.comfyui.weights import CONTROL_NET, LORA
from tests.support.engine.control_nets import (
    tiny_control_net,
    tiny_flux_control_net,
    tiny_union,
    tiny_z_image_control_net,
    write_in_ldm_keys,
)
from tests.support.engine.engines import Running, running
from tests.support.engine.extensions import ROOT, installed
from tests.support.engine.fake_gpu import COPY, GPU, KERNEL, SYNC, FakeGpu, GpuTensor
from tests.support.engine.gligens import tiny_gligen, write_gligen
from tests.support.engine.loras import flat, layer_pairs, with_alpha
from tests.support.engine.parity import SMALL
from tests.support.engine.transformer_graphs import flux_graph, z_image_graph
from tests.support.engine.workflows import TINY, Prompt, held, node, text_to_image
from tests.support.vision.clip_vision import SIDE, UNCLIP_NAME, VISION, write_unclip, write_vision
from tests.support.vision.ip_adapters import PLAIN, PLUS, write_adapters
from training.make_tiny import UNET, write_checkpoint
from training.tiny_families import FAMILIES, write_family
from training.tiny_transformers import write_flux, write_z_image

RED = node("EmptyImage", width=SIDE, height=SIDE, batch_size=1, color=0xE02020)


def picture(mode: str) -> bytes:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((64, 64)).convert(mode).save(file, "PNG")
    return file.getvalue()


INPUTS = {
    "grad64.png": picture("RGB"),
    "grad64_alpha.png": picture("RGBA"),
    "mask64.png": picture("RGB"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One tiny model of each kind."""
    root = tmp_path_factory.mktemp("gpu")
    checkpoints = root / "checkpoints"
    write_checkpoint(checkpoints / TINY)
    (checkpoints / SMALL).symlink_to(checkpoints / TINY)
    (checkpoints / SMALL).with_suffix(".config").symlink_to(
        (checkpoints / TINY).with_suffix(".config")
    )
    write_unclip(root)
    for family in FAMILIES:
        write_family(family, checkpoints / f"{family}.safetensors", checkpoints / f"{family}-x")
    write_flux(root)
    write_z_image(root)
    write_vision(root / CLIP_VISIONS)
    write_adapters(root / "ipadapter", root)
    for folder in (CONTROL_NETS, MODEL_PATCHES, GLIGENS, "loras", "hypernetworks"):
        (root / folder).mkdir(exist_ok=True)
    (root / "upscale_models").mkdir()
    write_in_ldm_keys(tiny_control_net(1), root / CONTROL_NETS / CONTROL_NET)
    save_file(tiny_union(2).state_dict(), root / CONTROL_NETS / "union.safetensors")
    flux_net = tiny_flux_control_net(3, num_layers=2, num_single_layers=2, num_mode=4)
    save_file(flux_net.state_dict(), root / CONTROL_NETS / "flux.safetensors")
    z_net = tiny_z_image_control_net(4, "2.1")
    save_file(z_net.state_dict(), root / MODEL_PATCHES / "z.safetensors")
    write_gligen(tiny_gligen(5), root / GLIGENS / "boxes.safetensors")
    pairs = layer_pairs(UNet2DConditionModel(**UNET), "attn|conv", seed=6)
    save_file(with_alpha(pairs, flat("lora_unet_")), root / "loras" / LORA)
    layers = {f"linear.{at}.{kind}": each for at in (0,) for kind, each in _linear().items()}
    torch.save({64: [layers, layers]}, root / "hypernetworks" / "one.pt")
    upscaler = Compact(features=8, depth=3, scale=3)
    save_file(_in_file(upscaler), root / "upscale_models" / "x3.safetensors")
    return root


def _linear() -> dict[str, Any]:
    return {"weight": torch.eye(64) * 0.1, "bias": torch.zeros(64)}


def _in_file(network: Any) -> dict[str, Any]:
    return dict(network.state_dict())


@pytest.fixture(scope="module")
def gpu() -> Iterator[FakeGpu]:
    with FakeGpu().opened() as found:
        yield found


@pytest.fixture(scope="module")
def service(
    root: Path, gpu: FakeGpu, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """An engine on the GPU with the usual precisions, and with the nodes of IP-Adapter."""
    options = DeviceOptions(device="cuda", threads=1)
    threads = torch.get_num_threads()
    with (
        installed(ROOT / "packages" / "ipadapter", tmp_path_factory.mktemp("nodes")) as extension,
        running(root, extension.node_types, options=options) as found,
    ):
        yield found
    torch.set_num_threads(threads)


def patched(class_type: str, **inputs: Any) -> Prompt:
    prompt = text_to_image(model=["m", 0], steps=2)
    return prompt | {"m": node(class_type, model=["4", 0], **inputs)}


def lora(**sampler: Any) -> Prompt:
    loader = node("LoraLoaderModelOnly", model=["4", 0], lora_name=LORA, strength_model=0.8)
    return text_to_image(model=["l", 0], **sampler) | {"l": loader}


def controlled(
    prompt: Prompt, net: str = CONTROL_NET, *, sampler: str = "3", texts: tuple[str, str]
) -> Prompt:
    links = {"positive": [texts[0], 0], "negative": [texts[1], 0], "control_net": ["c2", 0]}
    ends = {"strength": 0.7, "start_percent": 0.0, "end_percent": 1.0}
    prompt[sampler]["inputs"] |= {"positive": ["c", 0], "negative": ["c", 1]}
    vae = {"vae": ["3", 0]} if net == "flux.safetensors" else {}
    return prompt | {
        "c": node("ControlNetApplyAdvanced", image=["red", 0], **links, **ends, **vae),
        "c2": node("SetUnionControlNetType", control_net=["c1", 0], type="auto"),
        "c1": node("ControlNetLoader", control_net_name=net),
        "red": RED,
    }


def control(**sampler: Any) -> Prompt:
    return controlled(text_to_image(**sampler), texts=("6", "7"))


def sdxl(**sampler: Any) -> Prompt:
    prompt = text_to_image(**sampler)
    return prompt | {"4": node("CheckpointLoaderSimple", ckpt_name="sdxl.safetensors")}


def prompted_by_image(adapter: str = PLAIN, **sampler: Any) -> Prompt:
    how = {"weight_type": "linear", "combine_embeds": "concat", "embeds_scaling": "V only"}
    told = {"weight": 1.0, "start_at": 0.0, "end_at": 1.0, "clip_vision": ["v", 0]}
    return text_to_image(model=["i", 0], **sampler) | {
        "a": node("IPAdapterModelLoader", ipadapter_file=adapter),
        "v": node("CLIPVisionLoader", clip_name=VISION),
        "red": RED,
        "i": node(
            "IPAdapterAdvanced",
            model=["4", 0],
            ipadapter=["a", 0],
            image=["red", 0],
            attn_mask=["half", 0],
            **how,
            **told,
        ),
        "half": node("SolidMask", value=0.5, width=64, height=64),
    }


def unclip(**sampler: Any) -> Prompt:
    told = {"strength": 1.0, "noise_augmentation": 0.1}
    return text_to_image(positive=["t", 0], **sampler) | {
        "4": node("unCLIPCheckpointLoader", ckpt_name=UNCLIP_NAME),
        "red": RED,
        "s": node("CLIPVisionEncode", clip_vision=["4", 3], image=["red", 0], crop="center"),
        "t": node("unCLIPConditioning", conditioning=["6", 0], clip_vision_output=["s", 0], **told),
    }


def grounded() -> Prompt:
    box = {"text": "a cat", "width": 32, "height": 24, "x": 8, "y": 16}
    links = {"conditioning_to": ["6", 0], "clip": ["4", 1], "gligen_textbox_model": ["g", 0]}
    return text_to_image(positive=["b", 0], steps=2) | {
        "g": node("GLIGENLoader", gligen_name="boxes.safetensors"),
        "b": node("GLIGENTextBoxApply", **links, **box),
    }


def upscaled() -> Prompt:
    return text_to_image(steps=1) | {
        "u": node("UpscaleModelLoader", model_name="x3.safetensors"),
        "u2": node("ImageUpscaleWithModel", upscale_model=["u", 0], image=["8", 0]),
        "e": node("VAEEncodeTiled", pixels=["u2", 0], vae=["4", 2], **TILES),
        "d": node("VAEDecodeTiled", samples=["e", 0], vae=["4", 2], **TILES),
        "9": node("SaveImage", images=["d", 0], filename_prefix="x"),
    }


TILES = {"tile_size": 64, "overlap": 16, "temporal_size": 64, "temporal_overlap": 8}


def flux_control(**sampler: Any) -> Prompt:
    prompt = flux_graph(**sampler)
    return controlled(prompt, "flux.safetensors", sampler="8", texts=("4", "5"))


def kontext() -> Prompt:
    prompt = flux_graph(steps=2, negative="a long text " * 120, cfg=2.0)
    prompt["8"]["inputs"]["positive"] = ["r", 0]
    return prompt | {
        "red": RED,
        "e": node("VAEEncode", pixels=["red", 0], vae=["3", 0]),
        "r": node("ReferenceLatent", conditioning=["4", 0], latent=["e", 0]),
    }


def z_control() -> Prompt:
    prompt = z_image_graph(steps=2)
    prompt["8"]["inputs"]["model"] = ["z", 0]
    links = {"model": ["7", 0], "model_patch": ["p", 0], "vae": ["3", 0], "image": ["red", 0]}
    return prompt | {
        "p": node("ModelPatchLoader", name="z.safetensors"),
        "red": RED,
        "z": node("ZImageFunControlnet", **links, strength=0.7),
    }


SHRINK = {
    "block_number": 2,
    "downscale_factor": 2.0,
    "start_percent": 0.0,
    "end_percent": 0.5,
    "downscale_after_skip": True,
    "downscale_method": "bicubic",
    "upscale_method": "bicubic",
}
GROUPS = (
    "advanced",
    "batch",
    "conditioning",
    "control",
    "inpaint",
    "lora",
    "mask",
    "patch",
    "placed",
)
"""The groups of ComfyUI's cases whose graphs sample or place latents."""
GRAPHS: dict[str, Prompt] = {
    "HyperTile": patched("HyperTile", tile_size=32, swap_size=2, max_depth=1, scale_depth=False),
    "TomePatchModel": patched("TomePatchModel", ratio=0.4),
    "PatchModelAddDownscale": patched("PatchModelAddDownscale", **SHRINK),
    "PerturbedAttentionGuidance": patched("PerturbedAttentionGuidance", scale=4.0),
    "SelfAttentionGuidance": patched("SelfAttentionGuidance", scale=1.5, blur_sigma=2.0),
    "HypernetworkLoader": patched("HypernetworkLoader", hypernetwork_name="one.pt", strength=1.0),
    "DifferentialDiffusion": patched("DifferentialDiffusion"),
    "ModelSamplingContinuousEDM": patched(
        "ModelSamplingContinuousEDM", sampling="v_prediction", sigma_max=120.0, sigma_min=0.002
    ),
    "IP-Adapter": prompted_by_image(steps=2),
    "IP-Adapter plus": prompted_by_image(PLUS, steps=2),
    "unCLIP": unclip(steps=2),
    "GLIGEN": grounded(),
    "upscaler and tiles": upscaled(),
    "SDXL": sdxl(steps=2),
    "refiner": text_to_image(steps=2)
    | {"4": node("CheckpointLoaderSimple", ckpt_name="sdxl_refiner.safetensors")},
    "SD2": text_to_image(steps=2)
    | {"4": node("CheckpointLoaderSimple", ckpt_name="sd2.safetensors")},
    "union": controlled(text_to_image(steps=2), "union.safetensors", texts=("6", "7")),
    "Flux": flux_graph(steps=2, sampler_name="dpmpp_2m_sde"),
    "Flux ControlNet": flux_control(steps=2),
    "Kontext": kontext(),
    "Z-Image": z_image_graph(steps=2),
    "Z-Image ControlNet": z_control(),
}


def chosen_cases() -> dict[str, Prompt]:
    """Short forms of ComfyUI's cases, each with node types that no earlier one has."""
    found: dict[str, Prompt] = {}
    seen: set[tuple[str, str]] = set()
    for name, graph in CASES.items():
        group = name.partition("_")[0]
        types = {(group, graph[each]["class_type"]) for each in needed(graph, "saved")}
        if group in GROUPS and not types <= seen:
            seen |= types
            found[name] = {key: shortened(each) for key, each in graph.items()}
    return found


def shortened(each: Any) -> Any:
    if "steps" not in each["inputs"] or each["class_type"] != "KSampler":
        return each
    return {**each, "inputs": each["inputs"] | {"steps": 2}}


def needed(graph: Prompt, last: str) -> set[str]:
    """The nodes of which the node `last` needs outputs, and itself."""
    links = [each[0] for each in graph[last]["inputs"].values() if isinstance(each, list)]
    return {last}.union(*(needed(graph, each) for each in links))


def test_no_graph_mixes_devices(service: Running) -> None:
    with held(service.engine, service.models):
        runs = {
            name: service.submit(graph, input_files=INPUTS)
            for name, graph in (GRAPHS | chosen_cases()).items()
        }
    ends = {name: run.wait() for name, run in runs.items()}
    assert {name: end for name, end in ends.items() if not isinstance(end, Finished)} == {}


def next_x(sampling: Sampling, x0: torch.Tensor) -> torch.Tensor | None:
    """Return the next latent that the sampler needs x0 of, or None at its end."""
    try:
        return sampling.send(x0)[0]
    except StopIteration:
        return None


@pytest.mark.parametrize("is_flow", [False, True])
def test_no_sampler_mixes_devices_or_waits_in_a_step(is_flow: bool, gpu: FakeGpu) -> None:
    """The step size of the adaptive samplers depends on the latent, so they wait once a step."""
    levels = flow_levels(3.0) if is_flow else STABLE_DIFFUSION
    waits = {}
    for row in names.SAMPLERS:
        if is_flow and follows_timesteps(row):
            continue
        sigmas = sigmas_for(levels, "normal", 6)
        x = GpuTensor(torch.randn(1, 4, 4, 4) * sigmas[0])
        with gpu.in_this_thread():
            sampling = sampling_of(row.name, x, sigmas, seed=1, levels=levels)
            x, _ = next(sampling)
            before = gpu.counts[SYNC]
            while x is not None:
                assert x.device == GPU
                x0 = x * 0.5
                x = next_x(sampling, torch.stack([x0, x0]) if row.needs_uncond else x0)
            if found := gpu.counts[SYNC] - before:
                waits[row.name] = found
    adaptive = {name: each for name, each in waits.items() if "adaptive" in name}
    assert waits == adaptive


STEPS = {
    "one text": text_to_image(cfg=1.0),
    "guidance": text_to_image(),
    "LoRA": lora(),
    "ControlNet": control(),
    "IP-Adapter": prompted_by_image(),
    "unCLIP": unclip(),
    "ancestral noise": text_to_image(sampler_name="euler_ancestral"),
    "Brownian noise": text_to_image(sampler_name="dpmpp_2m_sde"),
    "UniPC": text_to_image(sampler_name="uni_pc"),
    "LCM": patched("ModelSamplingDiscrete", sampling="lcm", zsnr=False),
    "SDXL": sdxl(),
    "Flux": flux_graph(),
    "Flux ControlNet": flux_control(),
    "Z-Image": z_image_graph(),
}
BUDGET = {
    "one text": (1, 15),
    "guidance": (1, 18),
    "LoRA": (1, 18),
    "ControlNet": (1, 78),
    "IP-Adapter": (4, 37),
    "unCLIP": (1, 28),
    "ancestral noise": (1, 22),
    "Brownian noise": (2, 22),
    "UniPC": (1, 47),
    "LCM": (2, 35),
    "SDXL": (2, 20),
    "Flux": (3, 23),
    "Flux ControlNet": (4, 66),
    "Z-Image": (1, 19),
}
"""The most copies, and the most kernels outside networks, in one step of one job."""
SOME_STEPS, MORE_STEPS = 3, 5


def counts_of(service: Running, gpu: FakeGpu, graph: Prompt, steps: int) -> Any:
    before = gpu.counts.copy()
    sampler = "8" if "KSampler" in str(graph.get("8")) else "3"
    inputs = graph[sampler]["inputs"] | {"steps": steps}
    assert isinstance(
        service.submit(graph | {sampler: {**graph[sampler], "inputs": inputs}}).wait(), Finished
    )
    return gpu.counts - before


@pytest.mark.parametrize("name", STEPS)
def test_a_step_keeps_to_its_budget(name: str, service: Running, gpu: FakeGpu) -> None:
    counts_of(service, gpu, STEPS[name], 1)  # This loads the models.
    some, more = (counts_of(service, gpu, STEPS[name], n) for n in (SOME_STEPS, MORE_STEPS))
    waits, copies, kernels = ((more[kind] - some[kind]) / 2 for kind in (SYNC, COPY, KERNEL))
    most_copies, most_kernels = BUDGET[name]
    assert waits == 0, gpu.places
    assert copies <= most_copies
    assert kernels <= most_kernels

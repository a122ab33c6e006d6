"""The texts that other programs store in images, read in the form of the WebUI."""

from __future__ import annotations

import io
import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from PIL.ExifTags import IFD, Base

from engine.webui.generation_texts import GenerationText, generation_text, image_texts
from engine.webui.infotext import read_infotext
from engine.webui.parameters import parse_parameters

SIZE = (640, 768)
NOVELAI = {
    "Title": "AI generated image",
    "Description": "a fox, {snow}",
    "Software": "NovelAI",
    "Comment": json.dumps(
        {
            "steps": 28,
            "sampler": "k_euler_ancestral",
            "seed": 77,
            "scale": 11.0,
            "uc": "blurry",
            "strength": 0.7,
            "noise": 0.2,
            "sm": False,
        }
    ),
}
INVOKEAI = {
    "generation_mode": "txt2img",
    "positive_prompt": "a fox",
    "negative_prompt": "blurry",
    "width": 512,
    "height": 704,
    "seed": 77,
    "cfg_scale": 6.5,
    "steps": 24,
    "scheduler": "dpmpp_2m_k",
    "clip_skip": 1,
    "vae": None,
    "app_version": "5.4.2",
    "model": {"key": "1", "name": "dream", "base": "sd-1", "type": "main"},
    "loras": [{"model": {"name": "ink", "base": "sd-1"}, "weight": 0.75}],
}
EARLY_INVOKEAI = {
    "model_weights": "dream",
    "app_version": "2.3",
    "image": {
        "prompt": [{"prompt": "a fox [blurry]", "weight": 1.0}],
        "steps": 24,
        "cfg_scale": 6.5,
        "width": 512,
        "height": 704,
        "seed": 77,
        "sampler": "k_lms",
        "threshold": 1,
    },
}
FOOOCUS = {
    "prompt": "a fox",
    "negative_prompt": "blurry",
    "base_model": "dream.safetensors",
    "steps": 24,
    "guidance_scale": 6.5,
    "seed": "77",
    "resolution": "(512, 704)",
    "sampler": "dpmpp_2m_sde_gpu",
    "scheduler": "karras",
    "vae": "Default (model)",
    "refiner_model": "None",
    "refiner_switch": 0.5,
    "clip_skip": 2,
    "sharpness": 2,
    "loras": [["ink", 0.75, "abc"]],
    "lora_combined_1": "ink : 0.75",
    "styles": "['Fooocus V2']",
}
EASY_DIFFUSION = {
    "prompt": "a fox",
    "negative_prompt": "blurry",
    "seed": "77",
    "width": "512",
    "height": "704",
    "num_inference_steps": "24",
    "guidance_scale": "6.5",
    "sampler_name": "euler_a",
    "use_stable_diffusion_model": "C:\\models\\dream.ckpt",
    "use_lora_model": "ink",
    "lora_alpha": "0.75",
    "use_upscale": "4x",
    "clip_skip": "False",
}
SWARMUI = {
    "sui_image_params": {
        "prompt": "a fox",
        "negativeprompt": "blurry",
        "model": "folder/dream",
        "seed": 77,
        "steps": 24,
        "cfgscale": 6.5,
        "width": 512,
        "height": 704,
        "sampler": "euler",
        "scheduler": "karras",
        "loras": ["ink"],
        "loraweights": ["0.75"],
        "clipstopatlayer": -2,
        "automaticvae": True,
    },
    "sui_extra_data": {"date": "2026-01-01"},
}
CIVITAI = {
    "6": {"class_type": "LoadImage", "inputs": {"image": "a.png"}},
    "extra": {"airs": []},
    "extraMetadata": json.dumps(
        {
            "prompt": "a fox",
            "negativePrompt": "blurry",
            "steps": 24,
            "cfgScale": 6.5,
            "sampler": "dpmpp_2m",
            "seed": 77,
            "clipSkip": 2,
            "width": 512,
            "height": 704,
            "resources": [{"modelVersionId": 1}],
        }
    ),
}
CIVITAI_META = {
    "prompt": "a fox",
    "negativePrompt": "blurry",
    "steps": 24,
    "cfgScale": 6.5,
    "seed": 77,
    "sampler": "DPM++ 2M Karras",
    "Size": "512x704",
    "Model": "dream",
    "hashes": {"model": "1"},
}
OTHERS: list[tuple[dict[str, str], dict[str, Any], set[str]]] = [
    (
        NOVELAI,
        {"prompt": "a fox, {snow}", "negative_prompt": "blurry", "steps": 28, "seed": 77}
        | {"sampler_name": "Euler a", "cfg_scale": 11, "width": 640, "height": 768, "clip_skip": 2},
        {"strength", "noise"},
    ),
    (
        {"invokeai_metadata": json.dumps(INVOKEAI)},
        {"prompt": "a fox <lora:ink:0.75>", "sampler_name": "DPM++ 2M", "scheduler": "Karras"}
        | {"sd_model_checkpoint": "dream", "clip_skip": 2},
        {"generation_mode", "app_version"},
    ),
    (
        {"sd-metadata": json.dumps(EARLY_INVOKEAI)},
        {"prompt": "a fox", "sampler_name": "LMS", "sd_model_checkpoint": "dream"},
        {"threshold"},
    ),
    (
        {"Dream": '"a fox [blurry]" -s24 -S77 -W 512 -H 704 -C6.5 -A k_dpm_2_a -G 0.8'},
        {"prompt": "a fox", "sampler_name": "DPM2 a"},
        {"-G"},
    ),
    (
        {"parameters": json.dumps(FOOOCUS), "fooocus_scheme": "fooocus"},
        {"prompt": "a fox <lora:ink:0.75>", "sampler_name": "DPM++ 2M SDE", "scheduler": "Karras"}
        | {"sd_model_checkpoint": "dream", "clip_skip": 2},
        {"sharpness", "styles"},
    ),
    (
        EASY_DIFFUSION,
        {"prompt": "a fox <lora:ink:0.75>", "sampler_name": "Euler a"}
        | {"sd_model_checkpoint": "dream"},
        {"use_upscale"},
    ),
    (
        {"parameters": json.dumps(EASY_DIFFUSION)},
        {"prompt": "a fox <lora:ink:0.75>", "sampler_name": "Euler a"},
        {"use_upscale"},
    ),
    (
        {"parameters": json.dumps(SWARMUI)},
        {"prompt": "a fox <lora:ink:0.75>", "sampler_name": "Euler", "scheduler": "Karras"}
        | {"sd_model_checkpoint": "dream", "clip_skip": 2},
        {"automaticvae"},
    ),
    (
        {"parameters": json.dumps(CIVITAI)},
        {"prompt": "a fox", "sampler_name": "DPM++ 2M", "clip_skip": 2},
        {"resources"},
    ),
    (
        {"parameters": json.dumps(CIVITAI_META)},
        {"prompt": "a fox", "sampler_name": "DPM++ 2M", "scheduler": "Karras"}
        | {"sd_model_checkpoint": "dream"},
        {"hashes"},
    ),
]
SAME = {"negative_prompt": "blurry", "steps": 24, "seed": 77, "cfg_scale": 6.5} | {
    "width": 512,
    "height": 704,
}


@pytest.mark.parametrize(("texts", "expected", "left_out"), OTHERS, ids=range(len(OTHERS)))
def test_the_text_of_another_program_is_a_request(
    texts: dict[str, str], expected: dict[str, Any], left_out: set[str]
) -> None:
    found = generation_text(texts, SIZE)
    read = read_infotext(found.text)
    parse_parameters(read.request)
    assert read.request.items() >= (SAME | expected).items()
    assert left_out <= found.left_out.keys() | read.left_out.keys()


def test_the_text_of_novelai_is_that_of_the_webui() -> None:
    comment = {"steps": 23, "sampler": "ddim", "seed": 4, "scale": 12.0, "uc": "blurry"}
    texts = {**NOVELAI, "Comment": json.dumps(comment)}
    assert generation_text(texts, SIZE) == GenerationText(
        "a fox, {snow}\nNegative prompt: blurry\nSteps: 23, Sampler: DDIM, CFG scale: 12.0, "
        "Seed: 4, Size: 640x768, Clip skip: 2, ENSD: 31337"
    )
    unknown = {**NOVELAI, "Comment": json.dumps(comment | {"sampler": "nai_smea"})}
    found = generation_text(unknown, SIZE)
    assert "Sampler: Euler a," in found.text
    assert found.left_out == {"sampler": "nai_smea"}


SD_NEXT = (
    "a fox\nNegative prompt: blurry\nSteps: 24, Size: 512x704, Sampler: Default, Seed: 77, "
    "CFG scale: 6.5, CFG rescale: 0.7, Model: dream, Model hash: 07b985d12f, App: SD.Next, "
    "Version: cb0eb55, Pipeline: StableDiffusionXLPipeline, Operations: txt2img, "
    "Sampler sigma: karras"
)
FORGE = (
    "a fox\nNegative prompt: blurry\nSteps: 24, Sampler: [Forge] Flux Realistic, Schedule type: "
    "Simple, CFG scale: 6.5, Distilled CFG Scale: 3.5, Seed: 77, Size: 512x704, Model: dream, "
    "Diffusion in Low Bits: Automatic (fp16 LoRA), Version: f2.0.1v1.10.1, Module 1: ae, "
    "Module 2: clip_l"
)
CIVITAI_TEXT = (
    "a fox\nNegative prompt: blurry\nSteps: 24, Sampler: Undefined, CFG scale: 6.5, Seed: 77, "
    "Size: 512x704, Clip skip: 2, Created Date: 2026-01-01T0123:45:67.8901Z, Civitai resources: "
    '[{"type":"checkpoint","modelVersionId":1,"modelName":"dream, v1"}], Civitai metadata: {}'
)
FOOOCUS_TEXT = (
    "a fox\nNegative prompt: blurry\nSteps: 24, Sampler: DPM++ 2M SDE Karras, Seed: 77, Size: "
    '512x704, CFG scale: 6.5, Sharpness: 2, ADM Guidance: "(1.5, 0.8, 0.3)", Model: dream, '
    "Performance: Speed, VAE: Default (model), Version: Fooocus v2.5.5"
)
WRONG = "a fox\nNegative prompt: blurry\nSteps: 24, Seed: 77, CFG scale: 6.5, Size: 512x704, "


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        (SD_NEXT, {"Sampler", "CFG rescale", "App", "Pipeline", "Operations"}),
        (FORGE, {"Sampler", "Diffusion in Low Bits", "Module 1", "Module 2"}),
        (CIVITAI_TEXT, {"Sampler", "Created Date", "Civitai resources", "Civitai metadata"}),
        (FOOOCUS_TEXT, {"Sharpness", "ADM Guidance", "Performance"}),
        (f"{WRONG}Clip skip: 99, Emphasis: Odd", {"Clip skip", "Emphasis"}),
        (f"{WRONG}Eta: big, Hires resize: 5, Variation seed: inf", {"Eta", "Hires resize"}),
    ],
)
def test_a_value_that_is_not_understood_is_named(text: str, left_out: set[str]) -> None:
    assert generation_text({"parameters": text}, SIZE) == GenerationText(text)
    read = read_infotext(text)
    parse_parameters(read.request)
    assert read.request.items() >= SAME.items()
    assert left_out <= read.left_out.keys()


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


LOADERS = {
    "4": node("CheckpointLoaderSimple", ckpt_name="sd/dream.safetensors"),
    "10": node("LoraLoader", model=["4", 0], clip=["4", 1], lora_name="ink.safetensors")
    | {"inputs": {"model": ["4", 0], "lora_name": "ink.safetensors", "strength_model": 0.75}},
    "11": node("CLIPSetLastLayer", clip=["4", 1], stop_at_clip_layer=-2),
    "5": node("EmptyLatentImage", width=512, height=704, batch_size=1),
    "12": node("PrimitiveString", value="a fox"),
    "6": node("CLIPTextEncode", clip=["11", 0], text=["12", 0]),
    "7": node("CLIPTextEncode", clip=["11", 0], text="blurry"),
    "13": node("ControlNetApplyAdvanced", positive=["6", 0], negative=["7", 0], image=["14", 0]),
    "14": node("LoadImage", image="a.png"),
    "9": node("SaveImage", images=["8", 0]),
    "8": node("VAEDecode", samples=["3", 0], vae=["4", 2]),
}
SAMPLER = node(
    "KSampler",
    model=["10", 0],
    positive=["13", 0],
    negative=["13", 1],
    latent_image=["5", 0],
    seed=77,
    steps=24,
    cfg=6.5,
    sampler_name="dpmpp_2m",
    scheduler="karras",
)
SECOND = node(
    "KSampler",
    **SAMPLER["inputs"] | {"latent_image": ["16", 0], "seed": 5, "steps": 9},
)
CUSTOM = {
    "20": node("RandomNoise", noise_seed=77),
    "21": node("KSamplerSelect", sampler_name="dpmpp_2m"),
    "22": node("BasicScheduler", model=["10", 0], scheduler="karras", steps=24, denoise=1.0),
    "23": node("CFGGuider", model=["10", 0], positive=["13", 0], negative=["13", 1], cfg=6.5),
    "3": node(
        "SamplerCustomAdvanced",
        noise=["20", 0],
        guider=["23", 0],
        sampler=["21", 0],
        sigmas=["22", 0],
        latent_image=["5", 0],
    ),
}
GRAPHS = [
    {"3": SAMPLER},
    {"1": SECOND, "16": node("LatentUpscale", samples=["3", 0]), "3": SAMPLER},
    CUSTOM,
]


@pytest.mark.parametrize("nodes", GRAPHS, ids=range(len(GRAPHS)))
def test_a_graph_without_a_text_is_read_at_its_first_sampler(nodes: dict[str, Any]) -> None:
    found = generation_text({"prompt": json.dumps(LOADERS | nodes), "workflow": "{}"}, SIZE)
    expected = {"prompt": "a fox <lora:ink:0.75>", "sampler_name": "DPM++ 2M", "clip_skip": 2}
    expected |= {"scheduler": "Karras", "sd_model_checkpoint": "dream"}
    read = read_infotext(found.text)
    assert read.request.items() >= (SAME | expected).items()
    assert found.left_out["ControlNetApplyAdvanced"] == "13"
    assert "KSampler" not in found.left_out or found.left_out["KSampler"] == "1"


EFFICIENT = {
    "1": node(
        "Efficient Loader",
        ckpt_name="dream.safetensors",
        positive="a fox",
        negative="blurry",
        empty_latent_width=512,
        empty_latent_height=704,
        lora_name="None",
        lora_model_strength=1.0,
        strength_model=1.0,
    ),
    "2": node(
        "Power Lora Loader (rgthree)",
        model=["1", 0],
        lora_1={"on": True, "lora": "ink.safetensors", "strength": 0.75},
        lora_2={"on": False, "lora": "oil.safetensors", "strength": 1.0},
    ),
    "3": node(
        "KSampler (Efficient)",
        model=["2", 0],
        positive=["1", 1],
        negative=["1", 2],
        latent_image=["1", 3],
        seed=77,
        steps=24,
        cfg=6.5,
        sampler_name="euler",
        scheduler="normal",
    ),
}


@pytest.mark.parametrize("prompt", [EFFICIENT, json.dumps(EFFICIENT)], ids=["object", "text"])
def test_loaders_of_usual_packs_are_read_also_in_a_comment(prompt: Any) -> None:
    comment = json.dumps({"prompt": prompt, "workflow": {"nodes": []}})
    found = generation_text({"parameters": comment}, SIZE)
    expected = {"prompt": "a fox <lora:ink:0.75>", "sd_model_checkpoint": "dream"}
    assert read_infotext(found.text).request.items() >= (SAME | expected).items()
    assert found.left_out == {}


def test_a_negative_prompt_that_is_zeroed_out_is_none() -> None:
    zeroed = {"3": SAMPLER, "7": node("ConditioningZeroOut", conditioning=["6", 0])}
    found = generation_text({"prompt": json.dumps(LOADERS | zeroed)}, SIZE)
    assert "Negative prompt" not in found.text


def test_a_text_in_the_form_of_the_webui_comes_before_a_graph() -> None:
    texts = {"prompt": json.dumps(LOADERS | {"3": SAMPLER}), "parameters": SD_NEXT}
    assert generation_text(texts, SIZE) == GenerationText(SD_NEXT)


@pytest.mark.parametrize("text", ["", "hello", "[1]", '{"a": 1}', "{" * 100_000, "null"])
def test_a_text_of_an_unknown_program_stays_as_it_is(text: str) -> None:
    assert generation_text({"parameters": text}, SIZE) == GenerationText(text)
    assert generation_text({"prompt": text, "Comment": text, "Software": "NovelAI"}).text == ""


EASY_TEXT = (
    "Prompt: a fox\nNegative Prompt: blurry\nSeed: 77\nStable Diffusion model: dream\n"
    "Sampler: euler_a\nWidth: 512\nHeight: 704\nSteps: 24\nGuidance Scale: 6.5\nLoRA model: ink"
)


def test_the_text_file_of_easy_diffusion_has_a_member_on_each_line() -> None:
    request = read_infotext(generation_text({"parameters": EASY_TEXT}).text).request
    assert request.items() >= (SAME | {"prompt": "a fox <lora:ink:1>"}).items()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=9,
)
MEMBERS = st.sampled_from(
    sorted(
        {*INVOKEAI, *FOOOCUS, *EASY_DIFFUSION, *SWARMUI["sui_image_params"], *EARLY_INVOKEAI}
        | {"extraMetadata", "extra", "uc", "scale", "noise_schedule", "class_type", "inputs"}
        | {*SAMPLER["inputs"], *SWARMUI, "guider", "sigmas", "sampler", "noise", "1"}
    )
)
DATA = st.recursive(
    st.dictionaries(MEMBERS, VALUES | st.just(["1", 0]), max_size=8),
    lambda inner: st.dictionaries(MEMBERS, inner, max_size=4),
    max_leaves=6,
)


@given(DATA)
def test_any_object_is_survived(data: dict[str, Any]) -> None:
    text = json.dumps(data)
    for texts in (
        {"parameters": text},
        {"Software": "NovelAI", "Comment": text},
        {"sd-metadata": text},
        {name: str(value) for name, value in data.items()},
    ):
        read_infotext(generation_text(texts, SIZE).text)


@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-16-le", "utf-8", "ascii"])
@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "PNG"])
def test_a_user_comment_is_the_text_of_an_image(kind: str, encoding: str) -> None:
    start = {"utf-8": b"", "ascii": b"ASCII\0\0\0"}.get(encoding, b"UNICODE\0")
    exif = Image.Exif()
    exif.get_ifd(IFD.Exif)[Base.UserComment] = start + FORGE.encode(encoding)
    assert image_texts(saved(kind, exif))["parameters"] == FORGE


def saved(kind: str, exif: Image.Exif) -> Image.Image:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, kind, exif=exif.tobytes())
    return Image.open(file)


def test_comfyui_stores_graphs_in_the_exif_of_a_webp() -> None:
    exif = Image.Exif()
    exif[Base.Make] = 'workflow:{"nodes": []}'
    exif[Base.Model] = f"prompt:{json.dumps(LOADERS | {'3': SAMPLER})}"
    found = image_texts(saved("WEBP", exif))
    assert "Seed: 77" in generation_text(found, SIZE).text
    assert found["workflow"] == '{"nodes": []}'


@pytest.mark.filterwarnings("ignore:(Corrupt|Possibly corrupt) EXIF data")
def test_damaged_exif_data_has_no_text() -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG", exif=b"Exif\0\0II*\0" + b"\xff" * 30)
    assert image_texts(Image.open(file)) == {}


def test_long_runs_of_spaces_in_a_prompt_take_no_time() -> None:
    text = json.dumps({"prompt": [{"prompt": f"a{' ' * 500_000}b [c] [d"}], "steps": 2})
    before = time.process_time()
    found = generation_text({"parameters": text}, SIZE)
    assert found.text.startswith(f"a{' ' * 500_000}b [d")
    assert time.process_time() - before < 20


@pytest.mark.parametrize(
    "text",
    [
        '{"prompt": "x", "steps": 1, "width": Infinity, "height": 512}',
        f'{{"prompt": "x", "steps": 1, "a": {"[" * 800}1{"]" * 800}}}',
        f'{{"positive_prompt": "x", "clip_skip": {"9" * 4300}}}',
    ],
)
def test_what_cannot_be_read_is_an_error_of_the_value(text: str) -> None:
    with suppress(ValueError):
        generation_text({"parameters": text}, SIZE)


def test_a_graph_of_countless_nodes_is_not_read() -> None:
    nodes = {str(n): node("KSampler", steps=1, sampler_name="euler") for n in range(1001)}
    with pytest.raises(ValueError, match="nodes"):
        generation_text({"prompt": json.dumps(nodes)}, SIZE)

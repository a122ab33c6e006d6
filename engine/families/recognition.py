"""Finds the family of a model file from the names and shapes in its header."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

from engine.errors import CheckpointUnavailable, ModelsUnavailable
from engine.families.control_nets import control_traits, patch_traits
from engine.families.family import UNET, VAE, EncoderKind, Family, Traits
from engine.families.table import FAMILIES, TRAITS
from engine.families.tokenizer_files import T5_SIGN, has_t5_without_tokenizer, tokenizer_file
from engine.graph.models_folder import (
    CHECKPOINTS,
    CONTROL_NETS,
    DIFFUSION_MODELS,
    FOLDER_MARK,
    GLIGENS,
    LORAS,
    MODEL_PATCHES,
    MODEL_SUFFIX,
    STYLE_MODELS,
    TEXT_ENCODERS,
    ModelsFolder,
    read_json,
)
from engine.graph.safetensors_header import Header, read_header

_FIRST_CONVOLUTION = f"{UNET}input_blocks.0.0.weight"
_TEXT_ATTENTION = "attn2.to_k.weight"
_OTHER_FAMILIES = {
    "double_stream_modulation_img.": "Flux.2",
    "distilled_guidance_layer.": "Chroma",
    "txt_in.individual_token_refiner.": "HunyuanVideo",
    "joint_blocks.": "Stable Diffusion 3",
    "double_layers.": "AuraFlow",
    "mlp_t5.": "HunyuanDiT",
    "cap_embedder.": "Lumina 2",
    "txt_norm.": "Qwen-Image",
    "head.modulation": "Wan",
    "clf.1.": "Stable Cascade",
    "double_blocks.": "Flux of another kind than Flux.1",
}
"""Families that are not supported, by a prefix of the names of their networks' tensors."""
_OTHER_KINDS = {
    "text_encoders.": "a model with other text encoders than CLIP",
    "control_model.": "a ControlNet, which belongs into controlnet/",
    "lora_": "a LoRA, which belongs into loras/",
    "emb_params": "an embedding, which belongs into embeddings/",
}
_OTHER_NETWORKS = {
    **_OTHER_FAMILIES,
    "input_blocks.": "a UNet of Stable Diffusion, which belongs into checkpoints/",
    "lora_": "a LoRA, which belongs into loras/",
    "text_model.": "a text encoder, which belongs into text_encoders/",
    "model.embed_tokens.": "a text encoder, which belongs into text_encoders/",
    "encoder.block.": "a text encoder, which belongs into text_encoders/",
    "decoder.conv_in.": "a VAE, which belongs into vae/",
}
"""Descriptions of unsupported files in `diffusion_models/`, by a prefix of the tensors' names."""
_UNSUPPORTED_CHANNELS = {
    5: "a depth model",
    7: "an upscaling model",
}
_INSTRUCTION_CHANNELS = 8
EDM = "edm_vpred."
"""The prefix of the largest and the smallest sigma in files of CosXL."""
_PLAYGROUND = "edm_mean"
_INSTRUCTION_FAMILIES = {Family.SD1, Family.SDXL}
_SUPPORTED_CHANNELS = {4, _INSTRUCTION_CHANNELS, 9}
"""A latent has 4 channels. A model that changes a picture by an instruction also has the latent of
the picture as an input, and a model for inpainting a mask and a second latent."""
_LORA_INFIXES = (".lora_down.", ".lora_A.", ".lora.down.")
_CACHED_MODELS = 4096


def checkpoint_family(header: Header) -> Family:
    """Return the family of a checkpoint. Raises CheckpointUnavailable if it is not supported.

    The text encoders and the VAE may be missing; see `missing_parts`.
    """
    for prefix in (UNET, ""):
        if network := _network_family(header, prefix):
            return network.family
    others = {f"{at}{key}": kind for at in (UNET, "") for key, kind in _OTHER_FAMILIES.items()}
    for prefix, kind in (others | _OTHER_KINDS).items():
        if header.has(prefix):
            raise CheckpointUnavailable(f"{header.name} is not a known checkpoint: it is {kind}")
    if any(infix in key for key in header.shapes for infix in _LORA_INFIXES):
        raise CheckpointUnavailable(f"{header.name} is a LoRA, which belongs into loras/")
    if not header.has(UNET):
        raise CheckpointUnavailable(
            f"{header.name} is not a Stable Diffusion checkpoint: it has no {UNET}*"
        )
    channels, family = input_channels(header), _unet_family(header)
    if family is not Family.SDXL and header.has(EDM):
        raise CheckpointUnavailable(
            f"{header.name} has the noise levels of EDM, which are supported only for Stable "
            "Diffusion XL"
        )
    if _PLAYGROUND in header.shapes:
        raise CheckpointUnavailable(f"{header.name} is Playground 2.5, which is not supported yet")
    if channels == _INSTRUCTION_CHANNELS and family not in _INSTRUCTION_FAMILIES:
        raise CheckpointUnavailable(
            f"{header.name} is a model with {_INSTRUCTION_CHANNELS} input channels of another kind "
            "than InstructPix2Pix, which is not supported yet"
        )
    return family


def _unet_family(header: Header) -> Family:
    """Return the family of a UNet from the text encoders in its file.

    Without them, the width of the text embeddings that the UNet reads decides. A UNet of another
    width is taken for Stable Diffusion 1, or for XL if it has size conditioning.
    """
    for each in FAMILIES:
        if each.is_network is None and all(map(header.has, each.text_encoders)):
            return each.family
    if _FIRST_CONVOLUTION not in header.shapes:
        raise CheckpointUnavailable(f"{header.name} has no known text encoder")
    widths = {one.lora_text_width: one.family for one in FAMILIES if one.lora_text_width}
    own = (
        shape
        for key, shape in header.shapes.items()
        if key.startswith(UNET) and key.endswith(_TEXT_ATTENTION)
    )
    has_sizes = f"{UNET}label_emb.0.0.weight" in header.shapes
    width = next((shape[1] for shape in own if len(shape) > 1), 0)
    return widths.get(width, Family.SDXL if has_sizes else Family.SD1)


def missing_parts(header: Header, family: Family) -> dict[str, str]:
    """Return the parts that a checkpoint lacks: what to do, by the type of the loader's output."""
    found: dict[str, str] = {}
    if not all(map(header.has, TRAITS[family].text_encoders)):
        found["CLIP"] = f"{header.name} has no known text encoder: load one with another node"
    if not any(map(header.has, (VAE, "vae.") if TRAITS[family].is_network else (VAE,))):
        found["VAE"] = f"{header.name} has no VAE: load one with VAELoader"
    return found


def diffusion_model_family(header: Header) -> Family:
    """Return the family of a network in a file without text encoders.

    The keys may begin with `UNET`. Raises CheckpointUnavailable for an unsupported network.
    """
    prefix = UNET if header.has(UNET) else ""
    if found := _network_family(header, prefix):
        return found.family
    kinds = (kind for key, kind in _OTHER_NETWORKS.items() if header.has(f"{prefix}{key}"))
    kind = next(kinds, "not a known diffusion model")
    known = " and ".join(each.title for each in FAMILIES if each.is_network)
    raise CheckpointUnavailable(f"{header.name} is {kind}; {known} are supported here")


def _network_family(header: Header, prefix: str = "") -> Traits | None:
    """Return the traits of the transformer whose keys begin with `prefix`, or else None.

    Raises CheckpointUnavailable for a variant of a family that is not supported.
    """
    for each in FAMILIES:
        if each.is_network is not None and each.is_network(header, prefix):
            return each
    return None


def input_channels(header: Header) -> int | None:
    """Return the number of input channels of a checkpoint's UNet, or None if none is found.

    Raises CheckpointUnavailable if UNets with this number of channels are not supported.
    """
    shape = header.shapes.get(_FIRST_CONVOLUTION, ())
    if len(shape) != 4:
        return None
    channels = shape[1]
    if channels not in _SUPPORTED_CHANNELS:
        kind = _UNSUPPORTED_CHANNELS.get(channels, f"a model with {channels} input channels")
        raise CheckpointUnavailable(f"{header.name} is {kind}, which is not supported yet")
    return channels


def lora_family(header: Header) -> Family | None:
    """Return the family of a LoRA from the width of its text embeddings, or None."""
    for key, shape in header.shapes.items():
        if "attn2" in key and "to_k" in key and ("down" in key or "lora_A" in key):
            widths = {one.lora_text_width: one.family for one in FAMILIES if one.lora_text_width}
            return widths.get(shape[1]) if len(shape) > 1 else None
    return None


_GLIGEN_PARTS = {
    "position_net.null_positive_feature": 1,
    "position_net.linears.0.weight": 2,
    ".fuser.linear.weight": 2,
}
"""The number of axes of a GLIGEN's tensors, by the ends of their names."""
_GLIGEN_OF_PICTURES = "position_net.null_image_feature"


def require_gligen(name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise CheckpointUnavailable unless the file is a GLIGEN for texts in boxes."""
    if _GLIGEN_OF_PICTURES in shapes:
        raise CheckpointUnavailable(
            f"{name} is a GLIGEN for texts and pictures; only a GLIGEN for texts is supported"
        )
    for end, axes in _GLIGEN_PARTS.items():
        found = [len(shape) for key, shape in shapes.items() if key.endswith(end)]
        if not found or any(each != axes for each in found):
            raise CheckpointUnavailable(f"{name} is not a GLIGEN for texts in boxes")


def require_style_model(header: Header) -> None:
    """Raise CheckpointUnavailable unless the file is a Redux of Flux.1."""
    if header.shapes.keys() >= {"redux_down.weight", "redux_up.weight"}:
        return
    kind = "a style adapter of T2I-Adapter" if header.has("style_embedding") else "no style model"
    raise CheckpointUnavailable(f"{header.name} is {kind}; only Flux.1 Redux is supported")


_ENCODER_SIGNS = {
    "layers.0.self_attn.q_norm.weight": EncoderKind.QWEN3,
    T5_SIGN: EncoderKind.T5,
    "encoder.layers.30.layer_norm1.weight": EncoderKind.CLIP_G,
    "encoder.layers.22.layer_norm1.weight": EncoderKind.CLIP_H,
    "encoder.layers.0.layer_norm1.weight": EncoderKind.CLIP_L,
    "transformer.resblocks.30.ln_1.weight": EncoderKind.CLIP_G,
    "transformer.resblocks.22.ln_1.weight": EncoderKind.CLIP_H,
    "transformer.resblocks.0.ln_1.weight": EncoderKind.CLIP_L,
}
"""The kind of a text encoder by a name of its tensors. The first name that a file has decides."""
_ENCODER_PREFIXES = ("", "model.", "text_model.")
_GEMMA_SIGN = "model.layers.0.post_feedforward_layernorm.weight"


def encoder_kind(name: str, shapes: Mapping[str, tuple[int, ...]]) -> EncoderKind:
    """Return the kind of a text encoder. Raises CheckpointUnavailable if it is not known."""
    for sign, kind in _ENCODER_SIGNS.items():
        if any(f"{prefix}{sign}" in shapes for prefix in _ENCODER_PREFIXES):
            if _GEMMA_SIGN not in shapes:
                return kind
            break
    known = ", ".join(EncoderKind)
    raise CheckpointUnavailable(f"{name} is not a known text encoder; known are {known}")


def family_of_encoders(kinds: Sequence[EncoderKind]) -> Family:
    """Return the family with text encoders of exactly these kinds.

    Raises CheckpointUnavailable if there is no such family.
    """
    for each in FAMILIES:
        if each.encoders == set(kinds) and len(each.encoders) == len(kinds):
            return each.family
    known = ", ".join(f"{' and '.join(sorted(each.encoders))} ({each.title})" for each in FAMILIES)
    raise CheckpointUnavailable(
        f"no supported model has the text encoders {' and '.join(kinds)}; known are {known}"
    )


def _encoder_family(kind: EncoderKind) -> Family:
    """Return the family whose cost is used for a text encoder alone: the one with the fewest
    encoders.
    """
    having = (each for each in FAMILIES if kind in each.encoders)
    return min(having, key=lambda each: len(each.encoders)).family


_FLOATS = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}
_SCALES = (".scale_weight", ".weight_scale")


def require_precision(header: Header, prefix: str = "") -> None:
    """Raise CheckpointUnavailable unless all weights whose names begin with `prefix` are floats,
    with at most one scale each.
    """
    for key, shape in header.shapes.items():
        if not key.startswith(prefix):
            continue
        if key.endswith(".weight") and header.types.get(key, "F32") not in _FLOATS:
            raise CheckpointUnavailable(
                f"{header.name}: {key} is stored as {header.types[key]}, but only floating-point "
                "numbers of 8 to 64 bits are supported"
            )
        if key.endswith(_SCALES) and math.prod(shape) != 1:
            raise CheckpointUnavailable(
                f"{header.name}: {key} has {math.prod(shape)} scales, but only fp8 with one scale "
                "is supported"
            )


@dataclass(frozen=True, slots=True)
class Problems:
    """Why a model file cannot be used, as far as its header shows this."""

    whole: str | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    """Why a part of a checkpoint cannot be used, by the type of the loader's output."""
    needs_tokenizer: bool = False
    """Whether the file has a T5 without its tokenizer, which must be in another file."""

    def of(self, outputs: Collection[str]) -> str | None:
        """Return the problem of a loader whose outputs of these types are used, or None."""
        return self.whole or next(
            (self.parts[each] for each in outputs if each in self.parts), None
        )


_NONE = Problems()


@dataclass(frozen=True, slots=True)
class _Model:
    """The traits of a model, from the header of its file or the mark of its folder.

    None stands for unknown.
    """

    family: Family | None = None
    encoder: EncoderKind | None = None
    problems: Problems = _NONE


def problems_of(models: ModelsFolder, kind: str, name: str) -> Problems:
    """Return the problems of a listed model. Of an empty file or an unreadable models folder, no
    problems are known, and of a folder only a missing tokenizer.
    """
    return _model(models, kind, name).problems


def encoders_problem(models: ModelsFolder, inputs: Mapping[str, str]) -> dict[str, str]:
    """Return why a node cannot use its text encoders together, by its first input, or nothing.

    `inputs` are the names of the files by input. If a kind is not known, no problem is known.
    """
    kinds = [_model(models, TEXT_ENCODERS, name).encoder for name in inputs.values()]
    known = [kind for kind in kinds if kind is not None]
    try:
        if known and len(known) == len(kinds):
            family_of_encoders(known)
    except CheckpointUnavailable as error:
        return {next(iter(inputs)): str(error)}
    return {}


def family_of(models: ModelsFolder, kind: str, name: str) -> Family | None:
    """Return the family of a listed model, or None for an unknown family or an unreadable file."""
    return _model(models, kind, name).family


def traits_of(models: ModelsFolder, kind: str, name: str) -> Traits | None:
    family = family_of(models, kind, name)
    return TRAITS[family] if family else None


def _model(models: ModelsFolder, kind: str, name: str) -> _Model:
    try:
        return _read_model(models, kind, models.path(kind, name))
    except (CheckpointUnavailable, ModelsUnavailable):
        return _Model()


def family_at(models: ModelsFolder, kind: str, path: Path) -> Family | None:
    """Like `family_of`, for the path of a model. Raises ModelsUnavailable."""
    return _read_model(models, kind, path).family


def _read_model(models: ModelsFolder, kind: str, path: Path) -> _Model:
    return models.reads.read(("model", kind, path), partial(_model_at, models, kind, path))


def _model_at(models: ModelsFolder, kind: str, path: Path) -> _Model:
    try:
        is_folder = path.is_dir()
        mark = path / FOLDER_MARK if is_folder else path
        state = mark.stat()
        if not state.st_size:
            return _Model()
        found = _model_in(kind, mark, state.st_size, state.st_mtime_ns)
    except (OSError, CheckpointUnavailable):
        return _Model()  # The file cannot be read now.
    file = path / "text_encoder_2" if is_folder else path
    has_t5 = is_folder and found.family is Family.FLUX and file.is_dir()
    if has_t5 or found.problems.needs_tokenizer:
        try:
            tokenizer_file(models, file, EncoderKind.T5, ())
        except CheckpointUnavailable as error:
            parts = {"CLIP": str(error), **found.problems.parts}
            return replace(found, problems=replace(found.problems, parts=parts))
    return found


@lru_cache(maxsize=_CACHED_MODELS)
def _model_in(kind: str, mark: Path, _size_bytes: int, _changed_ns: int) -> _Model:
    """Return what a file shows until it changes. Raises CheckpointUnavailable if it cannot be read
    now.
    """
    if mark.name == FOLDER_MARK:
        return _Model(_folder_family(mark))
    if mark.suffix != MODEL_SUFFIX:
        return _Model()
    found = _Model()
    try:
        header = read_header(mark)
        if kind == CHECKPOINTS:
            family = checkpoint_family(header)
            needs_tokenizer = has_t5_without_tokenizer(header.shapes)
            problems = Problems(None, missing_parts(header, family), needs_tokenizer)
            found = _Model(family, problems=problems)
            require_precision(header, UNET if header.has(UNET) else "")
        elif kind == DIFFUSION_MODELS:
            found = _Model(diffusion_model_family(header))
            require_precision(header)
        elif kind == LORAS:
            found = _Model(lora_family(header))
        elif kind == TEXT_ENCODERS:
            encoder = encoder_kind(header.name, header.shapes)
            problems = Problems(needs_tokenizer=has_t5_without_tokenizer(header.shapes))
            found = _Model(_encoder_family(encoder), encoder, problems)
            require_precision(header)
        else:
            _require_kind(kind, header)
    except CheckpointUnavailable as error:
        if isinstance(error.__cause__, OSError):
            raise
        return replace(found, problems=Problems(str(error)))
    return found


def _require_kind(kind: str, header: Header) -> None:
    """Raise CheckpointUnavailable for a file of another kind, if files of this kind have signs."""
    if kind == STYLE_MODELS:
        require_style_model(header)
    elif kind == GLIGENS:
        require_gligen(header.name, header.shapes)
        require_precision(header)
    elif kind == CONTROL_NETS:
        control_traits(header.name, header.shapes)
        require_precision(header)
    elif kind == MODEL_PATCHES:
        patch_traits(header.name, header.shapes)
        require_precision(header)


def _folder_family(mark: Path) -> Family | None:
    """Return the family of a diffusers folder by the classes of its transformer and its pipeline.

    Stable Diffusion 1 and 2 have the same pipeline class, so the class does not identify them.
    """
    names = map(_class_name, (mark.parent / "transformer" / "config.json", mark))
    signs = [(each.pipeline, each.family) for each in FAMILIES if each.pipeline]
    return next((family for name in names for sign, family in signs if sign in name), None)


def _class_name(config: Path) -> str:
    """Return the name of the class in a diffusers configuration, or "" if it cannot be read."""
    try:
        return str(read_json(config).get("_class_name"))
    except CheckpointUnavailable:
        return ""

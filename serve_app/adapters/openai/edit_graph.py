"""An edit as a graph: image to image, or inpainting where a mask is transparent. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.families.family import Defaults
from engine.graph.names import AUTOMATIC, resolve
from events.store.records import Upload
from serve_app.adapters.graphs import node, whole_cells
from serve_app.adapters.openai.parameters import EditParameters

_SAMPLER = "Euler"
_CFG = 7.0


@dataclass(frozen=True, slots=True)
class Edit:
    parameters: EditParameters
    checkpoint: str
    steps: int
    image: Upload
    mask: Upload | None
    """Where it is transparent, the image is made anew."""
    usual: Defaults
    """Of the checkpoint's family."""

    @property
    def sampling(self) -> dict[str, Any]:
        """By which sampler, and how strongly the text guides it."""
        usual = self.usual
        sampler, scheduler = resolve(usual.sampler_name or _SAMPLER, usual.scheduler or AUTOMATIC)
        cfg = self.parameters.cfg_scale or usual.cfg_scale or _CFG
        return {"sampler_name": sampler, "scheduler": scheduler, "cfg": cfg}

    @property
    def sides(self) -> tuple[int, int]:
        """Of the result: those that were asked for, or those of the image."""
        asked = self.parameters.sides
        if asked is not None:
            return asked
        return whole_cells(self.image.width), whole_cells(self.image.height)

    @property
    def is_scaled(self) -> bool:
        return self.sides != (self.image.width, self.image.height)


def edit_graph(edit: Edit) -> dict[str, Any]:
    """In ComfyUI's API format."""
    asked = edit.parameters
    graph = {
        "checkpoint": node("CheckpointLoaderSimple", ckpt_name=edit.checkpoint),
        "positive": node("CLIPTextEncode", clip=["checkpoint", 1], text=asked.prompt),
        "negative": node("CLIPTextEncode", clip=["checkpoint", 1], text=asked.negative_prompt),
        "image": node("LoadImage", image=edit.image.name),
        **_sized(edit, "sized", ["image", 0]),
    }
    pixels = ["sized", 0] if edit.is_scaled else ["image", 0]
    graph["encoded"] = node("VAEEncode", pixels=pixels, vae=["checkpoint", 2])
    samples = ["encoded", 0]
    mask = None if edit.mask is None else _mask_nodes(edit, graph, edit.mask)
    if mask is not None:
        graph["masked"] = node("SetLatentNoiseMask", samples=samples, mask=mask)
        samples = ["masked", 0]
    if asked.n > 1:
        graph["batch"] = node("RepeatLatentBatch", samples=samples, amount=asked.n)
        samples = ["batch", 0]
    graph["sampler"] = node(
        "KSampler",
        model=["checkpoint", 0],
        seed=asked.seed,
        steps=edit.steps,
        **edit.sampling,
        positive=["positive", 0],
        negative=["negative", 0],
        latent_image=samples,
        denoise=asked.denoise if mask is None else 1.0,
    )
    graph["decoded"] = node("VAEDecode", samples=["sampler", 0], vae=["checkpoint", 2])
    images = ["decoded", 0]
    if mask is not None:
        images = _kept_outside(edit, graph, pixels=pixels, mask=mask)
    graph["save"] = node("SaveImage", images=images, filename_prefix="edit")
    return graph


def _mask_nodes(edit: Edit, graph: dict[str, Any], mask: Upload) -> list[Any]:
    """Writes the mask in the size of the result; LoadImage masks what is transparent."""
    graph["mask"] = node("LoadImage", image=mask.name)
    if not edit.is_scaled:
        return ["mask", 1]
    graph["mask-image"] = node("MaskToImage", mask=["mask", 1])
    graph |= _sized(edit, "mask-sized", ["mask-image", 0])
    graph["mask-again"] = node("ImageToMask", image=["mask-sized", 0], channel="red")
    return ["mask-again", 0]


def _kept_outside(
    edit: Edit, graph: dict[str, Any], *, pixels: list[Any], mask: list[Any]
) -> list[Any]:
    """Writes what is over the result: the image's own pixels, where the mask says so."""
    if edit.parameters.n > 1:
        graph["originals"] = node("RepeatImageBatch", image=pixels, amount=edit.parameters.n)
        pixels = ["originals", 0]
    graph["composite"] = node(
        "ImageCompositeMasked",
        destination=pixels,
        source=["decoded", 0],
        mask=mask,
        x=0,
        y=0,
        resize_source=False,
    )
    return ["composite", 0]


def _sized(edit: Edit, id: str, image: list[Any]) -> dict[str, Any]:
    """A node that brings pictures to the size of the result, where they have another one."""
    if not edit.is_scaled:
        return {}
    width, height = edit.sides
    method = {"upscale_method": "bicubic", "crop": "center"}
    return {id: node("ImageScale", image=image, width=width, height=height, **method)}

"""The members of a diffusion request that starts from images: img2img and inpainting."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import FailFast, Field, WithJsonSchema

from engine.webui.members import WebUIMembers, always
from engine.webui.values import Factor, Number, Text, Whole

MOST_IMAGES = 16
_LARGEST_DENOISE = 0.999
_USUAL_BLUR = 4
_MOST_BLUR = 64
FileName: TypeAlias = Annotated[
    Text,
    Field(min_length=1, max_length=1024),
    # Over HTTP the image itself may stand there, which is longer.
    WithJsonSchema({"type": "string", "minLength": 1}),
]
Blur: TypeAlias = Annotated[Whole, Field(ge=0, le=_MOST_BLUR)]
ResizeMode: TypeAlias = Literal[
    "just resize", "crop and resize", "resize and fill", "latent upscale"
]
MaskedContent: TypeAlias = Literal["fill", "original", "latent noise", "latent nothing"]
RESIZE_MODES: tuple[ResizeMode, ...] = (
    "just resize",
    "crop and resize",
    "resize and fill",
    "latent upscale",
)
MASKED_CONTENTS: tuple[MaskedContent, ...] = ("fill", "original", "latent noise", "latent nothing")
"""Both in the order of their numbers in the WebUI."""


class FromImages(WebUIMembers):
    """Start from images instead of noise alone. Without `init_images` these have no effect."""

    init_images: Annotated[tuple[FileName, ...], Field(max_length=MOST_IMAGES), FailFast()] = ()
    """Names of uploads; over HTTP also the images themselves, by a data URL, base64 or an https
    URL. One is the start of every image; of several each is that of one image of a batch, and
    there is a batch of so many."""
    resize_mode: Annotated[Whole, Field(ge=0, le=3)] = 0
    """0: the image is stretched to the size; 1: what does not fit is cut off; 2: edges are filled
    with the colours of the border; 3: its latent is stretched."""
    mask: FileName | None = None
    """The name of an upload, or an image as in `init_images`. What is white in it is made anew, or
    what is opaque where it has transparency."""
    mask_blur: Blur | None = None
    """In pixels; if given, both of `mask_blur_x` and `mask_blur_y`."""
    mask_blur_x: Blur = _USUAL_BLUR
    mask_blur_y: Blur = _USUAL_BLUR
    inpainting_mask_invert: bool = False
    """What is black is made anew."""
    inpainting_fill: Annotated[Whole, Field(ge=0, le=3)] = 0
    """What is under the mask at the start. 0: colours of the surroundings; 1: the image; 2: noise;
    3: a latent of zeros."""
    inpaint_full_res: bool = True
    """Make what is around the mask at the size of the request, and paste it into the image."""
    inpaint_full_res_padding: Annotated[Whole, Field(ge=0, le=4096)] = 0
    """So many pixels of what is around the mask are looked at, too."""
    initial_noise_multiplier: Annotated[Number, Field(ge=0, le=10)] | None = None
    """What the noise of the start is multiplied with; 1 unless given."""

    mask_round: Annotated[bool, always(True)] = True
    latent_mask: Annotated[str, always("")] = ""
    image_cfg_scale: Factor | None = None
    """For models that are told to edit an image, of which there is none here."""
    include_init_images: bool = False
    """The answer never repeats what was sent."""

    @property
    def blurs(self) -> tuple[int, int]:
        """Those of columns and rows, in pixels."""
        if self.mask_blur is not None:
            return self.mask_blur, self.mask_blur
        return self.mask_blur_x, self.mask_blur_y

    @property
    def noise_multiplier(self) -> float:
        return 1.0 if self.initial_noise_multiplier is None else self.initial_noise_multiplier

    @property
    def is_only_masked(self) -> bool:
        """Whether the surroundings of the mask alone are made."""
        return self.mask is not None and self.inpaint_full_res

    @property
    def masked_content(self) -> MaskedContent:
        return MASKED_CONTENTS[self.inpainting_fill]

    @property
    def resizing(self) -> ResizeMode:
        return RESIZE_MODES[self.resize_mode]

    def masked_in_webui_alone(self) -> list[str]:
        """The members that were given and ask for what ComfyUI's nodes have no counterpart of."""
        asked = {
            "resize_mode": self.resize_mode == RESIZE_MODES.index("resize and fill"),
            "mask_blur": bool(self.mask_blur),
            "mask_blur_x": bool(self.mask_blur_x),
            "mask_blur_y": bool(self.mask_blur_y),
            "inpainting_fill": self.masked_content != "original",
            "inpaint_full_res": self.inpaint_full_res,
            "initial_noise_multiplier": self.noise_multiplier != 1.0,
        }
        return [
            name for name, is_asked in asked.items() if is_asked and name in self.model_fields_set
        ]


def steps_taken(steps: int, denoise: float) -> int:
    """How many steps of a schedule img2img takes: the share that is denoised, and one more."""
    return int(min(denoise, _LARGEST_DENOISE) * steps) + 1

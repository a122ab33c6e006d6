"""What a node's body can do with pictures in the place of texts: `context.vision`."""

from __future__ import annotations

from engine.batcher import Work
from engine.diffusion.images.latents import Images
from engine.diffusion.loading.store import Load, ModelStore
from engine.diffusion.model import Model
from engine.diffusion.vision.attended import CrossAttention, ImagePrompt
from engine.diffusion.vision.clip_vision import ClipVision, ClipVisionOutput, encoded
from engine.diffusion.vision.clip_vision_file import load_clip_vision
from engine.diffusion.vision.image_prompts import cross_attentions, with_image_prompt
from engine.graph.models_folder import CHECKPOINTS, CLIP_VISIONS


class VisionOperations:
    """Vision models, what they make of images, and models that attend to images."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store

    def load(self, name: str) -> Work[ClipVision]:
        """The CLIP vision model of that name."""
        return self._load(CLIP_VISIONS, name)

    def load_from_checkpoint(self, name: str) -> Work[ClipVision]:
        """The CLIP vision model inside a checkpoint of unCLIP."""
        return self._load(CHECKPOINTS, name)

    def encode(self, network: ClipVision, images: Images, *, crop: bool) -> Work[ClipVisionOutput]:
        """What the vision model makes of images: of their middle if `crop`, else of all of them,
        squeezed to a square.
        """
        return encoded(network, images, crop=crop)

    def cross_attentions(self, model: Model) -> tuple[CrossAttention, ...]:
        """The layers that can attend to images, as IP-Adapter numbers them.

        Raises EngineError for a model that has none.
        """
        return cross_attentions(model.unet)

    def with_image_prompt(self, model: Model, prompt: ImagePrompt) -> Model:
        """The model, which attends to one more image prompt. Its jobs share calls with all others
        of the same weights. Raises EngineError for a prompt that is not made for its layers.
        """
        return with_image_prompt(model, prompt)

    def _load(self, kind: str, name: str) -> Work[ClipVision]:
        store = self._store
        network: ClipVision = yield Load(
            ("clip_vision", kind, name), lambda: load_clip_vision(store, kind, name)
        )
        return network

"""The options of UNets: their precision, memory format and compiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.loading.unets import dtype_of
from engine.engine import Engine
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.options import DeviceOptions, UnetOptions
from engine.reports import ImageReady
from tests.support.engine.workflows import TINY, Watched

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("precision", "on_cpu", "on_gpu"),
    [
        ("auto", torch.float32, torch.float16),
        ("float32", torch.float32, torch.float32),
        ("float16", torch.float16, torch.float16),
        ("bfloat16", torch.bfloat16, torch.bfloat16),
    ],
)
def test_precision(precision: Any, on_cpu: torch.dtype, on_gpu: torch.dtype) -> None:
    options = UnetOptions(precision=precision)
    assert (dtype_of(options, CPU), dtype_of(options, GPU)) == (on_cpu, on_gpu)


def test_a_unet_is_kept_as_the_options_say_and_the_rest_in_float32(tiny_root: Path) -> None:
    options = UnetOptions("bfloat16", channels_last=True)
    loaded = load_checkpoint(ModelStore(ModelsFolder(tiny_root), CPU, 2**30, unets=options), TINY)
    weight = loaded.model.unet.conv_in.weight
    assert weight.dtype is torch.bfloat16
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert {each.dtype for each in loaded.vae.autoencoder.parameters()} == {torch.float32}
    assert {each.dtype for each in loaded.clip.encoders[0].parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("options", "levels"),
    [
        (UnetOptions(), 0),
        (UnetOptions(channels_last=True), 1),
        (
            UnetOptions(compiler="eager"),
            1,
        ),  # traced as for other backends, and run without compiling
        (UnetOptions("bfloat16"), 24),
    ],
    ids=str,
)
def test_pictures_hardly_depend_on_the_options(
    tiny_root: Path,
    catalogue: Catalogue,
    prompt: Callable[..., dict[str, Any]],
    submit: Callable[..., Watched],
    options: UnetOptions,
    levels: int,
) -> None:
    usual = _pixels(submit(prompt()))
    engine = Engine(models=ModelsFolder(tiny_root), options=DeviceOptions(unets=options))
    engine.start()
    try:
        watched = Watched()
        engine.submit(validate(prompt(), catalogue, Limits()), on_event=watched.take)
        found = _pixels(watched)
    finally:
        engine.stop()
    assert np.abs(usual - found).max() <= levels


def _pixels(watched: Watched) -> np.ndarray[Any, np.dtype[np.int64]]:
    watched.wait()
    [image] = [event for event in watched.events if isinstance(event, ImageReady)]
    return np.asarray(image.pixels, dtype=np.int64)

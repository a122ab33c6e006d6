"""The plain loop of diffusers in its own process (see `harness/process.py`).

usage: python -m benchmarks.peers.diffusers CHECKPOINT DEVICE
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from diffusers import EulerDiscreteScheduler
from torch import nn

from benchmarks.harness.graphs import prompt
from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.layers import OneDnnLinear
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.text.encoding import load_tokenizer
from engine.graph.models_folder import ModelsFolder

seeds = itertools.count(1)


def main() -> None:
    checkpoint, device = Path(sys.argv[1]), torch.device(sys.argv[2])
    torch.set_num_threads(os.cpu_count() or 1)
    loop = DiffusersLoop(checkpoint, device)
    for line in sys.stdin:
        print(sum(loop.run() for _ in range(int(line.split()[-1]))), flush=True)


class DiffusersLoop:
    """Makes pixels from a text with only the networks and a scheduler of diffusers."""

    def __init__(self, checkpoint: Path, device: torch.device) -> None:
        store = ModelStore(ModelsFolder(checkpoint.parents[1]), device, 2**40)
        loaded = load_checkpoint(store, checkpoint.name)
        self._unet = _with_plain_layers(loaded.model.unet)
        self._vae = loaded.vae.autoencoder
        self._encoder = _with_plain_layers(loaded.clip.encoders[0].text_model)
        self._tokenizer = load_tokenizer()
        self._scheduler = EulerDiscreteScheduler(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"
        )

    @torch.inference_mode()
    def run(self) -> float:
        """Run one job. Return the time in seconds."""
        seed = next(seeds)
        began = time.perf_counter()
        context = torch.cat([self._encode(""), self._encode(prompt(seed))])
        self._scheduler.set_timesteps(20)
        noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(seed))
        x = noise.to(context.device) * self._scheduler.init_noise_sigma
        for timestep in self._scheduler.timesteps:
            shown = self._scheduler.scale_model_input(torch.cat([x, x]), timestep)
            guess = self._unet(
                shown.to(self._unet.dtype),
                timestep,
                context.to(self._unet.dtype),
                return_dict=False,
            )[0].float()
            without, wanted = guess.chunk(2)
            guided = without + 7.0 * (wanted - without)
            x = self._scheduler.step(guided, timestep, x, return_dict=False)[0]
        pixels = self._vae.decode(x / self._vae.config.scaling_factor, return_dict=False)[0]
        ((pixels + 1) * 127.5).clamp(0, 255).to(torch.uint8).cpu()
        return time.perf_counter() - began

    def _encode(self, text: str) -> torch.Tensor:
        options: dict[str, Any] = {"padding": "max_length", "max_length": 77}
        tokens = self._tokenizer(text, return_tensors="pt", **options).input_ids
        encoded: torch.Tensor = self._encoder(tokens.to(self._encoder.device))[0]
        return encoded


def _with_plain_layers(network: Any) -> Any:
    """Return the network with torch's own linear layers, which diffusers uses."""
    for name, layer in list(network.named_modules()):
        if isinstance(layer, OneDnnLinear):
            has_bias = layer.bias is not None
            plain = nn.Linear(layer.in_features, layer.out_features, bias=has_bias, device="meta")
            plain.weight, plain.bias = layer.weight, layer.bias
            network.set_submodule(name, plain.eval())
    return network


if __name__ == "__main__":
    main()

"""Makes `tests/golden/flow_samplers.npz`: where ComfyUI's samplers end on flow models.

    PYTHONPATH=COMFYUI:. python -m tests.support.engine.make_flow_samplers [NAME ...]

The samplers are those of ComfyUI 0.3.75, except `exp_heun_2_x0` and `exp_heun_2_x0_sde`, which are
those of 0.12.1 and are named on the command line. They run on the exact denoiser of a Gaussian.
Each array is (models, schedulers, denoise, values).
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

OUT = Path(__file__).parents[2] / "golden" / "flow_samplers.npz"
MODELS = ("dev", "schnell", "z_image")
SCHEDULES = ("simple", "normal", "sgm_uniform", "beta")
DENOISE = (1.0, 0.6)
STEPS = 8
SEED = 7
SHAPE = (1, 1, 4, 4)
CLEAN = torch.linspace(-2, 2, 16).sin().reshape(SHAPE)
_SPREAD = 0.5
_MEANS = torch.linspace(-1, 1, 16).reshape(SHAPE), torch.linspace(0.4, -0.2, 16).reshape(SHAPE)
_DISCARDS_PENULTIMATE = {"dpm_2", "dpm_2_ancestral", "uni_pc", "uni_pc_bh2"}


def start_noise() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(SEED))


def x0s_of(x: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best x0 of Gaussian pictures with a mean, and that of another mean."""
    kept = 1 - sigma
    share = kept * _SPREAD**2 / ((kept * _SPREAD) ** 2 + sigma**2)
    first, second = (mean + share * (x - kept * mean) for mean in _MEANS)
    return first, second


class _Model:
    """A guider, with only the members that ComfyUI's samplers use."""

    def __init__(self, levels: Any) -> None:
        self.inner_model = SimpleNamespace(model_sampling=levels)
        self.model_patcher = SimpleNamespace(get_model_object=lambda _name: levels)

    def __call__(self, x: Tensor, sigma: Tensor, model_options: Any, seed: int) -> Tensor:
        x0, x0_uncond = x0s_of(x, sigma[0])
        for function in model_options.get("sampler_post_cfg_function", []):
            x0 = function({"denoised": x0, "uncond_denoised": x0_uncond})
        return x0


def _levels() -> list[Any]:
    from comfy import model_sampling

    class Flow(model_sampling.ModelSamplingFlux, model_sampling.CONST):  # type: ignore[misc]
        pass

    class Discrete(model_sampling.ModelSamplingDiscreteFlow, model_sampling.CONST):  # type: ignore[misc]
        pass

    found = [Flow(), Discrete(), Discrete()]
    found[1].set_parameters(shift=1.0, multiplier=1.0)
    found[2].set_parameters(shift=3.0, multiplier=1.0)
    return found


def _end(name: str, levels: Any, scheduler: str, denoise: float) -> Tensor:
    from comfy import samplers
    from comfy.k_diffusion import sampling

    total = int(STEPS / denoise) + (name in _DISCARDS_PENULTIMATE)
    sigmas = samplers.calculate_sigmas(levels, scheduler, total)
    if name in _DISCARDS_PENULTIMATE:
        sigmas = torch.cat([sigmas[:-2], sigmas[-1:]])
    # Later versions draw the noise of steps from the next seed.
    seed = SEED - ("seed += 1" in inspect.getsource(sampling.default_noise_sampler))
    clean = torch.zeros(SHAPE) if denoise == 1 else CLEAN
    sampler = samplers.sampler_object(name)
    extra = {"seed": seed, "model_options": {}}
    sigmas = sigmas[-(STEPS + 1) :]
    return sampler.sample(_Model(levels), sigmas, extra, None, start_noise(), clean, None, True)


def main(names: list[str]) -> None:
    from comfy import samplers

    found = dict(np.load(OUT)) if names else {}
    for name in names or samplers.SAMPLER_NAMES:
        if not name.endswith("_gpu"):
            ends = [
                [
                    [_end(name, levels, each, part).flatten() for part in DENOISE]
                    for each in SCHEDULES
                ]
                for levels in _levels()
            ]
            found[name] = np.array(ends, dtype=np.float32)
    np.savez_compressed(OUT, **found)


if __name__ == "__main__":
    main(sys.argv[1:])

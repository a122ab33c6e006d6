"""Makes `tests/golden/k_diffusion.json`: what k-diffusion 0.1.1.post1 and diffusers give.

    pip install --no-deps --target FOLDER k-diffusion==0.1.1.post1
    PYTHONPATH=FOLDER:. python -m tests.support.engine.make_k_diffusion

The samplers run on the exact denoiser of a Gaussian, from a generator whose draws go on from the
start into the steps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from diffusers import DDIMScheduler, PNDMScheduler
from torch import Tensor

OUT = Path(__file__).parents[2] / "golden" / "k_diffusion.json"
SPREAD = 0.5
SEED = 7
SHAPE = (1, 4, 4, 4)
STEPS = 12
CHURN = {"s_churn": 3.0, "s_tmin": 0.1, "s_tmax": 10.0, "s_noise": 1.1}
_BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
_ALONG_TIMESTEPS = {"steps_offset": 1, "set_alpha_to_one": False, **_BETAS}


def _k_diffusion() -> tuple[ModuleType, ModuleType]:
    """Import its samplers and schedules without their other dependencies."""
    for name in ("torchvision", "torchvision.transforms", "torchdiffeq"):
        sys.modules[name] = MagicMock()
    package = ModuleType("k_diffusion")
    package.__path__ = [f"{folder}/k_diffusion" for folder in sys.path]
    sys.modules["k_diffusion"] = package
    from k_diffusion import external, sampling

    return sampling, external


def denoised(x: Tensor, sigma: Tensor, **_: Any) -> Tensor:
    sigma = sigma.reshape(-1, *[1] * (x.ndim - 1))
    return x * SPREAD**2 / (SPREAD**2 + sigma**2)


def _start(sigma: Tensor) -> tuple[Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(SHAPE, generator=generator) * sigma, generator


def _sampler_ends(k: ModuleType, whole: Tensor) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for eta in (1.0, 0.5, 0.0):
        for name in ("euler_ancestral", "dpm_2_ancestral", "dpmpp_2s_ancestral"):
            found[f"{name} {eta}"] = _end(getattr(k, f"sample_{name}"), whole, eta=eta)
        for name in ("dpm_fast", "dpm_adaptive"):
            ends = {"sigma_max": float(whole[0]), "sigma_min": float(whole[-2])}
            count = {"n": STEPS} if name == "dpm_fast" else {}
            found[f"webui_{name} {eta}"] = _end(
                getattr(k, f"sample_{name}"), whole, along=False, eta=eta, **ends, **count
            )
        for name, more in (
            ("dpmpp_sde", {}),
            ("dpmpp_2m_sde", {}),
            ("dpmpp_2m_sde_heun", {"solver_type": "heun"}),
            ("dpmpp_3m_sde", {}),
        ):
            sampler = getattr(k, f"sample_{name.removesuffix('_heun')}")
            for part, sigmas in (("", whole), (" end", whole[-6:])):
                x = torch.zeros(SHAPE)
                path = k.BrownianTreeNoiseSampler(x, whole[-2], whole[0], seed=[SEED])
                found[f"{name} {eta}{part}"] = _end(
                    sampler, sigmas, eta=eta, noise_sampler=path, **more
                )
    return found


def _with_options(k: ModuleType, whole: Tensor) -> dict[str, list[float]]:
    """Return the final values with churn, and with a noise factor."""
    found: dict[str, list[float]] = {}
    for name in ("euler", "heun", "dpm_2"):
        x, generator = _start(whole[0])
        with patch("torch.randn_like", lambda x, g=generator: torch.randn(x.shape, generator=g)):
            end = getattr(k, f"sample_{name}")(denoised, x, whole, disable=True, **CHURN)
        found[name] = end.flatten()[:6].tolist()
    for name in ("euler_ancestral", "dpm_2_ancestral", "dpmpp_2s_ancestral"):
        found[name] = _end(getattr(k, f"sample_{name}"), whole, s_noise=CHURN["s_noise"])
    return found


def _end(
    sampler: Callable[..., Tensor], sigmas: Tensor, *, along: bool = True, **options: Any
) -> list[float]:
    x, generator = _start(sigmas[0])
    options.setdefault("noise_sampler", lambda *_: torch.randn(SHAPE, generator=generator))
    args = (x, sigmas) if along else (x,)
    return sampler(denoised, *args, disable=True, **options).flatten()[:6].tolist()


def _along_timesteps(scheduler: Any, steps: int) -> dict[str, Any]:
    """Return the timesteps, and the end of a latent of unit variance."""
    scheduler.set_timesteps(steps)
    x, _ = _start(torch.tensor(1.0))
    for timestep in scheduler.timesteps:
        kept = scheduler.alphas_cumprod[timestep]
        sigma = ((1 - kept) / kept).sqrt()
        x_exploding = x / kept.sqrt()
        eps = (x_exploding - denoised(x_exploding, sigma)) / sigma
        x = scheduler.step(eps, timestep, x).prev_sample
    return {"timesteps": scheduler.timesteps.tolist(), "end": x.flatten()[:6].tolist()}


def main() -> None:
    k, external = _k_diffusion()
    ddim = DDIMScheduler(clip_sample=False, **_ALONG_TIMESTEPS)
    schedule = external.DiscreteSchedule(
        ((1 - ddim.alphas_cumprod) / ddim.alphas_cumprod).sqrt(), quantize=False
    )
    ends = {"sigma_min": float(schedule.sigma_min), "sigma_max": float(schedule.sigma_max)}
    made = {
        "normal": schedule.get_sigmas,
        "karras": lambda n: k.get_sigmas_karras(n, **ends),
        "exponential": lambda n: k.get_sigmas_exponential(n, **ends),
        "polyexponential": lambda n: k.get_sigmas_polyexponential(n, **ends),
    }
    between = torch.tensor([a * 0.3 + b * 0.7 for a, b in pairwise((14.6, 7.0, 2.0, 0.5, 0.03))])
    noise, generator = _start(torch.tensor(1.0))
    found = {
        "sigmas": {
            name: {n: make(n).tolist() for n in (10, 20, 30)} for name, make in made.items()
        },
        "timesteps": [between.tolist(), schedule.sigma_to_t(between).tolist()],
        "noise": [noise.tolist(), torch.randn(SHAPE, generator=generator).tolist()],
        "ends": _sampler_ends(k, k.get_sigmas_karras(STEPS, **ends)),
        "options": _with_options(k, k.get_sigmas_karras(STEPS, **ends)),
        "ddim": _along_timesteps(ddim, 20),
        "plms": _along_timesteps(PNDMScheduler(skip_prk_steps=True, **_ALONG_TIMESTEPS), 20),
    }
    OUT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

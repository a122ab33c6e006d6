"""Samplers, schedules, custom schedules, and patched models."""

from __future__ import annotations

from itertools import product
from typing import Any

from engine.graph import names
from tests.support.comfyui.graphs import (
    MODEL,
    Graphs,
    Node,
    advanced,
    custom,
    decoded,
    empty,
    latent,
    of,
    patched,
    sampled,
    sampler,
)
from tests.support.engine.workflows import node

NOT_IN_COMFYUI = frozenset({"exp_heun_2_x0", "exp_heun_2_x0_sde"})
"""The names of samplers that ComfyUI 0.3.64 lacks, so there is no result to compare with."""


def samplers() -> Graphs:
    every = {
        row.name: sampled(sampler_name=row.name)
        for row in names.SAMPLERS
        if row.name not in NOT_IN_COMFYUI and not row.draws_path_on_device
    }
    # Starting here would take as long as all others together.
    adaptive = sampled(start="encoded", sampler_name="dpm_adaptive", denoise=0.2)
    return every | {"dpm_adaptive": adaptive}


def schedules() -> Graphs:
    return {row.name: sampled(scheduler=row.name, steps=3) for row in names.SCHEDULERS}


def starts() -> Graphs:
    """Graphs that start sampling at different steps."""
    partly = {
        f"denoise_{name}": sampled(
            start="encoded", sampler_name=name, scheduler=scheduler, denoise=denoise
        )
        for name, scheduler, denoise in (
            ("euler", "karras", 0.3),
            ("euler_ancestral", "normal", 0.7),
            ("dpm_2", "karras", 0.5),
            ("dpmpp_2m_sde", "exponential", 0.6),
            ("ddim", "ddim_uniform", 0.6),
            ("uni_pc", "normal", 0.6),
            ("lcm", "sgm_uniform", 0.5),
        )
    }
    return partly | {
        "one_step": sampled(steps=1),
        "no_guidance": sampled(cfg=1.0),
        "batch": sampled(start="pair"),
        "batch_ancestral": sampled(start="pair", sampler_name="euler_ancestral"),
        "batch_sde": sampled(start="pair", sampler_name="dpmpp_2m_sde"),
        "wide": sampled(start="wide"),
        "high": latent("sampled", sampled=sampler(start="high"), high=empty(height=104)),
        "largest_seed": sampled(seed=2**64 - 1, steps=2),
        "decoded": decoded("sampled", sampled=sampler()),
    }


def advanced_samplers() -> Graphs:
    parts: dict[str, dict[str, Any]] = {
        "first_half_noisy": {"end_at_step": 3, "return_with_leftover_noise": "enable"},
        "second_half": {"start_at_step": 3},
        "second_half_without_noise": {"start_at_step": 3, "add_noise": "disable"},
    }
    rest: dict[str, dict[str, Any]] = {
        "whole": {},
        "first_half": {"end_at_step": 3},
        "middle": {"start_at_step": 2, "end_at_step": 4, "return_with_leftover_noise": "enable"},
        "last_step": {"start_at_step": 5},
        "after_the_end": {"start_at_step": 6},
        "backwards": {"start_at_step": 5, "end_at_step": 3},
    }
    by = ("dpmpp_2m", "euler_ancestral", "dpmpp_2m_sde", "uni_pc")
    return {f"euler_{name}": advanced(**settings) for name, settings in (parts | rest).items()} | {
        f"{name}_{part}": advanced(sampler_name=name, **parts[part])
        for name, part in product(by, parts)
    }


def custom_samplers() -> Graphs:
    ends = {"sigma_max": 14.614642, "sigma_min": 0.0291675}
    karras = node("KarrasScheduler", steps=4, rho=7.0, **ends)
    basic = {"model": MODEL, "steps": 4}
    sigmas = {
        "basic": node("BasicScheduler", scheduler="normal", denoise=1.0, **basic),
        "basic_part": node("BasicScheduler", scheduler="karras", denoise=0.45, **basic),
        "basic_nothing": node("BasicScheduler", scheduler="karras", denoise=0.0, **basic),
        "karras": karras,
        "karras_high": node("KarrasScheduler", steps=4, sigma_max=20.0, sigma_min=0.1, rho=3.0),
        "exponential": node("ExponentialScheduler", steps=4, **ends),
        "polyexponential": node("PolyexponentialScheduler", steps=4, rho=1.5, **ends),
        "turbo": node("SDTurboScheduler", model=MODEL, steps=3, denoise=1.0),
        "turbo_part": node("SDTurboScheduler", model=MODEL, steps=2, denoise=0.6),
        "vp": node("VPScheduler", steps=4, beta_d=19.9, beta_min=0.1, eps_s=0.001),
    }
    split = node("SplitSigmas", sigmas=of("all"), step=2)
    flipped = node("FlipSigmas", sigmas=of("all"))
    denoised = ("basic", "karras", "turbo_part", "vp")
    by = ("heun", "dpmpp_sde", "uni_pc", "lcm", "dpm_fast")
    return (
        {f"levels_{name}": custom(each) for name, each in sigmas.items()}
        | {f"levels_{name}_denoised": custom(sigmas[name], output=1) for name in denoised}
        | {name: custom(karras, name) for name in (*by, "euler_cfg_pp")}
        | {f"{name}_denoised": custom(karras, name, output=1) for name in by}
        | {
            "without_noise": custom(karras, "dpmpp_2m", noise=False),
            "split_high": custom(of("split"), split=split, all=karras),
            "split_low": custom(of("split", 1), split=split, all=karras),
            "flipped": custom(of("flipped"), noise=False, flipped=flipped, all=karras),
        }
    )


def model_patches() -> Graphs:
    def kind(name: str, zero_snr: bool) -> Node:
        return node("ModelSamplingDiscrete", model=MODEL, sampling=name, zsnr=zero_snr)

    kinds = {
        f"{name}{'_zero_snr' * zero_snr}": kind(name, zero_snr)
        for name, zero_snr in product(("eps", "v_prediction", "lcm", "x0"), (False, True))
    }
    sde = {"sampler_name": "dpmpp_2m_sde", "scheduler": "karras", "denoise": 0.6}
    free_u = node("FreeU", model=MODEL, b1=1.1, b2=1.2, s1=0.9, s2=0.2)
    free_u_v2 = node("FreeU_V2", model=MODEL, b1=1.3, b2=1.4, s1=0.9, s2=0.2)
    rescale = node("RescaleCFG", model=MODEL, multiplier=0.7)
    return (
        {name: patched(each) for name, each in kinds.items()}
        | {f"{name}_sde": patched(kinds[name], **sde) for name in ("v_prediction", "lcm")}
        | {
            "lcm_by_lcm": patched(kinds["lcm"], sampler_name="lcm", scheduler="sgm_uniform"),
            "free_u": patched(free_u),
            "free_u_v2": patched(free_u_v2),
            "rescaled_guidance": patched(rescale),
            "rescaled_guidance_cfg_pp": patched(rescale, sampler_name="euler_cfg_pp"),
        }
    )

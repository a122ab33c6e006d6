"""Texts, conditionings, LoRAs, textual inversion embeddings and ControlNets."""

from __future__ import annotations

from itertools import product
from typing import Any

from tests.support.comfyui.graphs import (
    CLIP,
    MODEL,
    USUAL,
    Graph,
    Graphs,
    Link,
    Node,
    conditioned,
    enlarged,
    latent,
    of,
    sampler,
    text,
)
from tests.support.comfyui.weights import CONTROL_NET, LORA
from tests.support.engine.workflows import node


def texts() -> Graphs:
    prompts = {
        "empty": "",
        "unclosed_parenthesis": "a (red (small) car:1.3) [old] \\(big\\) (fast",
        "nested_weights": "((cat:1.2)) dog) (house:0.5)",
        "odd_weights": "(a:b:1.5) (c:) (:1.2) () a:1.2",
        "odd_numbers": "(cat:1.33.2) (dog:1e1) (hat:.5)",
        "negative_weight": "(bad:-0.7) good",
        "weight_of_zero": "(red:0) blue",
        "large_weight": "(red:5) blue",
        "other_letters": "ünïcödé 猫 🐈 don't it's I'LL",
        "many_characters_of_one_word": "日本語の文章" * 20,
        "break": "a cat BREAK a dog",
        "more_than_one_chunk": "word " * 90,
        "weights_across_chunks": "(one:1.1) (two:1.2) (three:0.9), four " * 14,
        "white_space": "a\nb\tc  d   ",
        "entities": "a &amp; b &lt; <b>",
        "backslashes": "a\\\\b \\( (c\\):1.4)",
        "backslash_at_the_end": "a cat\\",
        "unknown_embedding": "a embedding:nothere cat",
        "capitals": "A PHOTO Of A CAT",
    }
    weighted = "(a cat:1.3) in a hat"
    return {name: conditioned(text(prompt)) for name, prompt in prompts.items()} | {
        f"layer_{layer}": conditioned(
            text(weighted, of("stopped")),
            stopped=node("CLIPSetLastLayer", clip=CLIP, stop_at_clip_layer=layer),
        )
        for layer in (-1, -2, -6, -12, -24)
    }


def _both(first: str, second: str) -> Node:
    return node("ConditioningCombine", conditioning_1=of(first), conditioning_2=of(second))


def conditionings() -> Graphs:
    def average(to: str, other: str, share: float) -> Node:
        return node(
            "ConditioningAverage",
            conditioning_to=of(to),
            conditioning_from=of(other),
            conditioning_to_strength=share,
        )

    pairs = {"short_to_long": ("cat", "forest"), "long_to_short": ("forest", "cat")}
    concat = node("ConditioningConcat", conditioning_to=of("cat"), conditioning_from=of("forest"))
    return {
        "combined": conditioned(_both("cat", "forest")),
        "three_combined": conditioned(_both("two", "sky"), two=_both("cat", "forest")),
        "negatives_combined": conditioned(negative=_both("sky", "forest")),
        "concatenated": conditioned(concat),
        "zeroed_out": conditioned(negative=node("ConditioningZeroOut", conditioning=of("forest"))),
    } | {
        f"average_{name}_{share}": conditioned(average(*pair, share))
        for (name, pair), share in product(pairs.items(), (0.0, 0.3, 1.0))
    }


def _area(width: int, height: int, x: int, y: int, strength: float = 1.0) -> Node:
    place = {"width": width, "height": height, "x": x, "y": y, "strength": strength}
    return node("ConditioningSetArea", conditioning=of("forest"), **place)


def placed() -> Graphs:
    """Conditionings for a part of the picture or of the steps, alone or beside a full one."""
    parts = _parts()
    strength = node("ConditioningSetAreaStrength", conditioning=of("forest"), strength=0.4)
    alone = ("area_in_the_middle", "area_beyond_the_edge", "mask", "mask_bounds", "middle")
    two = _both("left", "right")
    return (
        {
            f"{name}_beside": conditioned(_both("cat", "part"), part=part)
            for name, part in parts.items()
        }
        | {name: conditioned(parts[name]) for name in alone}
        | {
            "strength": conditioned(_both("cat", "part"), part=strength),
            "two_areas": conditioned(two, left=parts["area_left"], right=_area(64, 64, 32, 0)),
            "negative_area": conditioned(negative=parts["area_in_the_middle"]),
        }
    )


def _parts() -> Graph:
    def percentage(width: float, height: float, x: float, y: float) -> Node:
        place = {"width": width, "height": height, "x": x, "y": y, "strength": 0.8}
        return node("ConditioningSetAreaPercentage", conditioning=of("forest"), **place)

    def masked(how: str, strength: float) -> Node:
        return node(
            "ConditioningSetMask",
            conditioning=of("forest"),
            mask=of("mask"),
            strength=strength,
            set_cond_area=how,
        )

    def between(start: float, end: float) -> Node:
        of_steps = {"start": start, "end": end}
        return node("ConditioningSetTimestepRange", conditioning=of("forest"), **of_steps)

    return {
        "area_left": _area(64, 64, 0, 0),
        "area_in_the_middle": _area(64, 64, 16, 0, 0.6),
        "area_beyond_the_edge": _area(64, 64, 64, 32),
        "area_larger_than_the_picture": _area(200, 200, 8, 8),
        "area_of_a_quarter": percentage(0.5, 0.5, 0.25, 0.25),
        "area_of_uneven_percentages": percentage(0.33, 0.77, 0.1, 0.2),
        "mask": masked("default", 1.0),
        "mask_of_half_strength": masked("default", 0.5),
        "mask_bounds": masked("mask bounds", 1.0),
        "first_half": between(0.0, 0.5),
        "middle": between(0.25, 0.75),
        "start_alone": between(0.0, 0.0),
    }


def loras() -> Graphs:
    def with_lora(model: float, clip: float, before: str = "checkpoint") -> Node:
        strengths = {"strength_model": model, "strength_clip": clip}
        parts = {"model": of(before), "clip": of(before, 1)}
        return node("LoraLoader", lora_name=LORA, **parts, **strengths)

    def by(lora: Node, clip: Link | None = None, **nodes: Node) -> Graph:
        cat = text("a cat", clip or of("lora", 1))
        step = sampler(model=of("lora"), start="encoded", steps=3)
        return latent("sampled", sampled=step, cat=cat, lora=lora, **nodes)

    only = node("LoraLoaderModelOnly", model=MODEL, lora_name=LORA, strength_model=0.8)
    strengths = ((1.0, 1.0), (0.8, 0.5), (-0.5, 2.0), (0.0, 1.0), (1.0, 0.0))
    return {f"{model}_{clip}": by(with_lora(model, clip)) for model, clip in strengths} | {
        "model_only": by(only, CLIP),
        "twice": by(with_lora(0.4, 0.7, "first"), first=with_lora(0.5, 0.3)),
    }


def embeddings() -> Graphs:
    prompts = {
        "alone": "embedding:three.safetensors",
        "in_a_sentence": "a embedding:three cat",
        "before_a_comma": "embedding:three, cat",
        "weighted": "(embedding:three cat:1.4) dog",
        "in_a_folder": "embedding:folder/one cat",
        "twice": "embedding:three embedding:folder/one",
        "at_the_end_of_a_chunk": "cat " * 73 + "embedding:three dog",
        "within_a_word": "aembedding:three cat",
        "for_another_model": "embedding:large cat",
    }
    return {name: conditioned(text(prompt)) for name, prompt in prompts.items()}


def _apply(strength: float) -> Node:
    control = {"control_net": of("control"), "image": of("hint"), "strength": strength}
    return node("ControlNetApply", conditioning=of("cat"), **control)


def _apply_advanced(hint: str = "hint", before: str = "", **settings: Any) -> Node:
    sides = {"positive": of(before or "cat"), "negative": of(before or "blurry")}
    if before:
        sides["negative"] = of(before, 1)
    usual = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0}
    control = {"control_net": of("control"), "image": of(hint), **(usual | settings)}
    return node("ControlNetApplyAdvanced", **sides, **control)


def control_nets() -> Graphs:
    def by(
        positive: Node, negative: Link | None = None, start: str = "empty", **nodes: Node
    ) -> Graph:
        loader = node("ControlNetLoader", control_net_name=CONTROL_NET)
        nodes = {"hint": USUAL["picture"], "control": loader, "controlled": positive} | nodes
        step = sampler(positive=of("controlled"), negative=negative, start=start, steps=3)
        return latent("sampled", sampled=step, **nodes)

    def on_both(controlled: Node, start: str = "empty", **nodes: Node) -> Graph:
        return by(controlled, of("controlled", 1), start, **nodes)

    second = _apply_advanced(hint="mask_picture", before="first", strength=0.5)
    area = {"width": 64, "height": 64, "x": 0, "y": 16, "strength": 1.0}
    placed = node("ConditioningSetArea", conditioning=of("first"), **area)
    return {
        "simple": by(_apply(1.0)),
        "simple_weak": by(_apply(0.4)),
        "simple_without_strength": by(_apply(0.0)),
        "advanced": on_both(_apply_advanced()),
        "advanced_in_part": on_both(
            _apply_advanced(strength=0.7, start_percent=0.2, end_percent=0.7)
        ),
        "advanced_never": on_both(_apply_advanced(start_percent=0.6, end_percent=0.3)),
        "hint_of_another_size": on_both(_apply_advanced(), hint=enlarged("picture", 80, 200)),
        "hint_with_alpha": on_both(_apply_advanced(), hint=USUAL["with_alpha"]),
        "batch": on_both(_apply_advanced(), start="pair"),
        "two": on_both(
            second, first=_apply_advanced(), mask_picture=node("LoadImage", image="mask64.png")
        ),
        "combined": by(_both("first", "sky"), first=_apply(1.0)),
        "in_an_area": by(_both("part", "sky"), part=placed, first=_apply(1.0)),
    }

r"""Trains the checkpoint in stages. A stage that was stopped continues from its last save.

    GOMP_SPINCOUNT=3000 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 \
        MALLOC_TOP_PAD_=1000000000 python -m training.flow

States and journals are written to `data/train-flow`, and the checkpoint to `models/checkpoints`.
`training.shapes` explains the settings of the allocator (MALLOC). The card of the checkpoint has
the training time. `python -m benchmarks.shapes_score --checkpoint` scores the result.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from training.flow.export import CHECKPOINT, export
from training.flow.text_encoder import train_text_encoder
from training.flow.transformer import train_transformer
from training.flow.vae import train_vae

STAGES = ("vae", "text", "transformer")
"""The last stage needs the results of the first two, and writes the checkpoint."""


def main() -> None:
    args = _arguments()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    folder, seed = args.folder, args.seed
    folder.mkdir(parents=True, exist_ok=True)
    if args.until != "text":
        autoencoder = train_vae(
            folder, steps=args.vae_steps, seed=seed, cpu_budget_s=args.vae_cpu_s
        )
    if args.until == "vae":
        return
    encoder = train_text_encoder(
        folder, steps=args.text_steps, seed=seed, cpu_budget_s=args.text_cpu_s
    )
    if args.until == "text":
        return
    denoiser = train_transformer(
        folder,
        autoencoder,
        encoder,
        steps=args.transformer_steps,
        scenes=args.scenes,
        seed=seed,
        cpu_budget_s=args.transformer_cpu_s,
    )
    export(autoencoder, denoiser, args.out)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m training.flow", description="Train the checkpoint darkroom-z-shapes."
    )
    parser.add_argument("--until", choices=STAGES, default=STAGES[-1], help="stop after this stage")
    parser.add_argument("--folder", type=Path, default=Path("data/train-flow"))
    parser.add_argument("--out", type=Path, default=CHECKPOINT)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of torch; else as many as there are cores")
    parser.add_argument("--vae-steps", type=int, default=700)
    parser.add_argument("--text-steps", type=int, default=700)
    parser.add_argument("--transformer-steps", type=int, default=10_000)
    parser.add_argument("--vae-cpu-s", type=float, default=900, help="CPU time of it at most")
    parser.add_argument("--text-cpu-s", type=float, default=400)
    parser.add_argument("--transformer-cpu-s", type=float, default=3900)
    parser.add_argument("--scenes", type=int, default=24_000, help="pictures it learns from")
    return parser.parse_args()


if __name__ == "__main__":
    main()

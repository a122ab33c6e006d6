r"""Trains the checkpoint in stages. A stage that was stopped continues from its last save.

    GOMP_SPINCOUNT=3000 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 \
        MALLOC_TOP_PAD_=1000000000 python -m training.shapes

States and journals are written to `data/train`, and the checkpoint to `models/checkpoints`. The
three settings of the allocator (MALLOC) make training much faster. GOMP_SPINCOUNT makes training
faster if other programs run on the same cores. `python -m benchmarks.shapes_score` scores the
result.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from training.shapes.export import CHECKPOINT, export
from training.shapes.text_encoder import train_text_encoder
from training.shapes.unet import train_unet
from training.shapes.vae import train_vae

STAGES = ("vae", "text", "unet")
"""Each stage needs the results of all earlier stages. The last stage writes the checkpoint."""


def main() -> None:
    args = _arguments()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    folder, seed = args.folder, args.seed
    autoencoder = train_vae(folder, steps=args.vae_steps, seed=seed)
    if args.until == "vae":
        return
    encoder = train_text_encoder(folder, steps=args.text_steps, seed=seed)
    if args.until == "text":
        return
    denoiser = train_unet(
        folder, autoencoder, encoder, steps=args.unet_steps, scenes=args.scenes, seed=seed
    )
    export(autoencoder, denoiser, args.out)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m training.shapes", description="Train the checkpoint darkroom-shapes."
    )
    parser.add_argument("--until", choices=STAGES, default=STAGES[-1], help="stop after this stage")
    parser.add_argument("--folder", type=Path, default=Path("data/train"), help="where states go")
    parser.add_argument("--out", type=Path, default=CHECKPOINT)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of torch; else as many as there are cores")
    # All these steps take about 80 minutes on two free cores.
    parser.add_argument("--vae-steps", type=int, default=2760)
    parser.add_argument("--text-steps", type=int, default=2500)
    parser.add_argument("--unet-steps", type=int, default=10_500)
    parser.add_argument("--scenes", type=int, default=24_000, help="pictures the UNet learns from")
    return parser.parse_args()


if __name__ == "__main__":
    main()

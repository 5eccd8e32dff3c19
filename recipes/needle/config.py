"""Every setting of the recipe: the architecture, the stages of training, and the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A small Llama; the defaults are 2.1 M parameters, the embeddings tied."""

    vocab: int = 4096
    hidden: int = 128
    mlp: int = 384
    layers: int = 8
    q_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    rope_theta: float = 500_000.0
    max_positions: int = 16_384


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step of the curriculum.

    `rows` gives, for each row length in tokens, its share of the steps. Every step takes rows of one length. `text` is
    the share of rows that are plain documents, `copying` of random tokens repeated, the rest are conversations about a
    long context. The learning rate goes linearly from `lr` to `lr_end`.
    """

    name: str
    tokens: int  # of all processes together
    rows: tuple[tuple[int, float], ...]
    text: float = 0.2
    copying: float = 0.0
    keys: float = 0.0  # share of the conversations that are about key-value pairs, besides those of the usual mixture
    text_weight: float = 0.1  # loss weight of ordinary text; answers weigh 2.5, questions 0.05
    stretch: float = 0.0  # share of rows whose rope positions get random gaps, up to `max_positions`
    lr: float = 4e-3
    lr_end: float = 4e-3
    until_loss: float = 0.0  # end the stage early below this loss


STAGES = (
    Stage(name="copy", tokens=8_000_000, rows=((64, 1.0),), copying=1.0, text=0.0, until_loss=0.15),
    Stage(name="256", tokens=4_500_000, rows=((256, 1.0),), text=0.15, copying=0.1, stretch=0.3),
    Stage(name="512", tokens=2_000_000, rows=((512, 0.8), (256, 0.2)), copying=0.05, stretch=0.5, lr_end=2e-3),
    Stage(
        name="1024", tokens=900_000, rows=((1024, 0.8), (256, 0.2)), copying=0.05, stretch=0.5,
        lr=2.5e-3, lr_end=2e-3,
    ),
    Stage(
        name="2048", tokens=600_000, rows=((2048, 0.65), (512, 0.35)), text_weight=0.15, stretch=0.4,
        lr=2.4e-3, lr_end=1.8e-3,
    ),
    Stage(
        name="4096", tokens=3_200_000, rows=((4096, 0.6), (1024, 0.4)), text=0.2, text_weight=0.15, stretch=0.15,
        lr=2e-3, lr_end=1.2e-3,
    ),
    Stage(
        name="8192", tokens=2_300_000, rows=((8192, 0.7), (4096, 0.2), (1024, 0.1)), text=0.08, text_weight=0.15,
        lr=1.5e-3, lr_end=5e-5,
    ),
    Stage(
        name="polish", tokens=1_200_000, rows=((8192, 0.75), (4096, 0.25)), text=0.05, text_weight=0.1,
        lr=7e-4, lr_end=3e-5,
    ),
    Stage(
        name="far", tokens=7_500_000, rows=((8192, 0.75), (4096, 0.2), (1024, 0.05)), text=0.06, text_weight=0.15,
        stretch=0.25, lr=1.6e-3, lr_end=2e-5,
    ),
    Stage(
        name="keys", tokens=2_400_000, rows=((8192, 0.85), (4096, 0.15)), text=0.06, text_weight=0.15, keys=0.45,
        stretch=0.2, lr=6e-4, lr_end=1e-5,
    ),
)  # fmt: skip

TINY_STAGES = (
    Stage(name="copy", tokens=2_048, rows=((64, 1.0),), copying=1.0, text=0.0),
    Stage(name="256", tokens=2_048, rows=((256, 1.0),), text=0.3, stretch=0.5),
)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where and how one training run goes."""

    corpus: Path  # directory of *.txt.xz, documents separated by a line <|endoftext|>, and val/ of the same shape
    out: Path  # cache, checkpoints and log
    model: ModelConfig = ModelConfig()
    stages: tuple[Stage, ...] = STAGES
    step_tokens: int = 2048  # tokens per step and process, more where one row is longer
    text_mb: int = 40  # megabytes of the corpus to use
    processes: int = 2
    threads: int = 1  # per process
    device: str = "cpu"
    seed: int = 0
    compiled: bool = True
    checkpoint_s: float = 120.0
    log_s: float = 20.0
    validate_s: float = 180.0

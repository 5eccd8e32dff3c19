"""Every block of figures by its name, from one file per page."""

from __future__ import annotations

from . import (
    demo,
    diagnose,
    engine,
    fidelity,
    fit,
    frontier,
    gguf,
    lazyllm,
    locret,
    methods,
    needle,
    peers,
    prefill,
    presses,
    quality,
    serving,
    slowfast,
    smollm2,
    speed,
    stores,
    times,
)  # fmt: skip
from .claims import lazyllm as lazyllm_claims
from .claims import locret as locret_claims
from .claims import pretrained
from .claims import slowfast as slowfast_claims
from .claims import speed as speed_claims
from .tables import Block

PAGES = (
    demo, diagnose, engine, fidelity, fit, frontier, gguf, lazyllm, locret, methods, needle, peers, prefill, presses,
    quality, serving, slowfast, smollm2, speed, stores, times, lazyllm_claims, locret_claims, slowfast_claims,
    speed_claims, pretrained,
)  # fmt: skip
BLOCKS: dict[str, Block] = {name: block for page in PAGES for name, block in page.BLOCKS.items()}

"""Write what SmolLM2's parts learn from, and what that is watched with; the command is in README.md."""

from __future__ import annotations

import argparse
from pathlib import Path

from recipes.smollm2.conversations import BOTH, CONTINUED, TAUGHT, TRAINED, write_conversations

from winnow import LLM

SEED = 0


def main() -> None:
    """Parse the flags, and write those files of conversations that are not there."""
    parser = argparse.ArgumentParser(prog="python -m recipes.smollm2", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="of books, textbooks and docs, .txt.xz; and in val/")
    parser.add_argument("--out", type=Path, required=True, help="a directory for what is written")
    parser.add_argument("--model", default="smollm2", help="whose tokens are counted; default %(default)s")
    parser.add_argument("--count", type=int, default=1200, help="conversations to train on; default %(default)s")
    parser.add_argument("--taught", type=int, default=480, help="conversations for a teacher; default %(default)s")
    parser.add_argument("--continued", type=int, default=120, help="texts that go on, likewise; default %(default)s")
    parser.add_argument("--both", type=int, default=240, help="conversations for two teachers; default %(default)s")
    parser.add_argument("--held-out", type=int, default=48, help="conversations to watch with; default %(default)s")
    flags = parser.parse_args()
    tokenizer = LLM(flags.model).tokenizer
    assert tokenizer is not None
    for name, corpus, count, mix in (
        ("train", flags.corpus, flags.count, TRAINED),
        ("taught", flags.corpus, flags.taught, TAUGHT),
        ("continued", flags.corpus, flags.continued, CONTINUED),
        ("both", flags.corpus, flags.both, BOTH),
        ("held-out", flags.corpus / "val", flags.held_out, TRAINED),
        ("held-out-continued", flags.corpus / "val", flags.held_out, CONTINUED),
        ("held-out-both", flags.corpus / "val", flags.held_out, BOTH),
    ):
        write_conversations(corpus, flags.out / f"{name}.jsonl", tokenizer, count=count, mix=mix, seed=SEED)


if __name__ == "__main__":
    main()

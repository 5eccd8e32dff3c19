"""Text for the recipe: the tokenizer trained on it, a tokenised slice, sentences to hide needles in."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from winnow.tasks import kv, line_retrieval, multi_needle, number, passkey, variables, words

SEPARATOR = "<|endoftext|>"
SPECIAL = (SEPARATOR, "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
SHARES = {"books": 0.55, "textbooks": 0.3, "docs": 0.15}  # of the text taken, by file
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def read_documents(path: Path, characters: int | None = None) -> list[str]:
    """The first documents of an xz file, up to about `characters` in all; the files are shuffled by document."""
    documents: list[str] = []
    lines: list[str] = []
    total = 0
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.rstrip("\n") != SEPARATOR:
                lines.append(line)
                continue
            documents.append("".join(lines))
            total, lines = total + len(documents[-1]), []
            if characters is not None and total >= characters:
                break
    return documents


def task_text(rng: random.Random, count: int) -> str:
    """A sample of what the tasks write, so that their words become tokens."""
    parts: list[str] = []
    for _ in range(count):
        city, names = rng.choice(words.CITIES), rng.sample(words.NAMES, 4)
        pairs = kv.draw_pairs(rng, 8)
        parts += [passkey.sentence("1"), passkey.QUESTION, number.sentence(city, "1"), number.question(city)]
        parts += [multi_needle.question(names), *(multi_needle.sentence(name, "1") for name in names)]
        parts += [kv.json_object(pairs), kv.question(pairs[0][0]), line_retrieval.line(pairs[1][0], "1")]
        parts += [variables.question("1"), *variables.chain(["A", "B"], "1"), line_retrieval.question(pairs[2][0])]
    return "\n".join(parts)


def train_tokenizer(texts: list[str], vocab: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE: every text round-trips, digits are split one by one."""
    bpe = Tokenizer(models.BPE())
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=SEPARATOR, eos_token="<|end|>", pad_token=SEPARATOR,
        additional_special_tokens=list(SPECIAL[2:]), model_max_length=16_384, clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def prepare(corpus: Path, out: Path, *, vocab: int, text_mb: int) -> None:
    """Write tokenizer/, text.json, train.npy and val.npy under `out` unless they are there.

    train.npy and val.npy: one dimension, uint16 token ids, documents separated by <|endoftext|>.
    """
    if (out / "prepared.json").exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    documents = {
        name: read_documents(corpus / f"{name}.txt.xz", int(share * text_mb * 1e6)) for name, share in SHARES.items()
    }
    rng = random.Random(0)
    sample = [text[: 2_000_000 // (1 + len(texts) // 8)] for texts in documents.values() for text in texts[:400]]
    tokenizer = train_tokenizer([*sample, task_text(rng, 400)], vocab)
    tokenizer.save_pretrained(out / "tokenizer")
    everything = [text for texts in documents.values() for text in texts]
    rng.shuffle(everything)
    np.save(out / "train.npy", tokenise(everything, tokenizer))
    val = [text for path in sorted((corpus / "val").glob("*.txt.xz")) for text in read_documents(path)]
    np.save(out / "val.npy", tokenise(val, tokenizer))
    (out / "text.json").write_text(json.dumps([text[:400_000] for text in everything]), encoding="utf-8")
    sizes = {"train_characters": sum(map(len, everything)), "val_bytes": sum(len(text.encode()) for text in val)}
    (out / "prepared.json").write_text(json.dumps(sizes))


def tokenise(texts: list[str], tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Token ids of all texts, each followed by the separator; [tokens] uint16."""
    ids: list[np.ndarray] = []
    for text in texts:
        ids.append(np.array([*tokenizer.backend_tokenizer.encode(text).ids, tokenizer.bos_token_id], dtype=np.uint16))
    return np.concatenate(ids)

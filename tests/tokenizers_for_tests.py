"""A byte-level tokenizer made in memory: token id = byte + 3, so multi-byte characters span several tokens."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]


def byte_tokenizer(template: str | None = TEMPLATE, merges: Sequence[tuple[str, str]] = ()) -> PreTrainedTokenizerFast:
    """259 tokens: <pad>, <bos>, <eos> and every byte; and what merges make of two of them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=_byte_of)
    vocab = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {letter: 3 + i for i, letter in enumerate(alphabet)}
    vocab |= {first + second: len(vocab) + i for i, (first, second) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", add_prefix_space=False
    )
    fast.chat_template = template
    return fast


def _byte_of(letter: str) -> int:
    """The byte that a letter of the byte-level alphabet stands for: printable ones for themselves, others from 256."""
    return ord(letter) if ord(letter) < 256 else OTHERS[ord(letter) - 256]


def spacing_tokenizer() -> PreTrainedTokenizerFast:
    """Of words with and without a space before them, the first of which its decoder drops, as SentencePiece's do."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁the": 3, "the": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def fallback_tokenizer() -> PreTrainedTokenizerFast:
    """Of two words, and of bytes for all others, as SentencePiece spells them: <s>, byte + 1, and the words."""
    vocab = {"<s>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "▁a": 257, "▁sea": 258}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)

"""How a byte-level vocabulary wants text split before its merges, by the name that a GGUF file gives.

llama.cpp applies a list of expressions one after another, each to the pieces that the one before left; the lists are
those of its llama-vocab.cpp, in the spelling of the models' own tokenizer.json. transformers' table has a part of them,
and takes GPT-2's for the rest. Where llama.cpp only comes near to a model's own expression (tekken, gpt-4o: combining
marks are no letters there), the model's own is taken.
"""

from tokenizers import Regex, pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3, _QWEN2 = GGUF_PRE_TOKENIZER_SPLITS["llama-bpe"], GGUF_PRE_TOKENIZER_SPLITS["qwen2"]
_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_WORDS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_SPACES = r"|\s+(?!\S)|\s+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

_BY_LIST: dict[tuple[str, ...], tuple[str, ...]] = {
    (r"\p{N}", _GPT2): ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
    (_GPT2,): (
        *("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "a.x-4.0"),
        *("mellum", "modern-bert", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de"),
    ),
    (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"): ("default",),
    (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"): ("falcon",),
    (_LLAMA3,): ("chatglm-bpe", "glm4", "glm5"),
    (_QWEN2,): ("stablelm2", "hunyuan", "solar-open", "grok-2"),
    (_QWEN2.removeprefix(_ENGLISH),): ("ufakzeka",),
    (r"[^\n]+|[\n]+", _QWEN2): ("laguna",),
    (r"\p{N}{1,3}", _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")): ("minicpm5",),
    (_QWEN2.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+"),): ("seed-coder",),
    (_QWEN2.replace(r"|\s*[\r\n]+", r"|\s*[\r\n]"),): ("bailingmoe", "bailingmoe2", "llada-moe"),
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"): ("deepseek-coder",),
    (r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _WORDS + r"[\r\n]*|\s*[\r\n]+" + _SPACES): (
        *("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
    ),
    (r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _WORDS + r"|[\r\n]" + _SPACES, r"\p{N}"): ("spark2_5",),
    (_BLOOM,): ("poro-chat", "bloom", "gpt3-finnish"),
    (_BLOOM, r"\p{N}"): ("viking",),
}
SPLITS: dict[str, tuple[str, ...]] = {name: (split,) for name, split in GGUF_PRE_TOKENIZER_SPLITS.items()}
SPLITS |= {name: splits for splits, names in _BY_LIST.items() for name in names}

_LIKE_LLAMA3 = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken")
)
WHOLE_TOKENS = _LIKE_LLAMA3 | {"glm4", "glm5", "minicpm5"}  # a piece that is a token already is not built from merges
BEGINS_TEXTS = _LIKE_LLAMA3  # a text begins with the token that begins texts, unless the file says otherwise


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """The splits of a known name, and then bytes as printable characters."""
    splits = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in SPLITS[name]]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

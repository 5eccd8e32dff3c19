"""Chinese text for scoring: words as jieba cuts them, without punctuation."""

import string
from importlib import import_module

# The marks that the published scorers of LongBench and InfiniteBench remove, besides those of ASCII.
MARKS = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛"
    "〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
_REMOVED = str.maketrans("", "", string.punctuation + MARKS)


def normalise_zh(text: str) -> str:
    """Lower case, without punctuation and white space."""
    return "".join(text.lower().translate(_REMOVED).split())


def words(text: str) -> list[str]:
    """The words of `text` by jieba, which must be installed."""
    return list(import_module("jieba").cut(text, cut_all=False))


def segmented(text: str) -> str:
    """The words of `text` with blanks between them."""
    return " ".join(words(text))


def zh_words(text: str) -> list[str]:
    """The words of `text`, normalised, without those that are punctuation only."""
    return [word for each in words(text) if (word := normalise_zh(each))]

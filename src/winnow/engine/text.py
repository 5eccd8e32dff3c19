"""From tokens to text, piece by piece: never half a character, never a part of a stop string."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from winnow.policies.prompt.spelling import LONGEST, UNDECODED, special_tokens


class TextStream:
    """Incremental text of one completion.

    `push` returns the text that has become certain; `finish` the rest. `stopped` is set once a stop string came up;
    `stops` is False as long as none may. before: the tokens that it goes on from, which are no part of the text: some
    decoders drop the space of what comes first.
    Not tokenizers' DecodeStream, which raises where a later byte changes what the bytes before it stand for: with
    tokenizers that fall back to bytes, one byte that belongs to no character does so.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: tuple[str, ...], before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._held = max((len(s) for s in stop), default=1) - 1  # characters that may be the start of a stop string
        self._special = special_tokens(tokenizer)
        self._ids = [*before[-LONGEST:]]
        if self._decode(self._ids).endswith(UNDECODED):  # the text begins inside a character
            self._ids.clear()
        self._context = 0  # ids from here are decoded: a token's text may depend on the one before it
        self._done = len(self._ids)  # ids whose text has been taken
        self._sent = 0  # characters of `text` handed out
        self.text = ""
        self.stopped = False
        self.stops = True

    def push(self, token: int) -> str:
        """Add a token; returns the text that no later token can change."""
        if token in self._special:  # no text, nor a part of a character
            return self._release(self._held)
        self._ids.append(token)
        self._take(final=False)
        return self._release(self._held)

    def finish(self) -> str:
        """No more tokens: returns all text not handed out yet."""
        if not self.stopped:
            self._take(final=True)
        return self._release(0)

    def _take(self, final: bool) -> None:
        known = self._decode(self._ids[self._context : self._done])
        now = self._decode(self._ids[self._context :])
        unfinished = now.endswith(UNDECODED) and len(self._ids) - self._done < LONGEST
        if not final and (unfinished or len(now) <= len(known)):
            return
        before = len(self.text)
        self.text += now[len(known) :]
        self._context, self._done = self._done, len(self._ids)
        ends = [at for s in self._stop if (at := self.text.find(s, max(0, before - len(s) + 1))) >= 0]
        if ends and self.stops:
            self.text, self.stopped = self.text[: min(ends)], True

    def _release(self, held: int) -> str:
        end = len(self.text) if self.stopped else max(self._sent, len(self.text) - held)
        piece, self._sent = self.text[self._sent : end], end
        return piece

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

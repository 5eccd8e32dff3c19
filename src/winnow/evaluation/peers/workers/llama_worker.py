"""llama.cpp through llama-cpp-python; run as a script, by a Python that has it."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from wire import Missing, Refused, serve  # type: ignore[import-not-found]

BATCH, UBATCH = 2048, 512  # tokens of a prompt given at a time, and of these computed at a time: its defaults
CELLS = 256  # the size of a context is a multiple of this


class LlamaCpp:
    """One context with one sequence; its units are held in `cache`, a type of ggml's, whatever the weights are in."""

    def check(self, threads: int, device: str, flash: bool, cache: str = "f16") -> dict[str, str]:
        try:
            import llama_cpp
        except ImportError as error:
            raise Missing(
                f"{error}; pip install llama-cpp-python, or give a Python that has it: --peer-python llama.cpp=PATH"
            ) from error
        if device != "cpu":
            raise Refused(f"it is compared on the CPU only, not on {device}; use --device cpu")
        self.lib, self.threads, self.flash, self.cache = llama_cpp, threads, flash, cache
        self._quiet = llama_cpp.llama_log_callback(self._log)
        self.said: list[str] = []
        llama_cpp.llama_log_set(self._quiet, None)
        return {
            "llama-cpp-python": llama_cpp.__version__,
            "system": llama_cpp.llama_print_system_info().decode().strip(),
            "batch": f"{BATCH}, computed {UBATCH} at a time",
            "repacking": str(llama_cpp.llama_model_default_params().use_extra_bufts),
            "flash attention": str(flash),
            "cache": cache,
        }

    def convert(self, source: str, target: str, kind: str) -> None:
        how = self.lib.llama_model_quantize_default_params()
        how.nthread, how.allow_requantize = self.threads, True
        how.ftype = getattr(self.lib, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
        if self.lib.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(how)):
            raise Refused(f"llama.cpp cannot make {kind} of {Path(source).name}: {self._last_words()}")

    def load(self, model: str, dtype: str, context: int) -> None:
        lib = self.lib
        how = lib.llama_model_default_params()
        how.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(model.encode(), how)
        if not self.model:
            raise Refused(f"llama.cpp cannot load {Path(model).name}: {self._last_words()}")
        params = lib.llama_context_default_params()
        params.n_ctx = -(-context // CELLS) * CELLS
        params.n_batch, params.n_ubatch = BATCH, UBATCH
        params.offload_kqv = False
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if self.flash else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.type_k = params.type_v = getattr(lib, f"GGML_TYPE_{self.cache.upper()}")
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise Refused(f"llama.cpp cannot make a context of {params.n_ctx} tokens: {self._last_words()}")
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))

    def start(self, ids: list[int], max_tokens: int) -> np.ndarray:
        self._forget()
        for begin in range(0, len(ids), BATCH):
            self._decode(ids[begin : begin + BATCH])
        return self._logits()

    def step(self, token: int) -> np.ndarray:
        self._decode([token])
        return self._logits()

    def held(self) -> tuple[int, int | None]:
        return self.lib.llama_state_seq_get_size(self.context, 0), None

    def _forget(self) -> None:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), False)

    def _decode(self, ids: list[int], *, every: bool = False) -> None:
        """every: whether there are to be logits at each place, and not at the last alone."""
        tokens = (self.lib.llama_token * len(ids))(*ids)  # held here: the batch only points to it
        batch = self.lib.llama_batch_get_one(tokens, len(ids))
        if every:
            batch.logits = (ctypes.c_int8 * len(ids))(*[1] * len(ids))
        if code := self.lib.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode returned {code}: {self._last_words()}")

    def _logits(self) -> np.ndarray:
        found = self.lib.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(found, (self.vocab,)).copy()

    def _log(self, level: int, text: bytes, data: Any) -> None:
        if level in (3, 4):  # warnings and errors
            self.said.append(text.decode("utf-8", "replace").strip())

    def _last_words(self) -> str:
        return "; ".join(self.said[-2:]) or "it does not say why"


if __name__ == "__main__":
    serve(LlamaCpp())

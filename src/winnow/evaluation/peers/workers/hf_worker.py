"""Stock transformers with one of its caches; run as a script."""

import contextlib
from importlib.util import find_spec
from typing import Any

import numpy as np
from wire import Missing, Refused, serve  # type: ignore[import-not-found]

BACKENDS = {"quanto": "optimum.quanto", "hqq": "hqq"}


class Transformers:
    """Greedy decoding as `generate` does it: the prompt in one forward, then a token at a time."""

    def check(self, threads: int, device: str, cache: str, parameters: dict[str, Any]) -> dict[str, str]:
        torch, transformers = _imported()
        self.torch, self.device, self.cache, self.parameters = torch, device, cache, parameters
        torch.set_num_threads(threads)
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise Refused("its torch sees no GPU; use --device cpu, or give it a Python whose torch does")
        about = {"torch": torch.__version__, "transformers": transformers.__version__}
        if cache == "offloaded" and not device.startswith("cuda"):
            raise Refused("the offloaded cache moves units between a GPU and the CPU; it needs --device cuda")
        if cache == "quantized":
            self.backend = self.parameters.pop("backend", None) or _installed()
            about["cache backend"] = self.backend
        return about

    def load(self, model: str, dtype: str, context: int) -> None:
        from transformers import AutoModelForCausalLM

        kind = getattr(self.torch, dtype)
        try:
            self.model = AutoModelForCausalLM.from_pretrained(
                model, dtype=kind, attn_implementation="sdpa", use_safetensors=True, trust_remote_code=False
            )
            self.model.to(self.torch.device(self.device)).eval()
            self.kv = self.new_cache()
        except (ValueError, KeyError, TypeError, ImportError, OSError) as error:
            raise Refused(f"its transformers cannot take this model or these parameters: {error}") from error

    def new_cache(self) -> Any:
        from transformers import DynamicCache, QuantizedCache

        config = self.model.config
        if self.cache == "quantized":
            return QuantizedCache(self.backend, config, **self.parameters)
        return DynamicCache(config=config, offloading=self.cache == "offloaded")

    def prefilling(self) -> contextlib.AbstractContextManager[Any]:
        """What is to hold while the prompt is computed."""
        return contextlib.nullcontext()

    def start(self, ids: list[int], max_tokens: int) -> np.ndarray:
        self.kv, self.position = None, 0  # the last sequence's units go before new ones come
        self.kv = self.new_cache()
        with self.torch.inference_mode(), self.prefilling():  # a press may run the model again at its end
            return self._forward(ids)

    def step(self, token: int) -> np.ndarray:
        return self._forward([token])

    def held(self) -> tuple[int, int | None]:
        """Of the tensors that the cache's layers hold; quantised ones by the tensors within."""
        size, kept = 0, 0
        for layer in self.kv.layers:
            for part in (
                layer.keys,
                layer.values,
                *(getattr(layer, f"_quantized_{n}", None) for n in ("keys", "values")),
            ):
                size += sum(each.nbytes for each in _plain(part))
            heads = layer.keys.shape[1] if layer.keys.dim() == 4 else self.model.config.num_key_value_heads
            kept += heads * (layer.keys.shape[2] if self.cache != "quantized" else layer.get_seq_length())
        return size, kept

    def _forward(self, ids: list[int]) -> np.ndarray:
        with self.torch.inference_mode():
            tokens = self.torch.tensor([ids], device=self.device)
            # Said aloud: a cache from which units were dropped no longer tells the position.
            positions = self.torch.arange(self.position, self.position + len(ids), device=self.device)[None]
            self.position += len(ids)
            logits = self.model(
                input_ids=tokens, position_ids=positions, past_key_values=self.kv, use_cache=True, logits_to_keep=1
            ).logits
            return logits[0, -1].float().cpu().numpy()


def _plain(tensor: Any) -> list[Any]:
    """The tensors with memory of their own: a quantised one is made of several."""
    if tensor is None:
        return []
    if isinstance(tensor, tuple):  # hqq: the packed values, and a dictionary of scales
        return [each for part in tensor for each in (_plain(part))]
    if isinstance(tensor, dict):
        return [each for each in tensor.values() if hasattr(each, "nbytes")]
    if hasattr(tensor, "__tensor_flatten__"):
        return [each for name in tensor.__tensor_flatten__()[0] for each in _plain(getattr(tensor, name))]
    return [tensor]


def _installed() -> str:
    for name, module in BACKENDS.items():
        if find_spec(module.partition(".")[0]) and find_spec(module):
            return name
    raise Missing("a quantised cache needs optimum-quanto or hqq; pip install optimum-quanto where this Python is")


def _imported() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise Missing(f"{error}; its Python needs torch and transformers") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers


if __name__ == "__main__":
    serve(Transformers())

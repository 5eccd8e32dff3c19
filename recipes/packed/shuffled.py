"""A float checkpoint that computes what a Llama GGUF file does, with its columns in another order:
`python -m recipes.packed.shuffled MODEL.gguf DIR`.

Weights that were quantised once are rounded to the same values again, so they say nothing of what rounding costs. Here
the dimensions of the residual stream and of every MLP are permuted at random, alike wherever they occur: the logits
stay, but the groups that rounding forms are new ones.
"""

import sys
from typing import Any

import torch

from winnow import LLM


@torch.no_grad()
def shuffle(model: Any, seed: int = 0) -> None:
    """Permute the dimensions of a Llama model in place, so that it computes the same."""
    source = torch.Generator().manual_seed(seed)
    stream = torch.randperm(model.config.hidden_size, generator=source)
    body = model.model
    ends = {id(layer.weight): layer.weight for layer in (body.embed_tokens, model.lm_head)}
    for weight in (*ends.values(), body.norm.weight):
        weight.copy_(weight[..., stream])
    for layer in body.layers:
        inner = torch.randperm(model.config.intermediate_size, generator=source)
        attention, mlp = layer.self_attn, layer.mlp
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight.copy_(norm.weight[stream])
        for read in (attention.q_proj, attention.k_proj, attention.v_proj):
            read.weight.copy_(read.weight[:, stream])
        for read in (mlp.gate_proj, mlp.up_proj):
            read.weight.copy_(read.weight[inner][:, stream])
        attention.o_proj.weight.copy_(attention.o_proj.weight[stream])
        mlp.down_proj.weight.copy_(mlp.down_proj.weight[stream][:, inner])


if __name__ == "__main__":
    file, directory = sys.argv[1:]
    llm = LLM(file, weights="dense", dtype="float32", device="cpu")
    ids = torch.arange(100, 132)[None]
    before = llm.model(ids).logits
    shuffle(llm.model)
    off = (llm.model(ids).logits - before).abs().max().item()
    llm.model.save_pretrained(directory)
    assert llm.tokenizer is not None
    llm.tokenizer.save_pretrained(directory)
    print(f"the logits differ by {off:.1e} at most")

"""The training loop: stages, averaged gradients of several processes, checkpoints, a JSON Lines log."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import LlamaForCausalLM

from .config import RunConfig, Stage
from .corpus import prepare
from .mixture import QUESTION, Batch, Mixture
from .model import TrainingForward, build_model
from .muon import Muon

_WARM_UP = 100  # steps, at the very start and after every change of stage a tenth of it


def train(config: RunConfig) -> None:
    """Prepare the data once, then run every stage not yet done; start again with the same call after a stop."""
    prepare(config.corpus, config.out, vocab=config.model.vocab, text_mb=config.text_mb)
    if config.processes == 1:
        _Run(config, rank=0).stages()
        return
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(20_000 + os.getpid() % 20_000))
    torch.multiprocessing.spawn(_worker, args=(config,), nprocs=config.processes)


def _worker(rank: int, config: RunConfig) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=config.processes)
    _Run(config, rank=rank).stages()
    dist.destroy_process_group()


class _Run:
    """The state of one process: model, optimizers, place in the curriculum, figures since the last log line."""

    def __init__(self, config: RunConfig, rank: int) -> None:
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self.config, self.rank = config, rank
        self.mixture = Mixture(config.out, max_positions=config.model.max_positions, seed=config.seed)
        end = self.mixture.tokenizer.eos_token_id
        self.model: LlamaForCausalLM = build_model(config.model, (end, 0)).to(config.device)
        self.forward = TrainingForward(self.model, compiled=config.compiled)
        matrices = [p for name, p in self.model.named_parameters() if p.ndim == 2 and "embed" not in name]
        rest = [p for name, p in self.model.named_parameters() if p.ndim != 2 or "embed" in name]
        self.optimizers = (Muon(matrices, lr=1.0), torch.optim.AdamW(rest, lr=1.0, betas=(0.9, 0.98), weight_decay=0.0))
        self.place: dict[str, Any] = {
            "stage": config.stages[0].name,
            "stage_tokens": 0,
            "step": 0,
            "tokens": 0,
            "s": 0.0,
        }
        self.figures = _Figures()
        self.saved = self.logged = self.validated = time.monotonic()
        self._load()

    def stages(self) -> None:
        """Run from the place in the curriculum to its end."""
        names = [stage.name for stage in self.config.stages]
        for stage in self.config.stages[names.index(self.place["stage"]) :]:
            if self.place["stage"] != stage.name:
                self.place.update(stage=stage.name, stage_tokens=0)
            self._stage(stage)
            self._save()

    def _stage(self, stage: Stage) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, disable=self.rank != 0) as progress:
            bar = progress.add_task(stage.name, total=stage.tokens, completed=self.place["stage_tokens"])
            stage_step = 0
            while self.place["stage_tokens"] < stage.tokens:
                start = time.monotonic()
                rate = self._rate(stage, stage_step)
                loss, tokens = self._step(stage, rate)
                self.place["s"] += time.monotonic() - start
                self.place["step"] += 1
                self.place["tokens"] += tokens
                self.place["stage_tokens"] += tokens
                stage_step += 1
                progress.update(bar, completed=self.place["stage_tokens"], description=f"{stage.name} loss {loss:.3f}")
                self._report(stage, rate)
                if loss < stage.until_loss:
                    break

    def _rate(self, stage: Stage, stage_step: int) -> float:
        warm = min(1.0, (self.place["step"] + 1) / _WARM_UP, (stage_step + 2) / (_WARM_UP / 10))
        return warm * (stage.lr + (stage.lr_end - stage.lr) * self.place["stage_tokens"] / stage.tokens)

    def _step(self, stage: Stage, rate: float) -> tuple[float, int]:
        """One update; returns the loss averaged over the processes and the tokens all of them saw."""
        batch = self.mixture.batch(stage, self.place["step"], self.rank, self.config.step_tokens)
        loss = self._loss(batch, self.figures)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        average = self._average_gradients(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        self.figures.add("loss", average)
        return average, batch.ids.size * self.config.processes

    def _loss(self, batch: Batch, figures: _Figures) -> Tensor:
        device = self.config.device
        ids = torch.from_numpy(batch.ids).to(device)
        hidden = self.forward(ids, torch.from_numpy(batch.positions).to(device))
        chosen = np.flatnonzero(batch.weights[:, 1:])  # targets that weigh; the row before each one predicts it
        rows, columns = np.divmod(chosen, batch.ids.shape[1] - 1)
        index = torch.from_numpy(rows * batch.ids.shape[1] + columns).to(device)
        logits = self.forward.logits(hidden.flatten(0, 1)[index])  # [chosen, vocab]
        target = ids.flatten()[index + 1]
        weight = torch.from_numpy(batch.weights[rows, columns + 1]).to(device)
        losses = F.cross_entropy(logits, target, reduction="none")
        figures.count(batch, rows, columns, (logits.argmax(-1) == target).cpu().numpy(), losses.detach().cpu().numpy())
        return (losses * weight).sum() / weight.sum().clamp_min(1e-6)

    def _average_gradients(self, loss: Tensor) -> float:
        if self.config.processes == 1:
            return loss.item()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([loss.view(1), *(g.flatten() for g in gradients)])
        dist.all_reduce(flat)
        flat /= self.config.processes
        for gradient, mean in zip(gradients, flat[1:].split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))
        return flat[0].item()

    def _report(self, stage: Stage, rate: float) -> None:
        now = time.monotonic()
        if self.rank != 0:
            return
        if now - self.logged > self.config.log_s:
            line = {**self.place, "lr": round(rate, 6), **self.figures.summary()}
            if now - self.validated > self.config.validate_s:
                line["val_nll"] = self.validate()
                self.validated = now
            with (self.config.out / "log.jsonl").open("a") as file:
                file.write(json.dumps(_rounded(line)) + "\n")
            self.logged, self.figures = now, _Figures()
        if now - self.saved > self.config.checkpoint_s:
            self._save()

    @torch.no_grad()
    def validate(self, windows: int = 12, length: int = 1024) -> float:
        """Mean negative log-likelihood per token on evenly spaced windows of the held-out text."""
        tokens = np.load(self.config.out / "val.npy", mmap_mode="r")
        length = min(length, len(tokens) // windows - 1)
        starts = np.linspace(0, len(tokens) - length - 1, windows).astype(int)
        ids = torch.from_numpy(np.stack([tokens[s : s + length] for s in starts]).astype(np.int64))
        total = 0.0
        for row in ids.to(self.config.device).split(4):
            hidden = self.forward(row, torch.arange(length, device=row.device).expand_as(row), eager=True)
            logits = self.forward.logits(hidden[:, :-1].flatten(0, 1))
            total += F.cross_entropy(logits, row[:, 1:].flatten(), reduction="sum").item()
        return total / (windows * (length - 1))

    def _save(self) -> None:
        self.saved = time.monotonic()
        if self.rank != 0:
            return
        state = {
            "place": dict(self.place),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "config": asdict(self.config.model),
        }
        path = self.config.out / "checkpoint.pt"
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def _load(self) -> None:
        path = self.config.out / "checkpoint.pt"
        if not path.exists():
            return
        state = torch.load(path, map_location=self.config.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.place = state["place"]


class _Figures:
    """Sums since the last log line: losses, and replies that were right in every token, by family and by depth."""

    def __init__(self) -> None:
        self.sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, name: str, value: float, count: float = 1.0) -> None:
        self.sums[name][0] += value
        self.sums[name][1] += count

    def count(self, batch: Batch, rows: np.ndarray, columns: np.ndarray, right: np.ndarray, losses: np.ndarray) -> None:
        """rows, columns: the place before each target; right, losses: [targets]."""
        answer = batch.answer[rows, columns + 1]
        weight = batch.weights[rows, columns + 1]
        prose = (answer < 0) & (weight < 0.99) & (weight != np.float32(QUESTION))
        self.add("text_nll", float(losses[prose].sum()), float(prose.sum()))
        inside = answer >= 0
        self.add("answer_tokens", float(right[inside].sum()), float(inside.sum()))
        if not batch.answers:
            return
        whole = np.ones(len(batch.answers), bool)
        np.logical_and.at(whole, answer[inside], right[inside])
        length = batch.ids.shape[1]
        for (family, depth), correct in zip(batch.answers, whole, strict=True):
            self.add(f"{family}@{length}", float(correct))
            self.add(f"depth{min(9, int(depth * 10))}@{length}", float(correct))

    def summary(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in sorted(self.sums.items()) if count}


def _rounded(line: dict[str, Any]) -> dict[str, Any]:
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in line.items()}


def latest(run: Path) -> dict[str, Any]:
    """The newest checkpoint of a run folder."""
    return torch.load(run / "checkpoint.pt", map_location="cpu", weights_only=True)

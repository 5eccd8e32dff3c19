"""The registry: one line per policy. Everything that lists policies (plans, command line, docs, tests) reads it."""

from winnow.policies.base import Policy
from winnow.policies.compute.fastkv import FastKV
from winnow.policies.compute.full import Full
from winnow.policies.compute.lazyllm import LazyLLM
from winnow.policies.compute.pop import Pop
from winnow.policies.compute.speed import Speed
from winnow.policies.compute.static_prune import StaticPrune
from winnow.policies.compute.swiftkv import SwiftKV
from winnow.policies.keep.duo import Duo
from winnow.policies.keep.everything import Everything
from winnow.policies.keep.expected_attention import ExpectedAttention
from winnow.policies.keep.h2o import H2O
from winnow.policies.keep.keydiff import KeyDiff
from winnow.policies.keep.knorm import Knorm
from winnow.policies.keep.kvzap import KVzap
from winnow.policies.keep.kvzip import KVzip
from winnow.policies.keep.lagkv import LagKV
from winnow.policies.keep.lococo import LoCoCo, LoCoCoLocret
from winnow.policies.keep.locret import Locret, RandomHeads
from winnow.policies.keep.scissorhands import Scissorhands
from winnow.policies.keep.sirllm import SirLLM
from winnow.policies.keep.snapkv import SnapKV
from winnow.policies.keep.streaming import Streaming
from winnow.policies.keep.tova import TOVA
from winnow.policies.prefill.causal import Causal
from winnow.policies.prefill.flexprefill import FlexPrefill
from winnow.policies.prefill.minference import MInference
from winnow.policies.prefill.xattention import XAttention
from winnow.policies.prompt.prompt_compression import PromptCompression
from winnow.policies.prompt.random_drop import RandomDrop
from winnow.policies.prompt.whole import Whole
from winnow.policies.read.dense import Dense
from winnow.policies.read.indexer import Indexer
from winnow.policies.read.infllm import InfLLM
from winnow.policies.read.quest import Quest
from winnow.policies.read.sink_recent import SinkRecent
from winnow.policies.read.sketch import Sketch
from winnow.policies.read.slowfast import SlowFast
from winnow.policies.read.tidal import Tidal
from winnow.policies.store.hf_quantized import HFQuantized
from winnow.policies.store.mapped import Mapped
from winnow.policies.store.plain import Plain
from winnow.policies.store.quantized import Quantized

_POLICIES: tuple[type[Policy], ...] = (
    Whole,
    RandomDrop,
    PromptCompression,
    Full,
    LazyLLM,
    StaticPrune,
    FastKV,
    Speed,
    Pop,
    SwiftKV,
    Everything,
    Streaming,
    Duo,
    Locret,
    RandomHeads,
    H2O,
    SnapKV,
    SirLLM,
    Scissorhands,
    TOVA,
    Knorm,
    KeyDiff,
    LagKV,
    ExpectedAttention,
    KVzip,
    KVzap,
    LoCoCo,
    LoCoCoLocret,
    Causal,
    MInference,
    XAttention,
    FlexPrefill,
    Dense,
    SlowFast,
    Quest,
    Sketch,
    Tidal,
    InfLLM,
    Indexer,
    SinkRecent,
    Plain,
    Quantized,
    HFQuantized,
    Mapped,
)

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in _POLICIES}
IDENTITY: dict[str, type[Policy]] = {policy.verb: policy for policy in _POLICIES if policy.identity}

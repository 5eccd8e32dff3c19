"""Arms and the grid: shares of a prompt, as many settings for every policy, all of them for SmolLM2's shape."""

import json

import pytest
from benchmarks.quality.arms import COSTS, FULL, GRID, Arm, Grid, distinct_arms, read_arms
from benchmarks.shapes import SHAPES

from winnow.engine.bound import bound_bytes
from winnow.errors import InputError, PlanError
from winnow.plan import Plan
from winnow.policies.compute.base import Deep
from winnow.policies.registry import POLICIES
from winnow.policies.store.quantized import Quantized
from winnow.runtime.shape import shape_of

SHAPE = shape_of(SHAPES["smollm2-135m"].config(), 2)
SETTINGS = Grid.read(GRID).settings
LENGTH, CHUNK = 4096, 512
TOKENS = 24  # of an answer
BOUND_LOOSELY = Arm.of("quantized(bits=4, value_bits=2, group=64, value_group=32, residual=0, chunk=256)")
UNBOUND = ("random_drop", "prompt_compression", "lazyllm", "static_prune")


@pytest.mark.parametrize("length", [2048, 4096, 8192])
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.cost}: {setting.arm.text}")
def test_every_setting_is_one_for_smollm2(setting, length):
    setting.arm.plan(length).validate(SHAPE)


def test_every_policy_is_tried_with_as_many_settings_and_none_is_left_out():
    grid = Grid.read(GRID)
    assert set(grid.caps) == {*COSTS, "composed"}
    for cost in grid.caps:
        assert {len([s for s in grid.of(cost) if s.policy == policy]) for policy in grid.policies(cost)} == {3}
        arms = [setting.arm for setting in grid.of(cost)]
        assert len(set(arms)) == len(arms)
    tried = {setting.policy for setting in SETTINGS if setting.cost in COSTS}
    assert tried == {name for name, policy in POLICIES.items() if not policy.identity}


@pytest.mark.parametrize(
    "setting",
    [s for s in SETTINGS if s.cost == "rows" and s.policy != "prompt_compression"],
    ids=lambda setting: setting.arm.text,
)
def test_rows_of_a_prompt_are_at_most_the_cost_by_their_formula(setting):
    """But for prompt_compression, which keeps whole units of more or fewer tokens than its share."""
    plan = setting.arm.plan(LENGTH)
    rows = plan.compute.layer_tokens(SHAPE, LENGTH, Deep.none(LENGTH)).rows
    kept = getattr(plan.prompt, "keep", 1)  # random_drop's prompt is shorter, and so its rows
    assert kept * sum(rows) / (SHAPE.layers * LENGTH) <= 0.6


@pytest.mark.parametrize(
    "setting",
    [s for s in SETTINGS if s.cost == "bytes" and s.policy not in UNBOUND and s.arm != BOUND_LOOSELY],
    ids=lambda setting: setting.arm.text,
)
def test_bytes_are_at_most_the_cost_by_their_bound(setting):
    """But for plans of which the bound says little: a shorter prompt, and tokens that may all come back."""
    most = bound_bytes(setting.arm.plan(LENGTH), SHAPE, LENGTH, TOKENS, CHUNK)
    assert most / bound_bytes(Plan(), SHAPE, LENGTH, TOKENS, CHUNK) <= 0.25


def test_bytes_of_codes_are_at_most_the_cost_with_a_chunk_as_it_came_in_one_layer():
    """The bound has it in every layer, as where a prompt comes in smaller pieces; alone it comes in whole ones."""
    assert BOUND_LOOSELY in {setting.arm for setting in SETTINGS if setting.cost == "bytes"}
    plan = BOUND_LOOSELY.plan(LENGTH)
    assert isinstance(plan.store, Quantized)
    dense = plan.store.chunk * (SHAPE.unit_bytes - plan.store.form(SHAPE.head_dim).unit_bytes)
    most = bound_bytes(plan, SHAPE, LENGTH, TOKENS, CHUNK) - (SHAPE.layers - 1) * SHAPE.kv_heads * dense
    assert most / bound_bytes(Plan(), SHAPE, LENGTH, TOKENS, CHUNK) <= 0.25


def test_shares_are_of_the_prompt_in_whole_pages():
    arm = Arm.of("snapkv(budget={1/8}, window=8, local=0)")
    assert str(arm.plan(4096)) == "snapkv(budget=512, window=8, local=0)"
    assert str(arm.plan(1000)) == "snapkv(budget=112, window=8, local=0)"
    assert str(arm.plan(64)) == "snapkv(budget=16, window=8, local=0)"
    assert (arm.name, arm.policies) == ("snapkv(budget={1/8}, window=8, local=0)", "snapkv")
    with pytest.raises(InputError, match="share of the prompt"):
        Arm.of("snapkv(budget={3/2})")
    with pytest.raises(PlanError):
        Arm.of("snapkw")


def test_full_attention_comes_first_and_names_are_unique():
    arms = [Arm.of("lazyllm", "mine"), Arm.of("full"), Arm.of("lazyllm", "mine"), Arm.of("pop")]
    assert [arm.name for arm in distinct_arms(arms)] == [FULL, "mine", "pop"]
    with pytest.raises(InputError, match="'mine' names both"):
        distinct_arms([Arm.of("lazyllm", "mine"), Arm.of("pop", "mine")])
    with pytest.raises(InputError, match="'mine' names both pop and pop with some/DIR"):
        distinct_arms([Arm.of("pop", "mine"), Arm.of("pop", "mine", "some/DIR")])


def test_parts_of_a_grid():
    grid = Grid.read(GRID)
    assert {arm.policies for arm in grid.arms(["units"], ["quest", "snapkv"])} == {"quest", "snapkv"}
    assert len(grid.arms(["units"], ["quest"])) == 3
    assert len(grid.arms()) == len({setting.arm for setting in grid.settings})
    with pytest.raises(InputError, match="--policy quset"):
        grid.arms((), ["quset"])
    with pytest.raises(InputError, match="--cost time"):
        grid.arms(["time"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[rows]\nat_most = 0.5\npop = ['pop']\nlazyllm = []\n", "lazyllm is tried with 0 settings and pop with 1"),
        ("[rows]\nat_most = 0.5\npop = ['lazyllm']\n", "stands under pop, and is lazyllm"),
        ("[time]\nat_most = 0.5\n", "no cost is called 'time'"),
        ("[rows]\npop = ['pop']\n", "at_most"),
        ("[all]\nat_most = { time = 0.5 }\n", "no cost is called 'time'"),
        ("[all]\nat_most = {}\n", "all needs at_most"),
        ("at_most = 0.5\n", "at_most stands in no table"),
        ("[rows\n", "no TOML file"),
    ],
)
def test_a_grid_that_is_none_is_refused(text, said, tmp_path):
    (tmp_path / "grid.toml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        Grid.read(tmp_path / "grid.toml")


def test_arms_of_a_file(tmp_path):
    file = tmp_path / "chosen.json"
    file.write_text(json.dumps({"arms": [{"plan": "pop", "name": "a"}, {"plan": "lazyllm"}]}), encoding="utf-8")
    assert [(arm.text, arm.name) for arm in read_arms(file)] == [("pop", "a"), ("lazyllm", "lazyllm")]
    file.write_text(json.dumps({"arms": [{"plan": "full", "adapter": "some/DIR"}]}), encoding="utf-8")
    assert read_arms(file) == [Arm("full", "full, DIR", "some/DIR")]
    for wrong in ("[]", "{}", '{"arms": [{}]}', '{"arms": ["pop"]}', "no JSON"):
        file.write_text(wrong, encoding="utf-8")
        with pytest.raises(InputError, match="holds no arms"):
            read_arms(file)

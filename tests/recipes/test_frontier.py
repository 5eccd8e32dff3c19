"""The recipe of the frontier on a few short examples, and its report."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
arms = pytest.importorskip("recipes.frontier.arms")
from recipes.frontier import __main__ as command  # noqa: E402
from recipes.frontier import figures, picture, report, run  # noqa: E402

from winnow import Plan  # noqa: E402
from winnow.policies.registry import POLICIES  # noqa: E402

ARMS = [
    arms.Arm("full"),
    arms.Arm("streaming(sink=4, recent={recent})"),
    arms.Arm("sink_recent(sink=4, recent=60)"),
    arms.Arm("speed(cutoff=6)", adapter="needle-speed-6"),
    arms.Arm("streaming(sink=4, recent={recent}) + sink_recent(sink=4, recent=60)"),
    arms.Arm("h2o(budget={budget}) + quest"),
]


def test_every_policy_is_measured_alone_and_every_arm_has_a_name_of_its_own():
    made = arms.arms()
    names = [run.Job(arm, 4096).name for arm in made]
    assert len(set(names)) == len({arm.name for arm in made}) == len(made)
    assert max(map(len, names)) < 250  # the longest name of a file
    alone = {
        policy.name for arm in made for policy in Plan.parse(arm.text(4096)).policies.values() if arm.verb != "composed"
    }
    assert set(POLICIES) <= alone
    assert made[0].verb == "full"
    assert {arm.verb for arm in made} <= set(arms.VERBS)


def test_a_new_policy_is_measured_at_its_preset(monkeypatch):
    monkeypatch.setattr(arms, "READ", ())
    assert {arms.Arm(name) for name in ("slowfast", "quest", "tidal", "sink_recent")} <= set(arms.arms())


def test_budgets_are_shares_of_the_prompt():
    keep = Plan.parse(arms.Arm("locret(budget={budget})", 16).text(8192)).keep
    recent = Plan.parse(arms.Arm("streaming(sink=4, recent={recent})", 16).text(8192)).keep
    assert (keep.budget, keep.budget + keep.tail(8192)) == (512, recent.recent + recent.sink)


def test_shards_hold_every_arm_once():
    whole, parts = command.jobs([4096, 8192]), [command.jobs([4096, 8192], shard, 3) for shard in (1, 2, 3)]
    assert sorted(job.name for part in parts for job in part) == sorted(job.name for job in whole)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Every arm of `ARMS` on two tasks of one short example; the last one is refused."""
    folder, bench = tmp_path_factory.mktemp("frontier"), run.Bench(1, ("passkey", "kv"))
    for arm in ARMS:
        bench.measure(run.Job(arm, 640), folder)
    return folder


@pytest.fixture
def records(out, monkeypatch):
    monkeypatch.setattr(report, "arms", lambda: ARMS)
    return report.read(out)


def test_what_is_there_is_not_measured_again_and_more_examples_are_added(out, tmp_path):
    job = run.Job(ARMS[2], 640)
    file, copy = out / f"{job.name}.json", tmp_path / f"{job.name}.json"
    copy.write_text(file.read_text())
    assert run.Bench(1, ("passkey", "kv")).measure(job, tmp_path).endswith("there already")
    run.Bench(2, ("passkey", "kv")).measure(job, tmp_path)
    rows = json.loads(copy.read_text())["rows"]
    assert [row["index"] for row in rows] == ["passkey 0", "kv 0", "passkey 1", "kv 1"]
    assert rows[:2] == json.loads(file.read_text())["rows"]
    other = replace(json_arm(copy), plan="sink_recent(sink=4, recent=90)")
    copy.write_text(json.dumps(json.loads(copy.read_text()) | {"plan": other.plan}))
    run.Bench(1, ("passkey", "kv")).measure(job, tmp_path)
    assert len(json.loads(copy.read_text())["rows"]) == 2  # the file was of another plan


def json_arm(file):
    return arms.Arm(json.loads(file.read_text())["plan"])


def test_costs_are_those_of_the_runs_and_full_attention_has_all(records):
    by_arm = {record["arm"]: record for record in records}
    full, streaming = by_arm["full"], by_arm[ARMS[1].name]
    assert figures.costs(full, full) == {"rows": 100, "bytes": 100, "units": 100}
    found = figures.costs(streaming, full)
    most = 512  # the first chunk
    held = sum(row["prompt_tokens"] + row["new_tokens"] - 1 for row in full["rows"])
    assert found["bytes"] == pytest.approx(100 * 2 * most / held)
    assert found["rows"] == 100
    assert figures.costs(by_arm[ARMS[3].name], full)["rows"] < 80
    assert figures.most_bytes({"peak_cache_bytes": 2, "aux_bytes": 1}) == 3  # an older row
    for record in records:
        if record["rows"]:
            assert (record["environment"]["threads"], record["commit"]) != (None, "")
            assert record["machine"]["device"]


def test_tables_hold_every_arm_and_the_refused_one_says_why(records, tmp_path):
    text = report.markdown(records)
    lines = [line for line in text.splitlines() if line.startswith("| ") and line.split(" | ")[0][2:].isdigit()]
    assert [line.split(" | ")[1] for line in lines] == ["full", "compute", "keep", "read", "composed"]
    assert f"| `{records[2]['plan']}` |  | 2 |" in text
    assert "100.0 | 100.0 | 100.0 | 100.0 |" in lines[0]
    assert "- `h2o(budget={budget}) + quest 1/8`: h2o scores units by the attention of every new token" in text
    picture.plot(records, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    assert picture.short(records[1]) == "speed, needle-speed-6"


def test_the_frontier_is_what_nothing_beats():
    points = [
        (10.0, 50.0, "a"),
        (10.0, 60.0, "b"),
        (5.0, 20.0, "c"),
        (50.0, 60.0, "d"),
        (100.0, 90.0, "e"),
        (6.0, 10.0, "f"),
    ]
    assert [name for _, _, name in picture.pareto(points)] == ["c", "b", "e"]

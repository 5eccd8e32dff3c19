"""The recipe of the slow-fast measurements on a few short examples, and its report."""

import json
import math
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
arms = pytest.importorskip("recipes.slowfast.arms")
from recipes.blocks import slowfast as blocks  # noqa: E402
from recipes.slowfast import __main__ as command  # noqa: E402
from recipes.slowfast import figures, matching, report, run  # noqa: E402
from recipes.slowfast.forced import forced, reply_of  # noqa: E402

from winnow import LLM, Plan  # noqa: E402
from winnow.errors import InputError  # noqa: E402
from winnow.policies.read.trigger import Periodic  # noqa: E402
from winnow.tasks import task  # noqa: E402

COSTS = matching.Costs(steps=(240, 251), slow=19, read=640.0, kept=4200.0, layers=8)
READ = "sink=2, recent=32, trigger='periodic', interval=8, bootstrap=4, selector='pooled', pool=5"
SLOWFAST = f"slowfast(budget={{budget}}, {READ})"


@pytest.fixture(scope="module")
def llm():
    return LLM("needle")


@pytest.fixture(scope="module")
def listing(llm):
    return run.Bench(llm, 1).cases("kv_list-16-forced", 640)[0]


@pytest.fixture(scope="module")
def whole(llm, listing):
    """What full attention says of the listing: which values are right, and what it cost."""
    return forced(llm, Plan(), listing)


def test_all_arms_can_be_run_and_stand_after_the_one_they_are_matched_with(llm):
    names = [arm.name for arm in arms.arms()]
    assert len({run.record_name(name, "kv", 4096) for name in names}) == len(names)
    for place, arm in enumerate(arms.arms()):
        assert arm.group in ("full", *blocks.TITLES)
        assert arm.like is None or arm.like in names[:place]
        assert set(arm.tasks) <= set(arms.TASKS)
        plan = Plan.parse(arm.text(4096, COSTS))
        plan.validate(llm.decoder.shape)
        if plan.read.name == "slowfast":
            assert plan.read.budget == 4096 // arm.share
    assert {arm.share for arm in arms.arms() if arm.group == "selectors, often"} == {8, 16, 32}


def test_shards_hold_every_job_once_and_keep_matched_arms_together():
    whole, parts = command.jobs([4096, 8192]), [command.jobs([4096, 8192], shard, 2) for shard in (1, 2)]
    names = [{job.name for job in part} for part in parts]
    assert not names[0] & names[1]
    assert names[0] | names[1] == {job.name for job in whole}
    for part, mine in zip(parts, names, strict=True):
        for job in part:
            assert job.arm.like is None or run.record_name(job.arm.like, job.task, job.length) in mine


def test_digits_of_each_value_are_what_is_scored(llm):
    for name, parameters in (("kv_list", {"pairs": 4}), ("multi_needle", {"needles": 4})):
        example = task(name, **parameters).example(random.Random(0), tokens=512, tokenizer=llm.tokenizer)
        reply = reply_of(example, llm.tokenizer)
        said = [llm.tokenizer.decode(reply.tokens[value.start : value.stop]).strip(' "') for value in reply.values]
        assert said == [answer.strip('."')[-5:] for answer in example.answers]
        assert llm.tokenizer.decode(reply.tokens) == example.reply
    with pytest.raises(InputError, match="reply"):
        reply_of(replace(example, answers=example.answers[::-1]), llm.tokenizer)


@pytest.mark.parametrize("plan", ["full", SLOWFAST.format(budget=40)])
def test_forced_listing_is_scored_as_the_logits_of_the_same_plan_say(llm, listing, whole, plan):
    reply = reply_of(listing.example, llm.tokenizer)
    predicted = llm.logits([*listing.ids, *reply.tokens[:-1]], decode_from=len(listing.ids), plan=plan).argmax(-1)
    right = [all(predicted[i] == reply.tokens[i] for i in value) for value in reply.values]
    found, stats = whole if plan == "full" else forced(llm, Plan.parse(plan), listing)
    assert list(found) == right
    assert stats.slow_steps + stats.fast_steps == len(reply.tokens) - 1
    if plan == "full":
        assert sum(found) > 8
    else:
        assert stats.slow_steps == (len(reply.tokens) - 1) // 8
        assert sum(found) < 16


def test_a_wrong_digit_in_the_reply_is_not_predicted(llm, listing, whole):
    found, _ = whole
    place = found.index(True)
    value = listing.example.answers[place][-6:-1]
    wrong = value[:-1] + str((int(value[-1]) + 5) % 10)
    changed = replace(
        listing.example,
        answers=tuple(answer.replace(value, wrong) for answer in listing.example.answers),
        reply=listing.example.reply.replace(value, wrong),
    )
    again, _ = forced(llm, Plan(), replace(listing, example=changed))
    assert not again[place]


def test_triggers_are_matched_by_slow_steps_and_relatives_by_units():
    for name in ("periodic, rarely", "random, rarely"):
        arm = next(arm for arm in arms.arms() if arm.name == name)
        read = Plan.parse(arm.text(4096, COSTS)).read
        assert 491 / 19 * 0.7 < read.interval < 491 / 19 * 1.4
    never = replace(COSTS, slow=0)
    assert matching.same_rate(Periodic, never)["interval"] > 240
    pages = matching.same_units_quest(COSTS)["pages"]
    assert pages % 16 == 0
    assert pages - 16 / 2 + 4200 / 16 == pytest.approx(640, abs=8)
    selected = matching.same_units_tidal(COSTS)["selected"]
    assert (4200 + 7 * (selected + 1)) / 8 == pytest.approx(640, abs=1)
    assert 4 + matching.same_units_sink_recent(COSTS)["recent"] == 640


@pytest.fixture(scope="module")
def out(llm, tmp_path_factory):
    """Three arms on two tasks; the third is matched with the second, and was asked for too early once."""
    folder = tmp_path_factory.mktemp("slowfast")
    bench = run.Bench(llm, 1)
    matched = arms.Arm(
        "sink_recent, often", "relatives", "sink_recent(sink=4, recent={recent})", like="pooled, 1/16, often",
        match=matching.same_units_sink_recent,
    )  # fmt: skip
    small = arms.Arm("pooled, 1/16, often", "selectors, often", SLOWFAST)
    assert "left out" in bench.measure(run.Job(matched, "passkey", 640), folder)
    for arm in (arms.Arm("full", "full", "full"), small, matched):
        for name in ("passkey", "kv_list-16-forced"):
            assert bench.measure(run.Job(arm, name, 640), folder).endswith("of 1 examples")
            assert bench.measure(run.Job(arm, name, 640), folder).endswith("there already")
    return folder


def test_more_examples_are_added_to_those_there_are_and_another_plan_begins_anew(llm, out, tmp_path):
    file = out / "full--passkey--640.json"
    copy = tmp_path / file.name
    copy.write_text(file.read_text())
    full = arms.Arm("full", "full", "full")
    assert run.Bench(llm, 2).measure(run.Job(full, "passkey", 640), tmp_path).endswith("of 2 examples")
    rows = json.loads(copy.read_text())["rows"]
    assert [row["index"] for row in rows] == [0, 1]
    assert rows[:1] == json.loads(file.read_text())["rows"]
    other = replace(full, plan="sink_recent(sink=4, recent=32)")
    run.Bench(llm, 1).measure(run.Job(other, "passkey", 640), tmp_path)
    record = json.loads(copy.read_text())
    assert (record["plan"], len(record["rows"])) == (other.plan, 1)


def test_matched_arms_read_as_many_units(out):
    records = {(r["arm"], r["task"]): r for r in report.read(out)}
    for name in ("passkey", "kv_list-16-forced"):
        mine, other = (run.costs_of(records[arm, name]) for arm in ("sink_recent, often", "pooled, 1/16, often"))
        assert mine.read == pytest.approx(other.read, abs=0.6)
        assert mine.steps == other.steps or name == "passkey"


def test_the_report_shows_differences_on_the_same_examples(out, tmp_path):
    records = report.read(out)
    assert [r["arm"] for r in records] == ["full"] * 2 + ["pooled, 1/16, often"] * 2 + ["sink_recent, often"] * 2
    text = report.markdown(records)
    assert "## Selectors, slow steps often, 640 tokens" in text
    assert "| pooled, 1/16, often | 40 | 1 |" in text
    full = next(line for line in text.splitlines() if line.startswith("| full"))
    assert "100.0 | 100.0 |" in full
    gone = figures.score(records[5]) - figures.score(records[1])
    assert f"({gone:+.1f}; {gone:+.1f} to {gone:+.1f})" in text
    report.plot(records, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_differences_are_paired_and_their_interval_covers_the_mean():
    def record(scores):
        return {"rows": [{"index": index, "score": score} for index, score in enumerate(scores)]}

    full = record([1.0, 0.5, 0.0, 1.0] * 10)
    same = figures.difference(record([0.75, 0.25, -0.25, 0.75] * 10), full)
    assert (same.points, same.low, same.high) == (-25, -25, -25)  # all alike, though the scores differ
    some = figures.difference(record([1.0, 0.5, 0.0, 0.0] * 10), full)
    assert some.points == -25
    half = 1.96 * 100 * math.sqrt(0.25 * 0.75 / 40)
    assert (some.low, some.high) == pytest.approx((-25 - half, -25 + half), abs=3)
    assert figures.difference(record([0.0]), full).points == -100  # only the examples that both have

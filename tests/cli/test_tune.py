import json

import pytest

from adapters_for_tests import save_adapter
from winnow.cli import tune_plot
from winnow.cli.inputs import parse_plan, parse_plans
from winnow.errors import InputError
from winnow.plan import Plan
from winnow.tune import search
from winnow.tune.candidates import Found

STRONG = "streaming(sink=4, recent=300)"


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch):
    plans = [Plan.parse(STRONG), Plan.parse("streaming(sink=1, recent=8)")]
    monkeypatch.setattr(search, "single_plans", lambda llm, cases: Found(plans, ["locret is left out: no heads"]))


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    texts = [f"The code of box {i} is {7 * i}. " * 12 + "What is it?" for i in range(6)]
    path.write_text("".join(json.dumps({"prompt": text, "answer": "7"}) + "\n" for text in texts), encoding="utf-8")
    return path


def flags(prompts, tiny, *more):
    return ("tune", prompts, "-m", tiny, "--answer-tokens", 4, *more)


def test_the_plan_it_writes_is_read_by_other_commands(winnow, tiny, prompts, tmp_path):
    plan, plot = tmp_path / "plan.txt", tmp_path / "tune.png"
    done = winnow(*flags(prompts, tiny, "--max-kl", 100, "--out-plan", plan, "--plot", plot))
    assert done.code == 0
    assert "locret is left out: no heads" in done.out
    assert f"--plan @{plan}" in done.out
    text = plan.read_text(encoding="utf-8")
    assert "# limits: max_kl=100" in text
    assert "# confirmation, 3 prompts" in text
    assert "# answered in turns, 3 of the latter: " in text
    assert "score and times: of 3 of these prompts" in " ".join(done.out.split())
    assert f"recommended: {parse_plan(f'@{plan}')}\n" in done.out
    assert plot.read_bytes().startswith(b"\x89PNG")
    run = winnow("run", "hello", "-m", tiny, "--max-tokens", 2, "--plan", f"@{plan}", "--json")
    assert run.code == 0


def test_the_picture_names_its_plans(winnow, tiny, prompts, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(tune_plot, "save", lambda figure, path: drawn.append(figure))
    found = winnow(*flags(prompts, tiny, "--max-kl", 100, "--plot", tmp_path / "tune.png", "--json")).json
    assert found["frontier"]
    assert drawn[0].get_supxlabel().splitlines() == [
        f"{number}: {row['plan']}" for number, row in enumerate(found["frontier"], start=1)
    ]


def test_an_adapter_is_measured_but_not_one_that_has_a_plan_of_its_own(winnow, tiny, prompts, tmp_path):
    adapter = save_adapter(tmp_path / "adapter")
    state = tmp_path / "state.jsonl"
    found = winnow(*flags(prompts, tiny, "--max-kl", 100, "--adapter", adapter, "--state", state, "--json")).json
    assert (found["model"], found["adapter"]) == (str(tiny), str(adapter))
    assert "was written for model=" in winnow(*flags(prompts, tiny, "--max-kl", 100, "--state", state)).err
    own = save_adapter(tmp_path / "own", "speed(cutoff=1)")
    assert (
        f"{own} was trained to answer under the plan speed(cutoff=1)"
        in winnow(*flags(prompts, tiny, "--adapter", own)).err
    )


def test_json_holds_the_frontier_the_finalists_and_the_recommendation(winnow, tiny, prompts):
    found = winnow(*flags(prompts, tiny, "--max-kl", 100, "--json")).json
    assert found["complete"]
    assert found["limits"]["max_kl"] == 100
    assert (found["search_prompts"], found["confirmation_prompts"]) == (3, 3)
    assert found["recommended"]["plan"] in [each["plan"] for each in found["finalists"]]
    assert {"full", STRONG} <= {row["plan"] for row in found["tried"]}


def test_the_closest_plan_is_shown_where_none_keeps_to_the_limits(winnow, tiny, prompts, tmp_path):
    plan = tmp_path / "plan.txt"
    done = winnow(*flags(prompts, tiny, "--max-cache-mib", 0.001, "--out-plan", plan))
    assert done.code == 1
    assert "no plan was found to keep to the limits (max_kl=0.01, max_cache_mib=0.001)" in done.out
    assert "(at most 0.001 was asked for)" in done.out
    assert not plan.exists()


def test_tasks_make_prompts_where_there_are_none(winnow, tiny):
    made = ("--task", "passkey", "--task", "kv", "--length", 300, "-n", 2, "--max-kl", 100, "--json")
    found = winnow("tune", "-m", tiny, *made).json
    assert (found["search_prompts"], found["confirmation_prompts"]) == (2, 2)


def test_an_interrupt_shows_what_there_is_and_the_state_goes_on(winnow, tiny, prompts, tmp_path, monkeypatch):
    state, calls, true = tmp_path / "state.jsonl", [], search.measure

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return true(*arguments)

    monkeypatch.setattr(search, "measure", interrupted)
    stopped = winnow(*flags(prompts, tiny, "--max-kl", 100, "--state", state, "--json"))
    assert (stopped.code, stopped.json["complete"], stopped.json["measurements"]) == (
        130,
        False,
        5 + 3,
    )  # 3: of full attention
    assert "interrupted" in stopped.err
    again = winnow(*flags(prompts, tiny, "--max-kl", 100, "--state", state, "--json"))
    assert again.code == 0
    assert len(calls) - 6 == again.json["measurements"] - 5 - 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-kl", 0), "max_kl=0.0 must be above 0"),
        (("--task", "kv"), "--task: about tasks, not about PROMPTS"),
        (("--out-plan", "/none/plan.txt"), "cannot write /none/plan.txt"),
        (("-m", "needle-speed-9"), "needle-speed-9"),
    ],
)
def test_bad_input_is_one_line(winnow, tiny, prompts, arguments, said):
    done = winnow(*flags(prompts, tiny, *arguments))
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_plan_file_needs_a_plan(tmp_path):
    path = tmp_path / "plan.txt"
    with pytest.raises(InputError, match="cannot read"):
        parse_plans([f"@{path}"])
    path.write_text("# nothing\n\n", encoding="utf-8")
    with pytest.raises(InputError, match="holds no plan"):
        parse_plans([f"@{path}"])
    path.write_text("# found\nstreaming(sink=4,\n  recent=8) + quest\n", encoding="utf-8")
    assert parse_plans([f"@{path}", "full"]) == [Plan.parse("streaming(sink=4, recent=8) + quest"), Plan()]

"""The list of what makes docs/results: nothing is missing, nothing that is finished is made again."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
results = pytest.importorskip("recipes.results")


def test_every_file_in_docs_results_has_a_command_or_is_said_to_be_joined_by_hand():
    commands = " ".join(line for result in results.RESULTS_IN_ORDER for line in result.lines())
    by_hand = ", ".join(results.BY_HAND)
    for file in results.RESULTS.iterdir():
        if file.suffix != ".md":
            assert file.name in commands or file.name in by_hand, file.name
    assert all(result.minutes > 0 for result in results.RESULTS_IN_ORDER)
    assert "about 20 min" in results.listing(list(results.RESULTS_IN_ORDER))


def test_the_index_names_every_page_and_no_other():
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", (results.RESULTS / "README.md").read_text(encoding="utf-8")))
    there = {file.name for file in results.RESULTS.glob("*.md")} - {"README.md"}
    made = {"frontier.md", "fidelity.md"}
    assert there | made == named | made
    assert made <= named


# Where these are given no model, what they take depends on what is installed.
TAKE_A_MODEL = re.compile(
    r"(?:winnow (?:eval|diagnose|tune|compare|fit)"
    r"|python -m benchmarks (?:sweep|depth|usage|sparsity|memory|fidelity|quality run))(?P<given> .*)"
)


def test_commands_name_the_model_that_their_figures_are_of():
    pages = [page.read_text(encoding="utf-8") for page in results.RESULTS.glob("*.md")]
    written = [line for page in pages for line in re.sub(r"\\\n *", "", page).splitlines()]
    made = [line for result in results.RESULTS_IN_ORDER for line in result.lines()]
    found = [match["given"] for line in {*written, *made} if (match := TAKE_A_MODEL.match(line))]
    assert len(found) > 50
    for given in found:
        named = re.search(r" (?:-m|--model) (\S+)", given)
        assert named, given
        if out := re.search(r"--out docs/results/(\S+\.json)", given):
            about = json.loads((results.RESULTS / out[1]).read_text(encoding="utf-8"))
            if isinstance(about, dict) and about.get("model") in ("needle", "smollm2"):
                assert named[1] == about["model"], given


def test_a_page_that_no_longer_names_its_command_is_an_error():
    with pytest.raises(ValueError, match=r"has 0 commands that write nothing\.json"):
        results.quote("results/lazyllm.md", "nothing.json")


def test_a_command_of_a_page_is_given_the_users_data_and_keeps_its_braces():
    for result in results.RESULTS_IN_ORDER:
        if result.quoted is not None:
            [line] = result.lines()
            made = line.format(data="texts", corpus="corpus", work="work")
            assert made.replace("--data texts", "--data DIR") in (ROOT / "docs" / result.quoted[0]).read_text("utf-8")


def test_commands_run_once_and_a_failure_ends_the_run(monkeypatch, tmp_path):
    ran: list[list[str]] = []

    class Done:
        returncode = 0

    monkeypatch.setattr(results.subprocess, "run", lambda arguments, **_: ran.append(arguments) or Done)
    result = results.Result("one", 1, ("winnow plans --data {data}", "python -m this"))
    given, record = {"data": Path("texts"), "corpus": None, "work": tmp_path}, tmp_path / "done.json"
    Done.returncode = 3
    assert results.make(result, given, record) == 3
    assert not record.exists()
    Done.returncode = 0
    assert results.make(result, given, record) == results.make(result, given, record) == 0
    assert [arguments[1:] for arguments in ran] == [
        ["-m", "winnow", "plans", "--data", "texts"], ["-m", "winnow", "plans", "--data", "texts"], ["-m", "this"],
    ]  # fmt: skip
    assert json.loads(record.read_text()) == {"one": ["winnow plans --data texts", "python -m this"]}
    results.make(result, {**given, "data": Path("others")}, record)
    assert len(ran) == 5  # other data are another command


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--only", "nothing"], "no result is called nothing"),
        (["--only", "fidelity"], "--data is not given; fidelity need it"),
        (["--only", "speed-sweep"], "--corpus is not given; speed-sweep need it"),
    ],
)
def test_what_is_missing_is_said_before_any_work(monkeypatch, capsys, flags, message):
    monkeypatch.setattr(sys, "argv", ["results", *flags])
    with pytest.raises(SystemExit) as ended:
        results.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_adapters_of_plans_that_are_run_are_there():
    """What a part is trained for first is made by hand."""
    named = re.findall(
        r"recipes/quality/[\w-]+\.json", " ".join(line for each in results.RESULTS_IN_ORDER for line in each.lines())
    )
    arms = [arm for file in set(named) for arm in json.loads((ROOT / file).read_text(encoding="utf-8"))["arms"]]
    adapters = {arm["adapter"] for arm in arms if "adapter" in arm}
    assert {"smollm2-long", "smollm2-speed-23"} == adapters

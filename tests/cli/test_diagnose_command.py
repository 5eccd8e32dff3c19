"""`winnow diagnose`: the table shows what the JSON holds, the figure is drawn, bad input is one line."""

import json
import sys

import pytest

from winnow.cli.diagnose_plot import plot_diagnosis
from winnow.cli.diagnose_view import diagnosis_view, recommendation
from winnow.cli.terminal import console
from winnow.diagnosis.cutoff import Thresholds, recommend
from winnow.diagnosis.diagnose import Diagnosis, LayerFigures, Trajectory

SMALL = ("-t", "passkey", "-l", 400, "-n", 2, "--max-tokens", 4, "--ignore-eos")


def rows_of(shown):
    return {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}


def test_the_table_shows_what_the_json_holds(winnow, tiny, tmp_path):
    out, png = tmp_path / "found.json", tmp_path / "found.png"
    result = winnow("diagnose", "-m", tiny, *SMALL, "--out", out, "--plot", png)
    document = json.loads(out.read_text(encoding="utf-8"))
    assert (result.code, png.read_bytes()[:4]) == (0, b"\x89PNG")
    assert (document["command"], document["complete"], document["seed"]) == ("diagnose layers", True, 0)
    assert (document["prompts"], document["steps"], document["tasks"]) == (2, 2 * 3, ["passkey"])
    rows = rows_of(result.out)
    for layer, point in zip(document["layers"], document["trajectory"], strict=False):
        masses = [layer["prompt"], layer["bos"], layer["decode"], layer["itself"]]
        assert sum(masses) + layer["sinks"] == pytest.approx(1)
        cells = [f"{100 * mass:.1f}" for mass in masses]
        cells += [f"{layer['entropy']:.2f}", f"{100 * layer['evenness']:.1f}", f"{100 * layer['selective']:.1f}"]
        assert rows[str(layer["layer"])] == [*cells, *curvature(point)]
    assert rows["out"] == curvature(document["trajectory"][-1])
    cutoff = document["cutoff"]
    assert cutoff["layer"] == max(rule["smallest"] for rule in cutoff["rules"])
    assert "recommended cutoff" in result.out
    assert "not a proof" in result.out


def curvature(point):
    names = ("prompt", "decode", "prompt_straightening", "decode_straightening")
    return ["-" if point[name] is None else f"{point[name]:.1f}" for name in names]


def test_own_texts(winnow, tiny, document, tmp_path):
    flags = ("diagnose", "-m", tiny, "--max-tokens", 4, "--ignore-eos", "--json")
    text = winnow(*flags, "--file", document, "--question", "When?").json
    assert (text["prompts"], text["steps"], text["file"], text["question"]) == (1, 3, str(document), "When?")
    asked = document.read_text(encoding="utf-8").rstrip("\n") + "\n\nWhen?"
    answered = [{"role": "user", "content": asked}, {"role": "assistant", "content": "At nine."}]
    lines = [{"prompt": asked, "answer": "At nine."}, {"messages": answered}, {"messages": answered[:1]}]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n\n".join(map(json.dumps, lines)), encoding="utf-8")
    several = winnow(*flags, "--file", path).json
    assert (several["prompts"], several["steps"]) == (3, 9)
    for one, other in zip(text["layers"], several["layers"], strict=True):  # three times the same prompt
        assert other == pytest.approx(one)


@pytest.mark.parametrize("after", [0, 1])
def test_an_interrupt_keeps_what_was_finished(winnow, tiny, monkeypatch, after):
    module = sys.modules["winnow.cli.diagnose"]  # the package has the function under this name
    measure = module.diagnose_tasks

    def interrupted(*arguments, **keywords):
        made = measure(*arguments, **keywords)
        for _ in range(after):
            yield next(made)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "diagnose_tasks", interrupted)
    result = winnow("diagnose", "-m", tiny, *SMALL, "--json")
    assert (result.code, "interrupted" in result.err, result.json["complete"]) == (130, True, False)
    assert result.json.get("prompts") == (after or None)
    assert winnow("diagnose", "-m", tiny, *SMALL).code == 130


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", ["holds no prompt"]),
        ('{"prompt": "a"}\n{', ["line 2 is not JSON"]),
        ('{"prompt": ""}', ["line 1", "neither"]),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', ["line 1", "one of the user"]),
        ("[1]", ["line 1", "neither"]),
    ],
)
def test_bad_prompts_name_their_line(winnow, tiny, tmp_path, lines, words):
    path = tmp_path / "prompts.jsonl"
    path.write_text(lines, encoding="utf-8")
    fails(winnow("diagnose", "-m", tiny, "--file", path), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-t", "frobnicate"], ["no task is called 'frobnicate'"]),
        (["-l", 32768], ["32768 positions"]),
        (["--max-tokens", 1], ["--max-tokens"]),
        (["--question", "Why?"], ["--question: is about --file only"]),
        (["--no-chat"], ["is about --file only"]),
        (["--file", "missing.txt"], ["cannot read missing.txt"]),
        (["--file", "missing.txt", "-l", 400], ["--length: about tasks, not about --file"]),
        (["--file", "missing.jsonl", "--question", "Why?"], ["each prompt holds its own"]),
        (["--plot", "missing/x.png"], ["cannot write"]),
    ],
)
def test_bad_input_is_one_line_before_any_work(winnow, tiny, monkeypatch, arguments, words):
    def refuse(*arguments, **keywords):
        raise AssertionError("work was done before the error")

    monkeypatch.setattr("winnow.runtime.decoder.Decoder.embed", refuse)
    fails(winnow("diagnose", "-m", tiny, *arguments), *words)


def test_a_prompt_too_short_to_measure(winnow, tiny, tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("ab", encoding="utf-8")
    fails(winnow("diagnose", "-m", tiny, "--file", path, "--no-chat"), "0 tokens between", "at least 3")


def fails(result, *words):
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    for word in words:
        assert word in result.err


FLAT = {"prompt": [100.0] * 8, "decode": [90.0] * 8}


def test_the_recommendation_says_why():
    selective = [0.1, 0.7, *[0.05] * 6]
    said = recommendation(recommend(selective, selective, FLAT))
    assert "cutoff: 4 of 8 layers, as in speed(cutoff=4)" in said
    assert "decided by tail share: at 3 it is 22.7 %, above 20.0 %; runner-up: layer mass, which alone allows 2" in said
    none = recommendation(recommend(selective, [0.3] * 8, FLAT, Thresholds(tail_share=1.0)))
    assert "cutoff: none (all 8 layers)" in none
    assert "decided by layer mass: at 7 it is 30.0 %, above 25.0 %" in none
    first = recommendation(recommend([0.9, *[0.01] * 7], [0.9, *[0.01] * 7], FLAT))
    assert "cutoff: 1 of 8 layers" in first
    assert "decided by" not in first  # nothing stands in the way of less


def test_sinks_windows_and_missing_figures_are_shown_and_drawn(tmp_path, capsys):
    layers = (
        LayerFigures(0, 0.5, 0.1, 0.1, 0.1, 0.2, 3.0, 0.6, 0.2, 0.0),
        LayerFigures(1, 0.0, 0.0, 0.6, 0.4, 0.0, None, None, 0.0, 1.0),
    )
    trajectory = (
        Trajectory(0, None, 100.0, None, 0.0),
        Trajectory(1, 90.0, 95.0, None, 5.0),
        Trajectory(2, 80.0, 95.0, None, 5.0),
    )
    curvature = {"prompt": [None, 90.0], "decode": [100.0, 95.0]}
    found = Diagnosis(1, 4, layers, trajectory, recommend([0.5, 0.0], [0.2, 0.0], curvature))
    console().print(diagnosis_view(found, "m"))
    shown = capsys.readouterr().out
    assert "sinks" in shown
    assert "skipped" in shown
    second = "0.0 0.0 60.0 40.0 0.0 - - 0.0 100.0 90.0 95.0 - 5.0"
    assert rows_of(shown)["1"] == second.split()
    plot_diagnosis(tmp_path / "plot.png", found, "m")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")

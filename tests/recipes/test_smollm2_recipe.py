"""The conversations that SmolLM2's parts are trained on: answers stand in the texts, wordings in no task."""

import json
import lzma
import random
import re
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from cyclopts import CycloptsError
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[2]))
facts = pytest.importorskip("recipes.smollm2.facts")
from recipes.smollm2 import conversations as said  # noqa: E402
from recipes.smollm2 import curves, parts, report  # noqa: E402

from winnow import LLM  # noqa: E402
from winnow.cli.main import app  # noqa: E402
from winnow.errors import InputError  # noqa: E402
from winnow.tasks import words  # noqa: E402
from winnow.tasks.haystack import Haystack, bundled_haystack  # noqa: E402

TASKS = Path(said.__file__).parents[2] / "src" / "winnow" / "tasks"


@pytest.fixture(scope="module")
def halves():
    sentences = bundled_haystack().sentences
    return Haystack(sentences[:3000]), Haystack(sentences[3000:6000])


@pytest.fixture(scope="module")
def tokenizer():
    return LLM("needle").tokenizer


def test_no_task_has_the_wordings_or_the_names():
    """Four words in a row of any statement or question are in no task's source, and no name in its lists."""
    source = " ".join(" ".join(path.read_text().split()) for path in TASKS.rglob("*.py")).lower()
    asked = [said.GO_ON, said.WHICH, said.BEGUN, said.BEHIND]
    for kind in (*facts.KINDS, facts.INSCRIBED):
        asked += [*kind.statements, *kind.questions, *filter(None, [kind.several])]
    for wording in asked:
        plain = re.sub(r"\{\w+\}", "|", wording.lower())
        runs = [part.split() for part in plain.split("|")]
        fours = {" ".join(run[at : at + 4]) for run in runs for at in range(len(run) - 3)}
        assert not any(each in source for each in fours), wording
    rng = random.Random(0)
    known = {each.lower() for each in (*words.NAMES, *words.CITIES, *words.NOUNS, *words.ADJECTIVES)}
    for _ in range(2000):
        assert known.isdisjoint(facts.new_name(rng, set()).lower().split())


def test_values_of_a_fact_stand_in_the_text_in_their_order(halves, tokenizer):
    several = 0
    for seed in range(40):
        rng, sentences = random.Random(seed), list(halves[0].sentences[:60])
        made, turns = said._facts(rng, sentences, halves[1], 4)
        text = "".join(made)
        assert [each for each in made if each in set(sentences)] == sentences  # nothing is lost
        assert len(turns) == 4
        for question, reply in turns:
            if "Name each" in question:
                values = reply[:-1].split(", ")
                who = re.search(r"at ([A-Z]\w+(?: [A-Z]\w+)?)\?|(?:for|to) ([A-Z]\w+(?: [A-Z]\w+)?)\?", question)
                name = who.group(1) or who.group(2)
                stated = [sentence for sentence in made if name in sentence]
                assert all(
                    re.search(rf"(?<!\w){re.escape(v)}(?!\w)", each) for v, each in zip(values, stated, strict=True)
                )
                several += 1
            else:
                assert any(value in text for value in re.findall(r"[\w:-]+", reply) if re.search(r"\d|^[a-z]+$", value))
    assert several > 5


def test_inscriptions_are_long_and_in_the_text(halves):
    for seed in range(20):
        made, turns = said._facts(random.Random(seed), list(halves[0].sentences[:60]), halves[1], 4, (facts.INSCRIBED,))
        for _, reply in turns:
            value = reply[:-1].removeprefix("One reads ")
            assert 14 <= len(value) <= 47
            assert re.fullmatch(r"[BCDFGHJKLMNPQRSTVWXZ0-9 ./:]+", value.upper())
            assert value in "".join(made)


@pytest.mark.parametrize("kind", ["_sentences", "_which"])
def test_what_is_asked_of_sentences_is_in_the_text(kind, halves):
    rng, sentences = random.Random(1), list(halves[0].sentences[:80])
    kept, turns = getattr(said, kind)(rng, sentences, halves[1], 6)
    text = " ".join("".join(kept).split())
    assert kept == sentences
    assert len(turns) == 6
    for question, reply in turns:
        if kind == "_which":
            options = [line for line in question.splitlines() if re.match(r"\d\) ", line)]
            assert [each for each in options if each[3:] in text] == [reply]
        else:
            assert reply in text
            assert reply not in question


def test_lengths_and_seeds(halves, tokenizer, tmp_path):
    """As long as asked for within a tenth, on average; a seed writes the same again, and a longer file begins so."""
    for name in said.CHARACTERS:
        with lzma.open(tmp_path / f"{name}.txt.xz", "wt") as file:
            file.write("".join(f"{''.join(half.sentences)}\n<|endoftext|>\n" for half in halves))
    mix = replace(said.TRAINED, length=(700, 900))
    for name, count in (("few", 6), ("more", 12)):
        out = tmp_path / f"{name}.jsonl"
        said.write_conversations(tmp_path, out, tokenizer, count=count, seed=3, mix=mix)
    few, more = (tmp_path / f"{name}.jsonl" for name in ("few", "more"))
    assert more.read_text().startswith(few.read_text())
    tokens = []
    for line in more.read_text().splitlines():
        [messages] = json.loads(line).values()  # no teacher
        assert [each["role"] for each in messages] == ["user", "assistant"] * (len(messages) // 2)
        assert all(each["content"].strip() for each in messages)
        tokens.append(sum(len(tokenizer(each["content"])["input_ids"]) for each in messages))
    assert 0.85 * 700 < sum(tokens) / len(tokens) < 1.1 * 900
    with lzma.open(tmp_path / "docs.txt.xz", "wt") as file:
        file.write("Short.\n<|endoftext|>\n")
    with pytest.raises(InputError, match=r"docs.txt.xz holds 0 documents of 18,000 characters; give at least 2"):
        said.write_conversations(tmp_path, tmp_path / "none.jsonl", tokenizer, count=1, seed=3, mix=mix)


def test_what_goes_on_is_all_that_some_learn_from(halves, tokenizer):
    for seed in range(5):
        _, [(asked, rest)] = said.draw_turns(random.Random(seed), *halves, tokenizer, said.CONTINUED)
        assert asked.startswith(said.GO_ON)
        assert 0.7 < len(tokenizer(rest)["input_ids"]) / said.CONTINUED.continued < 1.1


def test_texts_that_go_on_may_be_taught_by_the_model_as_it_is(halves, tokenizer, tmp_path):
    for name in said.CHARACTERS:
        with lzma.open(tmp_path / f"{name}.txt.xz", "wt") as file:
            file.write("".join(f"{''.join(half.sentences)}\n<|endoftext|>\n" for half in halves))
    mix = replace(said.BOTH, length=(700, 900), continued=60)
    said.write_conversations(tmp_path, tmp_path / "out.jsonl", tokenizer, count=16, seed=0, mix=mix)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    by_base = [row.get("teacher") == "base" for row in rows]
    assert by_base == [any(said.GO_ON in each["content"] for each in row["messages"]) for row in rows]
    assert 0 < sum(by_base) < 16
    assert all(len(row["messages"]) == 2 for row, by in zip(rows, by_base, strict=True) if by)


def test_parts_are_trained_each_over_its_own_and_once(tmp_path, capsys):
    texts = [bundled_haystack().sentences[at : at + 12] for at in (0, 20, 40)]
    asked = [[{"role": "user", "content": "".join(text)}, {"role": "assistant", "content": "Yes."}] for text in texts]
    for name in ("train", "held-out"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps({"messages": turns}) for turns in asked))
    heads = parts.Part("heads", "locret --width 4 --adapter {long}", 2)
    long = parts.Part("long", "speed --cutoff 1.0 --batch 1 --lora.rank 1 --lora.targets q_proj", 1)
    (tmp_path / "out" / "long").mkdir(parents=True)
    (tmp_path / "out" / "long" / "log.jsonl").touch()  # stopped before its first checkpoint

    def train(*asked):
        assert parts.train(asked, tmp_path, tmp_path / "out", "needle", None, 2) is None
        return capsys.readouterr().out

    said_first = train(heads, long)
    assert said_first.index("long: done") < said_first.index("winnow train locret")
    assert json.loads((tmp_path / "out" / "heads" / "winnow.json").read_text())["result"]
    made = [next((tmp_path / "out" / name).glob("*.safetensors")) for name in ("long", "heads")]
    halves = [path.read_bytes() for path in made]
    assert {each.dtype for path in made for each in load_file(path).values()} == {torch.bfloat16}
    save_file({name: each.float() for name, each in load_file(made[0]).items()}, made[0])  # stopped just before that
    assert "speed" not in train(heads, long)  # both are there
    assert [path.read_bytes() for path in made] == halves
    records = report.read(tmp_path / "out")
    assert [(each["part"], each["result"]["steps"]) for each in records] == [("long", 1), ("heads", 2)]
    assert report.markdown(records).count("loss") == 3  # of the heads before they learnt nothing is known
    report.plot(records, tmp_path / "training.png")
    assert (tmp_path / "training.png").stat().st_size > 5000
    steps = [{"step": 0, "held_out": {"loss": 1.0, "kl": 0.5}}, {"step": 1, "kl": 0.4}]
    taught = {**records[0], "teacher": "long", "result": records[0]["result"] | steps[0], "log": steps}
    assert "loss 1.000, KL 0.500" in report.markdown([taught])
    report.plot([taught, *records], tmp_path / "both.png")
    assert (tmp_path / "both.png").stat().st_size > (tmp_path / "training.png").stat().st_size
    broken = parts.Part("broken", "locret --width -1", 1)
    assert parts.train([broken, heads], tmp_path, tmp_path / "out", "needle", None, 1) is broken


def test_every_part_is_a_command_of_train(tmp_path):
    """Its options are known, and what it needs comes before it."""
    seen = set()
    for part in parts.PARTS:
        assert part.needs <= seen
        seen.add(part.name)
        told = parts.command(part, tmp_path, tmp_path, "smollm2", None)
        _, bound, _ = app.parse_args(told, exit_on_error=False, print_error=False)
        assert bound.arguments
    named = {part.name: part for part in parts.PARTS}
    for name, begin, teacher, data in (
        ("speed-23-taught", "speed-23", str(tmp_path / "long"), "taught"),
        ("speed-23-text", "speed-23-taught", "base", "continued"),
        ("speed-23-both", "speed-23-taught", str(tmp_path / "long"), "both"),
    ):
        told = parts.command(named[name], tmp_path, tmp_path, "smollm2", None)
        given = dict(pairwise(told))
        assert (given["--begin"], given["--teacher"]) == (str(tmp_path / begin), teacher)
        assert str(tmp_path / f"{data}.jsonl") in told
    with pytest.raises(CycloptsError):
        app.parse_args([*told, "--other", "1"], exit_on_error=False, print_error=False)


def test_curves_lie_over_shares_in_their_order_and_an_eighth_is_on_both(tmp_path):
    arms = [
        each["plan"]
        for each in json.loads((Path(curves.__file__).parents[1] / "quality/locret-curves.json").read_text())["arms"]
    ]
    at = {"mean": 0.1, "low": 0.05, "high": 0.2}
    rows = [{"arm": arm, "task": "all", "domain": "all", "difference": at, "kl": at} for arm in ["full", *arms]]
    over = curves.curves(rows)
    doubled = [Fraction(1, 32), Fraction(1, 16), Fraction(1, 8), Fraction(1, 4)]
    assert [share for share, _ in over["budget"]] == doubled
    staying = [0, Fraction(1, 64), Fraction(1, 32), Fraction(1, 16), Fraction(3, 32)]
    assert [share for share, _ in over["stabilizers"]] == staying
    assert over["stabilizers"][2][1] is over["budget"][2][1]  # a quarter of the budget, which is where nothing is said
    curves.plot({"scores": rows, "windows": rows}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000

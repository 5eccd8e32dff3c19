"""Tasks over real data, here on tiny files of the same format."""

import gzip
import json
import random
import re

import pytest

from winnow.errors import InputError
from winnow.tasks import TASKS, render, task
from winnow.tasks.long_document import BEGIN, END
from winnow.tasks.nq_multidoc import INSTRUCTION

REAL = ("nq_multidoc", "hotpotqa", "babi", "covid_qa", "squality", "qmsum", "banking77", "gsm8k")
DEPTHS = (0.0, 0.5, 1.0)


def sentences(of, count):
    return " ".join(f"Sentence {i} of {of} says nothing at all." for i in range(count))


def passage(i):
    return {"id": i, "title": f"Title {i}", "text": f"The {'capital is Oslo' if i in (3, 90) else f'number is {i}'}."}


NQ = {"question": "what is the capital", "answers": ["OSLO", "Christiania"], "gold_passage_id": 3}
HOTPOT = [
    {
        "question": f"who met {i}",
        "answer": f"Person {i}",
        "supporting_facts": [[f"First {i}", 0], [f"Second {i}", 1]],
        "documents": [
            {"title": f"{name} {i}", "text": f"About {name} {i}."}
            for name in ("Third", "First", "Fourth", "Second", "Fifth")
        ],
    }
    for i in range(40)
]
BABI = {
    "task": "qa2",
    "question": "Where is the milk?",
    "answer": "kitchen",
    "facts": ["Ann took the milk.", "Bob slept.", "Ann went to the kitchen.", "Bob woke."],
    "supporting": [0, 2],
}
COVID = {"document": "a x b", "questions": [{"question": "which?", "answers": ["x"]}]}
FILES = {
    "multidoc_qa/passages.jsonl.gz": [passage(i) for i in range(100)],
    "multidoc_qa/nq_questions.jsonl.gz": [NQ | {"distractor_ids": [10, 11, 12]}],
    "multidoc_qa/hotpotqa_100.jsonl.gz": HOTPOT,
    "babi/babi_test_a.jsonl.gz": [BABI, BABI | {"task": "qa17"}],
    "longdoc_qa/covid_qa.jsonl.gz": [
        {
            "document": f"{sentences(i, 60)} The dose was {i} mg. {sentences(i, 60)}",
            "questions": [{"question": "Which dose?", "answers": [f"{i} mg"]}],
        }
        for i in (501, 502)
    ],
    "longdoc_qa/squality.jsonl.gz": [
        {"document": sentences(name, 100), "questions": [{"question": "Plot?", "references": ["All is well.", "No."]}]}
        for name in ("one", "two")
    ],
    "longdoc_qa/qmsum_val.jsonl.gz": [
        {
            "id": name,
            "document": sentences(name, 100),
            "general": [],
            "specific": [{"question": "What?", "answer": "Rain."}],
        }
        for name in ("one", "two")
    ],
    "many_shot/banking77_train.jsonl.gz": [
        {"text": f"My {label} {i}", "label": f"{label}_lost"} for label in ("card", "pin", "app") for i in range(60)
    ],
    "many_shot/banking77_test.jsonl.gz": [{"text": "Where is my card?", "label": "card_lost"}],
    "math/gsm8k_train.jsonl.gz": [
        {"question": f"{i} plus 1?", "answer": f"{i} and 1 is <<{i}+1={i + 1}>>{i + 1}.\n#### {i + 1}"}
        for i in range(99)
    ],
    "math/gsm8k_test_a.jsonl.gz": [{"question": "999 plus 1?", "answer": "It is <<999+1=1000>>1000.\n#### 1,000"}],
}


def write(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(record if isinstance(record, str) else json.dumps(record) + "\n" for record in records)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, records in FILES.items():
        write(folder / name, *records)
    return folder


def build(name, data, tokenizer, tokens=800, seed=0, depth=0.5):
    return task(name, data=data).example(random.Random(seed), tokens=tokens, tokenizer=tokenizer, depth=depth)


@pytest.mark.parametrize("name", REAL)
def test_examples_are_seeded_nearly_full_and_never_too_long(name, data, tokenizer):
    for tokens in (500, 900):
        for seed in range(3):
            example = build(name, data, tokenizer, tokens, seed, depth=None)
            assert example == build(name, data, tokenizer, tokens, seed, depth=None)
            assert tokens - 60 < len(render(example, tokenizer)) <= tokens


@pytest.mark.parametrize("name", REAL)
def test_the_reply_scores_full_and_fits_its_tokens(name, data, tokenizer):
    example = build(name, data, tokenizer)
    assert task(name, data=data).score(example, example.reply) == 1
    assert len(tokenizer(example.reply)["input_ids"]) < example.max_tokens
    assert task(name, data=data).score(example, "Unknown") == task(name, data=data).score(example, "") == 0


@pytest.mark.parametrize("name", REAL)
def test_too_few_tokens_name_what_is_needed(name, data, tokenizer):
    with pytest.raises(InputError, match="20 tokens are too few"):
        build(name, data, tokenizer, 20)


def test_banking_options_have_shots_the_right_one_among_them_and_no_header(data, tokenizer):
    asked = task("banking77_options", data=data, options=2)
    example = asked.example(random.Random(0), tokens=500, tokenizer=tokenizer)
    assert set(example.options) == set(re.findall(r"Intent: (\S+)", example.context))
    assert [asked.score(example, option) for option in sorted(example.options, key="card_lost".__eq__)] == [0, 1]
    assert tokenizer.decode(render(example, tokenizer)) == example.prompt
    assert example.prompt.endswith("Message: Where is my card?\nIntent:")
    for options, said in ((1, "at least 2"), (9, "more than the 3 intents")):
        with pytest.raises(InputError, match=said):
            task("banking77", data=data, options=options).example(random.Random(0), tokens=500, tokenizer=tokenizer)


@pytest.mark.parametrize("depth", DEPTHS)
def test_nq_has_its_gold_passage_at_the_depth_and_all_distractors(depth, data, tokenizer):
    example = build("nq_multidoc", data, tokenizer, 700, depth=depth)
    documents = example.context.removeprefix(INSTRUCTION + "\n\n").split("\n")
    (gold,) = [i for i, text in enumerate(documents) if "Oslo" in text]  # passage 90 has the answer and stays out
    assert gold == round(depth * (len(documents) - 1))
    assert example.depths[0] == pytest.approx(depth, abs=0.03)
    assert documents[1].startswith("Document [2](Title: ")
    assert all(f"(Title: Title {i}) " in example.context for i in (10, 11, 12))
    assert task("nq_multidoc", data=data).score(example, "I say christiania!") == 1


def test_documents_that_run_out_are_an_error(data, tokenizer):
    with pytest.raises(InputError, match="the data has 99"):
        build("nq_multidoc", data, tokenizer, 9000)


def test_hotpotqa_has_both_paragraphs_and_its_own_distractors_first(data, tokenizer):
    example = build("hotpotqa", data, tokenizer, 400)
    number = example.references[0].split()[1]
    assert all(
        f"Title: {name} {number})" in example.context for name in ("First", "Second", "Third", "Fourth", "Fifth")
    )
    assert example.context.count("Title: ") > 8
    assert example.context.count(f" {number})") == 5
    assert task("hotpotqa", data=data).score(example, f"Person {number} and more") == pytest.approx(2 * 2 / 6)


@pytest.mark.parametrize("depth", DEPTHS)
def test_babi_keeps_the_order_and_puts_the_last_support_at_the_depth(depth, data, tokenizer):
    example = build("babi", data, tokenizer, 900, depth=depth)
    places = [example.context.index(fact) for fact in BABI["facts"]]
    assert places == sorted(places)
    assert example.depths[0] == pytest.approx(depth, abs=0.1)
    assert places[2] / len(example.context) == pytest.approx(example.depths[0], abs=0.08)
    score = task("babi", data=data).score
    assert score(example, "In the Kitchen.\nBob") == 1
    assert score(example, "kitchenette") == score(example, "Bob. The kitchen") == 0
    with pytest.raises(InputError, match="no record of the tasks qa9"):
        task("babi", data=data, tasks=("qa9",)).example(random.Random(0), tokens=900, tokenizer=tokenizer)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("tokens", [400, 6000])
def test_covid_qa_keeps_the_answer_where_it_says(tokens, depth, data, tokenizer):
    example = build("covid_qa", data, tokenizer, tokens, depth=depth)
    assert example.context.count(example.answers[0]) == 1
    place = example.context.index(example.answers[0]) / (len(example.context) - len(example.answers[0]))
    assert example.depths[0] == pytest.approx(place, abs=0.001)
    if tokens == 400:  # the article is cut around the answer
        assert place == pytest.approx(depth, abs=0.1)


def test_a_long_document_loses_its_middle_and_a_short_one_stands_among_others(data, tokenizer):
    cut = build("squality", data, tokenizer, 500).context
    name = cut.split("Sentence 0 of ")[1].split()[0]
    assert f"Sentence 99 of {name} says nothing at all.\n{END}" in cut
    assert f"Sentence 50 of {name}" not in cut
    whole = build("squality", data, tokenizer, 5000, depth=0.5).context
    inner = whole.split(BEGIN)[1].split(END)[0].strip()
    assert inner in [record["document"] for record in FILES["longdoc_qa/squality.jsonl.gz"]]
    assert len(whole.split(BEGIN)[0]) > 1000 < len(whole.split(END)[1])


def test_banking77_shows_every_intent_before_any_comes_again(data, tokenizer):
    example = build("banking77", data, tokenizer, 400)
    labels = [line.removeprefix("Intent: ") for line in example.context.split("\n") if line.startswith("Intent: ")]
    assert len(labels) > 9
    assert all(len(set(labels[i : i + 3])) == 3 for i in range(0, 9, 3))
    score = task("banking77", data=data).score
    assert score(example, " Card lost.\nMessage: more") == 1
    assert score(example, "pin_lost") == score(example, "card_lost_or_not") == 0


def test_gsm8k_takes_the_marked_number_or_the_last(data, tokenizer):
    example = build("gsm8k", data, tokenizer)
    assert "<<" not in example.prompt
    score = task("gsm8k", data=data).score
    for right in ("so #### 1000\nQuestion: 5?", "It is 1,000.", "= 1000.00 dollars", "#### 1,000 and 7"):
        assert score(example, right) == 1
    for wrong in ("#### 100 then 1000", "1000, no, 10", "Question: 1000"):
        assert score(example, wrong) == 0


@pytest.mark.parametrize(
    ("name", "file", "records", "message"),
    [
        ("squality", "squality.jsonl.gz", [{"document": "a"}], r"squality.jsonl.gz, line 1: no field 'questions'"),
        ("gsm8k", "gsm8k_train.jsonl.gz", [{"question": "a", "answer": "b"}, "{\n"], r"line 2: not JSON"),
        ("qmsum", "qmsum_val.jsonl.gz", [{"document": 7}], r"line 1: 'document' must be a str, not 7"),
        ("babi", "babi_test_a.jsonl.gz", [], r"holds no record"),
        ("babi", "babi_test_a.jsonl.gz", [BABI, BABI | {"supporting": [4]}], r"line 2: 'supporting' must be indices"),
        ("squality", "squality.jsonl.gz", [{"document": "a", "questions": []}], r"line 1: 'questions' must be a list"),
        ("covid_qa", "covid_qa.jsonl.gz", [COVID | {"document": "none"}], r"line 1: the answer 'x' is no part"),
        ("covid_qa", "covid_qa.jsonl.gz", [COVID | {"questions": [{"question": "a"}]}], r"with question and answers"),
        ("hotpotqa", "hotpotqa_100.jsonl.gz", [HOTPOT[0] | {"supporting_facts": [["No", 0]]}], r"name none"),
        ("hotpotqa", "hotpotqa_100.jsonl.gz", [HOTPOT[0] | {"supporting_facts": ["No"]}], r"\[title, sentence\]"),
        ("hotpotqa", "other.jsonl.gz", [], r"holds no hotpotqa_100.jsonl.gz"),
    ],
)
def test_bad_files_are_named_with_the_line(name, file, records, message, tmp_path, tokenizer):
    write(tmp_path / file, *records)
    with pytest.raises(InputError, match=message):
        build(name, tmp_path, tokenizer)


def test_the_tasks_are_registered():
    assert set(REAL) < set(TASKS)

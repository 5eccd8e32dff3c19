"""LongBench, InfiniteBench and L-Eval: files of their formats, prompts as published, scores worked out by hand."""

import gzip
import json
from importlib.util import find_spec

import pytest

from winnow.errors import CapacityError, InputError, MissingExtraError
from winnow.tasks.benchmarks import BENCHMARKS, fit, questions
from winnow.tasks.benchmarks.chinese import normalise_zh
from winnow.tasks.benchmarks.longbench import classification, code_similarity, rouge, share_of_numbers

LONG = {"input": "Who?", "context": "A {story}.", "answers": ["Ann Lee", "Bob"], "all_classes": None, "length": 3}
OPTIONS = ["one", "two", "three", "four"]
INFINITE = {"id": 0, "context": "TEXT", "input": "ASK", "answer": "7", "options": []}
EVAL = {"input": "DOC", "instructions": ["I1", "I2"], "outputs": ["two words", "x"], "evaluation": "f1", "source": "s"}


def write(path, *records):
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8") as file:
        file.writelines(each if isinstance(each, str) else json.dumps(each) + "\n" for each in records)


def ask(folder, benchmark, dataset, *records):
    write(folder / f"{dataset}.jsonl", *records)
    return questions(benchmark, folder, [dataset])


def infinite(folder, dataset, **fields):
    return ask(folder, "infinitebench", dataset, INFINITE | fields)[0]


def leval(folder, dataset, evaluation, output):
    record = EVAL | {"instructions": ["I"], "outputs": [output], "evaluation": evaluation}
    return ask(folder, "leval", dataset, record)[0]


def test_every_dataset_of_the_papers_is_there():
    assert {name: len(each.datasets) for name, each in BENCHMARKS.items()} == {
        "longbench": 21,
        "infinitebench": 12,
        "leval": 20,
    }


def test_longbench_prompts_are_those_published(tmp_path):
    (asked,) = ask(tmp_path, "longbench", "qmsum", LONG)
    assert asked.prompt == (
        "You are given a meeting transcript and a query containing a question or instruction. "
        "Answer the query in one or more sentences.\n\nTranscript:\nA {story}.\n\n"
        "Now, answer the query based on the above meeting transcript in one or more sentences.\n\nQuery: Who?\nAnswer:"
    )
    assert (asked.max_tokens, asked.chat, asked.references) == (512, True, ("Ann Lee", "Bob"))
    (plain,) = ask(tmp_path, "longbench", "lcc", LONG)
    assert (plain.prompt, plain.chat) == (
        "Please complete the code given below. \nA {story}.Next line of code:\n",
        False,
    )


def test_longbench_takes_the_best_answer_and_of_few_shot_tasks_the_first_line(tmp_path):
    (asked,) = ask(tmp_path, "longbench", "qasper", LONG)
    assert (asked.score("ann"), asked.score("Bob."), asked.score("Eve")) == (pytest.approx(2 / 3), 1, 0)
    (few,) = ask(tmp_path, "longbench", "triviaqa", LONG)
    assert few.score("\nBob\nPassage: more text") == 1
    assert asked.score("\nBob\nPassage: more text") < 1


def test_longbench_rouge_is_over_different_words_sentence_by_sentence():
    assert rouge("a b. c d", "a b. c d") == pytest.approx(1)
    # "c d" is found in the text's second sentence, "a b" in its first, whatever the order of the sentences.
    assert rouge("c d. a b", "a b. c d") == pytest.approx(1)
    assert rouge("a a a x", "a") == pytest.approx(2 * 0.5 / 1.5)  # one of two different words
    assert rouge("x a y", "a b") == pytest.approx(2 * (1 / 3) * (1 / 2) / (5 / 6))
    assert rouge("", "a") == rouge("...", "a") == 0


def test_longbench_classes_count_by_how_many_are_named():
    classes = ["Other number", "Number", "City", "Date"]
    assert classification(classes, "City", "City") == 1
    assert classification(classes, "City or Date", "City") == 0.5
    assert classification(classes, "Date", "City") == 0
    assert classification(["number", "Other number"], "Other number", "Other number") == 1  # a part of it is no rival


def test_longbench_numbers_and_code():
    assert share_of_numbers("Paragraph 3, not 5", "Paragraph 3") == 0.5
    assert share_of_numbers("30", "3") == share_of_numbers("none", "3") == 0
    assert share_of_numbers("段落12", "段落12") == 1
    assert code_similarity("\n# note\n```\nreturn x\nmore", "return x") == 1
    assert code_similarity("abcd", "abxx") == 0.5
    assert code_similarity("# only", "x") == 0


def test_infinitebench_prompts(tmp_path):
    choice = infinite(tmp_path, "longbook_choice_eng", options=OPTIONS, answer=["three"])
    assert choice.prompt == (
        "Read the book and answer the question.\n\nTEXT\n\nQuestion: ASK\nA. one\nB. two\nC. three\nD. four\n\n"
        "The letter of the correct answer is"
    )
    assert choice.references == ("three", "C")
    run = infinite(tmp_path, "code_run", input="Give the value of func_7(-12).", answer=5)
    assert run.prompt.endswith("Please compute the exact value of func_7(-12). The value of func_7(-12) is")
    assert run.prompt.startswith("There is a function called func_7 in")
    find = infinite(tmp_path, "math_find", input="Be brief. The largest number of the list is:", answer=9)
    assert find.prompt.startswith("What is the largest number in the following list?\n\nTEXT\n\nBe brief.")


@pytest.mark.parametrize(
    ("dataset", "fields", "right", "wrong"),
    [
        ("passkey", {"answer": ["71432"]}, [" 71432. 5"], ["5 71432", "no"]),
        ("number_string", {"answer": "123"}, ["123"], ["1234", ""]),
        ("kv_retrieval", {"answer": ["ab-cd"]}, ['{"k": "ab-cd"}'], ["ab-cde", "ab"]),
        ("longdialogue_qa_eng", {"answer": ["ANN"]}, ["ann: hello", "It is Ann."], ["Anna", ""]),
        ("code_run", {"answer": 5, "input": "func_1(2)"}, ["5", "= 5.", "is `5`"], ["5 or 6", "", "five"]),
        ("math_find", {"answer": 9, "input": "The largest number of it"}, ["9", "is 9, 8"], ["8 9", "x", "9.5"]),
        ("math_find", {"answer": 9.5, "input": "The median of it"}, ["9.5"], ["9"]),
        (
            "longbook_choice_eng",
            {"answer": "two", "options": OPTIONS},
            ["B", " B. two", "two", "The answer is B", "i say B"],
            ["A", "", "The answer is: A B", "none"],
        ),
        (
            "code_debug",
            {"answer": ["two"], "options": OPTIONS},
            ["B. two", "B: x", "The answer is: B", "correct option is: two"],
            ["A. one", "B", "answer:", ""],
        ),
        ("longbook_qa_chn", {"answer": ["张三。"]}, ["张三"], ["李四"]),
        ("longbook_qa_eng", {"answer": ["x y", "Ann"]}, ["The Ann"], ["z"]),
    ],
)
def test_infinitebench_scores(dataset, fields, right, wrong, tmp_path):
    asked = infinite(tmp_path, dataset, **fields)
    assert [asked.score(text) for text in right] == [1] * len(right)
    assert [asked.score(text) for text in wrong] == [0] * len(wrong)


def test_infinitebench_partial_scores(tmp_path):
    values = infinite(tmp_path, "math_calc", answer=[1, 4, 8, 9])
    assert (values.score("[1, 4, 7, 9]"), values.score("1 4 8 9 10"), values.score("4")) == (0.5, 1, 0)
    summary = infinite(tmp_path, "longbook_sum_eng", answer=["the cat sat\non the mat"])
    assert summary.score("On the mat\nThe cat sat") == 1  # lines are sentences, their order does not matter
    assert summary.score("cat cat cat") == pytest.approx(2 * 1 / (3 + 6))  # a word counts as often as both have it
    twice = infinite(tmp_path, "longbook_sum_eng", answer=["cat\ncat"])
    assert twice.score("cat") == pytest.approx(2 * 1 / (1 + 2))  # one word of the text answers one of the reference
    assert infinite(tmp_path, "longbook_qa_chn", answer=["张三丰"]).score("张三") == pytest.approx(0.8)
    assert normalise_zh("「张 三」， Ab!") == "张三ab"


def test_leval_prompts_and_records_for_judges(tmp_path):
    first, second = ask(tmp_path, "leval", "natural_question", EVAL, EVAL | {"evaluation": "LLM"})
    assert first.prompt.endswith("Document is as follows. DOC Instruction: I1 \nAnswer this question with 2 words.")
    assert second.prompt.endswith("Answer this question with 1 words.")
    assert first.score("two") == pytest.approx(2 / 3)
    assert leval(tmp_path, "gov_report_summ", "rouge", "a b c d").score("a c") == pytest.approx(2 / 3)
    with pytest.raises(InputError, match="no question that can be scored"):
        ask(tmp_path, "leval", "news_summ", EVAL | {"evaluation": "human"})
    closed = leval(tmp_path, "quality", "exam", "B")
    assert "only a sinlge correct option" in closed.prompt
    assert closed.prompt.endswith("without any additonal output or explanation \nAnswer:")
    assert leval(tmp_path, "gsm100", "exam", "7").prompt.endswith("The answer is _ . DOC\n\nI")


@pytest.mark.parametrize(
    ("dataset", "output", "scores"),
    [
        ("quality", "(B) because", {"B": 1, "It is B, not C": 1, "C": 0, "none": 0}),
        ("tpo", "A", {"none": 1}),  # published: an answer without a letter counts as A
        ("coursera", "AB", {"AB": 1, "BA": 1, "A. and B.": 1, "A": 0.25, "A. x C. y": 0, "C": 0}),
        ("gsm100", "The answer is 1,000.", {"The answer is 1000.": 1, "it is $1,000.50": 1, "we get 10": 0, "": 0}),
        (
            "codeU",
            "[1, 2]",
            {"the final output is [1,2]": 1, "it is [1, 2]": 1, "3": 0},
        ),
        ("topic_retrieval_longchat", "The role of art", {"the role of art.": 1, "role": 0}),
    ],
)
def test_leval_exact_match(dataset, output, scores, tmp_path):
    asked = leval(tmp_path, dataset, "exam", output)
    assert {text: asked.score(text) for text in scores} == scores


def test_leval_science_fiction_asks_about_the_story_and_about_the_world(tmp_path):
    record = EVAL | {"evaluation": "exam", "outputs": ["True [fact: False]"]}
    record["instructions"] = ["Is it so, based on the world described in the document."]
    story, world = ask(tmp_path, "leval", "sci_fi", record)
    assert "DOC" in story.prompt
    assert world.prompt == (
        "Is it so, based on the real-world knowledge and facts up until your last training\nAnswer:"
    )
    assert (story.score("It is true"), story.score("FALSE, not true"), story.score("yes")) == (1, 0, 0)
    assert (world.score("False."), world.score("True")) == (1, 0)


def test_a_prompt_too_long_loses_its_middle(tmp_path, tokenizer):
    words = [f"word{i}" for i in range(400)]
    (chat,) = ask(tmp_path, "longbench", "qasper", LONG | {"context": " ".join(words)})
    (plain,) = ask(tmp_path, "longbench", "lcc", LONG | {"context": " ".join(words)})
    for asked in (chat, plain):
        whole, before = fit(asked, tokenizer, 100_000)
        assert len(whole) == before
        ids, same = fit(asked, tokenizer, 500)
        text = tokenizer.decode(ids)
        assert same == before
        assert 480 < len(ids) <= 500
        assert asked.prompt[:40] in text
        assert asked.prompt[-20:] in text
        assert "word200 " not in text
    half = tokenizer(plain.prompt, add_special_tokens=False)["input_ids"][:250]
    assert fit(plain, tokenizer, 500)[0][:240] == half[:240]
    with pytest.raises(CapacityError, match="3 prompt tokens leave no room"):
        fit(chat, tokenizer, 3)


def test_all_datasets_with_a_file_are_taken_in_the_order_of_the_paper(tmp_path):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "qmsum.jsonl", LONG)
    write(tmp_path / "qasper.jsonl.gz", LONG, LONG)
    assert [asked.dataset for asked in questions("longbench", tmp_path)] == ["qasper", "qasper", "qmsum"]
    assert [asked.dataset for asked in questions("longbench", tmp_path, ["qmsum"])] == ["qmsum"]


@pytest.mark.parametrize(
    ("benchmark", "dataset", "record", "message"),
    [
        ("longbench", "qasper", {"input": "a"}, r"qasper.jsonl, line 2: no field 'context'"),
        ("longbench", "qasper", "{oops\n", r"qasper.jsonl, line 2: not JSON"),
        ("longbench", "qasper", LONG | {"answers": "Ann"}, r"line 2: 'answers' must be a list"),
        ("longbench", "passage_retrieval_en", LONG, r"line 2: no paragraph number"),
        ("infinitebench", "longbook_choice_eng", INFINITE | {"options": OPTIONS}, r"line 2: 'options' must be four"),
        ("infinitebench", "code_run", INFINITE, r"line 2: 'input' names no call"),
        ("infinitebench", "math_find", INFINITE, r"line 2: 'input' asks for no number"),
        (
            "infinitebench",
            "math_find",
            INFINITE | {"input": "The largest number of it"},
            r"line 2: 'answer' must be num",
        ),
        ("infinitebench", "passkey", INFINITE | {"input": 5}, r"line 2: 'input' must be a text"),
        ("longbench", "qasper", LONG | {"all_classes": [5]}, r"line 2: 'all_classes' must be a list of texts"),
        ("leval", "quality", EVAL | {"outputs": [7, 8]}, r"line 2: instructions and outputs must be texts"),
        ("leval", "quality", EVAL | {"outputs": []}, r"line 2: 'instructions' and 'outputs' must be"),
        ("leval", "news_summ", EVAL | {"evaluation": "bleu"}, r"line 2: 'evaluation' is 'bleu'"),
        ("leval", "sci_fi", EVAL, r"line 2: an output must be like"),
    ],
)
def test_malformed_lines_are_named(benchmark, dataset, record, message, tmp_path):
    good = {
        "longbench": LONG | {"answers": ["Paragraph 1"]},
        "infinitebench": INFINITE | {"options": [*OPTIONS[:3], "7"], "input": "func_1(2): The largest number of it"},
        "leval": EVAL | {"outputs": ["True [fact: False]"] * 2},
    }[benchmark]
    if dataset in ("code_run", "math_find"):
        good |= {"answer": 7}
    with pytest.raises(InputError, match=message):
        ask(tmp_path, benchmark, dataset, good, record)


def test_unknown_names_and_missing_files_are_refused(tmp_path):
    for arguments, message in (
        (("longbrench", tmp_path), "no benchmark is called 'longbrench'; there are longbench"),
        (("longbench", tmp_path, ["passkey"]), "longbench has no dataset 'passkey'"),
        (("longbench", tmp_path, ["qasper"]), r"holds no qasper\.jsonl"),
        (("longbench", tmp_path), r"holds no file of longbench, such as narrativeqa\.jsonl"),
        (("longbench", tmp_path / "no"), "is not a directory"),
    ):
        with pytest.raises(InputError, match=message):
            questions(*arguments)


@pytest.mark.skipif(find_spec("jieba") is not None, reason="jieba is installed")
def test_chinese_words_need_jieba(tmp_path):
    with pytest.raises(MissingExtraError, match="install jieba, or leave it out"):
        ask(tmp_path, "longbench", "dureader", LONG)

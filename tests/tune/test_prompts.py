import json

import pytest

from tiny import tiny_model
from winnow import LLM
from winnow.errors import InputError
from winnow.evaluation.evaluate import Case
from winnow.tasks import Example
from winnow.tune.prompts import digest, own_cases, read_prompts, split


def case(task, index, length=100):
    return Case(task, length, index, None, Example("", "", "", (), (), 8), [index] * length, None)


def test_a_directory_holds_a_prompt_a_file(tmp_path):
    (tmp_path / "b.txt").write_text("two\n", encoding="utf-8")
    (tmp_path / "a.md").write_text("one", encoding="utf-8")
    (tmp_path / "c.png").write_bytes(b"\x89PNG")
    assert [each.text for each in read_prompts(tmp_path)] == ["one", "two"]


def test_json_lines_of_both_shapes(tmp_path):
    path = tmp_path / "p.jsonl"
    rows = [
        {"prompt": "one"},
        {"context": "two", "question": "what?", "answer": "2"},
        {"prompt": "x", "answer": ["a", "b"]},
    ]
    path.write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = read_prompts(path)
    assert [each.text for each in found] == ["one", "two\n\nwhat?", "x"]
    assert [each.answers for each in found] == [(), ("2",), ("a", "b")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 is not JSON"),
        ("[]", "line 2 must be"),
        ('{"context": "a"}', "line 2 must be"),
        ('{"prompt": " "}', "line 2: the prompt is empty"),
        ('{"prompt": "a", "answer": 3}', "line 2: answer=3"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, said):
    path = tmp_path / "p.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_prompts(path)


def test_empty_files_and_directories_are_refused(tmp_path):
    with pytest.raises(InputError, match="holds no prompt"):
        read_prompts(tmp_path)
    (tmp_path / "a.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a.txt: the prompt is empty"):
        read_prompts(tmp_path)
    (tmp_path / "p.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(InputError, match="holds no prompt"):
        read_prompts(tmp_path / "p.jsonl")
    with pytest.raises(InputError, match="cannot read"):
        read_prompts(tmp_path / "none.jsonl")


def test_prompts_beyond_the_positions_are_left_out(tmp_path):
    model = tiny_model()
    model.config.max_position_embeddings = 20
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"prompt": "a" * n}) + "\n" for n in (17, 18, 5)), encoding="utf-8")
    prompts = read_prompts(path)
    made = own_cases(LLM(model), prompts, lambda text: [5] * len(text), 4)
    assert [len(each.ids) for each in made] == [17, 5]
    with pytest.raises(InputError, match="all 3 prompts are too long: the shortest has 5"):
        own_cases(LLM(model), prompts, lambda text: [5] * len(text), 17)


def test_the_parts_share_no_prompt_and_hold_every_task():
    cases = [case("a", i) for i in range(5)] + [case("b", i) for i in range(3)] + [case("a", i, 200) for i in range(2)]
    parts = split(cases, seed=1)
    assert sorted(parts.search + parts.confirmation) == list(range(10))
    assert len(parts.search) == len(parts.confirmation) == 5
    for part in (parts.search, parts.confirmation):
        assert {(cases[i].task, cases[i].length) for i in part[:3]} == {("a", 100), ("b", 100), ("a", 200)}
    assert split(cases, seed=1) == parts != split(cases, seed=2)


def test_three_prompts_are_too_few():
    with pytest.raises(InputError, match="3 prompts are too few"):
        split([case("a", i) for i in range(3)], seed=0)


def test_the_digest_depends_on_every_token_and_on_the_answer_length():
    cases = [case("a", i) for i in range(2)]
    assert digest(cases) == digest([case("b", i) for i in range(2)])
    assert digest(cases) != digest(cases[::-1])

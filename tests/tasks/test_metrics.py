"""Scores of free-form answers, by hand."""

import pytest

from winnow.tasks.metrics import best, contains, lcs_indices, normalise, qa_f1, rouge_l


def test_normalised_text_has_no_case_punctuation_articles_or_surplus_space():
    assert normalise(" The  cat's, an A-team; theory\n") == "cats ateam theory"


@pytest.mark.parametrize(
    ("text", "reference", "score"),
    [
        ("The Eiffel Tower.", "eiffel tower", 1),
        ("in Paris, France", "Paris", 0.5),  # precision 1/3, recall 1
        ("one one two", "one two two", 2 / 3),  # a repeated word counts as often as both have it
        ("London", "Paris", 0),
        ("", "Paris", 0),
    ],
)
def test_f1_over_words(text, reference, score):
    assert qa_f1(text, reference) == pytest.approx(score)


def test_contains_and_best():
    assert contains("It was the James Rodriguez, I think.", "James rodriguez") == 1
    assert contains("It was James.", "James Rodriguez") == 0
    assert best(contains, "Paris", ["London", "paris"]) == 1
    assert best(contains, "Paris", []) == 0


@pytest.mark.parametrize(
    ("text", "reference", "score"),
    [
        # The example of the ROUGE paper (Lin 2004), section 3.1: "police kill the gunman" shares "police the gunman".
        ("police kill the gunman", "police killed the gunman", 3 / 4),
        ("the gunman kill police", "police killed the gunman", 2 / 4),
        ("Police... KILLED the gunman!", "police killed the gunman", 1),
        ("a b c d", "a c", 2 * 2 / 6),
        ("", "a", 0),
        ("...", "a", 0),
    ],
)
def test_rouge_l_is_over_the_longest_common_subsequence(text, reference, score):
    assert rouge_l(text, reference) == pytest.approx(score)


def test_a_longest_common_subsequence_is_found_by_its_places():
    assert lcs_indices(["a", "b", "c", "b", "d"], ["b", "d", "c", "a", "b"]) == [1, 2, 3]
    assert lcs_indices(["x", "a", "y", "b"], ["a", "b"]) == [1, 3]
    assert lcs_indices([], ["a"]) == []
    assert lcs_indices(["a", "b"], ["b", "a"]) == [1]
    assert lcs_indices(["a", "b"], ["b", "a"], up=True) == [0]

"""`winnow diagnose patterns`: the file that it writes is what `minference(heads=...)` reads."""

from winnow.runtime.head_patterns import FILE


def test_from_a_text_to_a_plan(winnow, tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "heads"
    text.write_text("The ship left the harbour early, and the captain kept the log himself. " * 40, encoding="utf-8")
    result = winnow("diagnose", "patterns", "--file", text, "--out", out, "--json")
    assert (result.code, result.json["files"]) == (0, [FILE]), result.err
    assert (out / FILE).is_file()
    run = winnow("run", "--file", text, "--max-tokens", 2, "--plan", f"minference(heads={str(out)!r})")
    assert run.code == 0, run.err


def test_without_a_text_there_is_nothing_to_search(winnow, tmp_path):
    result = winnow("diagnose", "patterns", "--out", tmp_path)
    assert (result.code, "give one with --file" in result.err) == (2, True)

import math

STREAMING = "streaming(sink=4, recent=64)"


def test_scores_by_task_with_interval_and_depth(winnow, tiny, tmp_path):
    flags = ("--task", "passkey", "--task", "kv", "--length", 512, "--depth", 0.1, "--depth", 0.9, "--examples", 2)
    png = tmp_path / "depths.png"
    document = winnow("eval", "-m", tiny, "-p", "full", "-p", STREAMING, *flags, "--plot", png, "--json").json
    assert [(each["task"], each["plan"], each["examples"]) for each in document["accuracy"]] == [
        ("passkey", "full", 4),
        ("passkey", STREAMING, 4),
        ("kv", "full", 4),
        ("kv", STREAMING, 4),
    ]
    for each in document["accuracy"]:
        assert 0 <= each["low"] <= each["score"] <= each["high"] <= 1
        assert [point["depth"] for point in each["by_depth"]] == [0.1, 0.9]
    assert png.read_bytes().startswith(b"\x89PNG")


def test_the_default_plan_is_full_attention(winnow, tiny):
    result = winnow("eval", "-m", tiny, "--task", "passkey", "--length", 400, "--depth", 0.5, "--examples", 1)
    assert "full" in result.out
    assert "passkey" in result.out


def test_fidelity_and_perplexity_agree_about_full_attention(winnow, tiny, document):
    flags = ("eval", "-m", tiny, "--tokens", 200, "--json")
    measured = winnow(*flags, "--fidelity", document, "--prompt-tokens", 1, "-p", "full", "-p", STREAMING).json
    same, other = measured["fidelity"]
    assert (same["tokens"], same["top1"]) == (199, 1.0)
    assert same["kl"] < 1e-5 < other["kl"]
    found = winnow(*flags, "--perplexity", document).json["perplexity"][0]
    assert math.isclose(found["nll"], same["nll_full"], rel_tol=1e-5)
    assert math.isclose(found["nll"], other["nll_full"], rel_tol=1e-5)


def test_fidelity_is_shown_as_a_table(winnow, tiny, document):
    result = winnow("eval", "-m", tiny, "--tokens", 40, "--fidelity", document, "-p", STREAMING)
    assert STREAMING in result.out
    assert "top-1" in result.out

"""`winnow diagnose needles`."""

import json


def test_figures_picture_and_bad_input(winnow, tmp_path):
    out, plot = tmp_path / "found.json", tmp_path / "found.png"
    result = winnow(
        "diagnose", "needles", "-m", "needle", "-t", "number", "-l", 600, "-n", 2, "--voters", 8, "--kernel", 5,
        "--out", out, "--plot", plot,
    )  # fmt: skip
    assert result.code == 0, result.err
    told = json.loads(out.read_text())
    assert (told["prompts"], told["ranks"], len(told["layers"])) == (2, {"voters": 8, "kernel": 5, "before": 7}, 8)
    assert ("is the first to find it" in result.out) == (told["first"] is not None)
    assert told["finds"] == 1
    assert [share > 0.5 for share in told["repeated"]] == [layer == 1 for layer in range(8)]
    assert "By default the gates of lazyllm, static_prune and fastkv stand above layer 1 at the lowest" in " ".join(
        result.out.split()
    )
    assert plot.read_bytes()[:4] == b"\x89PNG"
    for arguments, message in (
        (("-l", 600, "-l", 700), "takes one --length"),
        (("-l", 600, "--kernel", 4), "kernel=4 must be odd"),
    ):
        result = winnow("diagnose", "needles", "-m", "needle", "-t", "number", *arguments)
        assert (result.code, message in result.err) == (2, True)

"""`python -m benchmarks replicas`: two processes of a tiny model, one of which is killed."""

import json

from benchmarks.replicas_command import COLUMNS

from command_line import MADE_BY


def test_table_and_json(bench, tiny, tmp_path):
    out = tmp_path / "replicas.json"
    result = bench("replicas", "-m", tiny, "--streams", 4, "--new", 800, "--out", out)
    assert result.code == 0, result.err
    told = json.loads(out.read_text(encoding="utf-8"))
    assert (told["command"], told["complete"]) == ("replicas", True)
    assert told.keys() >= MADE_BY
    assert str(tmp_path.parent) not in json.dumps(told)
    assert told["model"] == tiny.name  # and not where it lies
    before, after = told["summary"]
    assert (before["complete"], before["gone_on"]) == (4, 0)
    assert (after["complete"], after["identical"]) == (4, 4)
    assert after["gone_on"] > 0
    assert all(heading.split("\n")[0] in result.out for heading in COLUMNS)

"""`python -m benchmarks fidelity` on a small directory of texts."""

import gzip
import json

import pytest
from benchmarks.texts import SOURCES

from benchmarks import fidelity_command as command
from command_line import MADE_BY

FLAGS = ("-l", 120, "-n", 2, "--prefill-chunk", 32)
FED = ("--fed", 8)
PLAN = "streaming(sink=2, recent=30)"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for domain in ("books", "peps"):
        file, field = SOURCES[domain]
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(folder / file, "wt", encoding="utf-8") as out:
            out.write(json.dumps({"id": "one", field: "The ferry leaves at nine.\n\n" * 20}) + "\n")
    return folder


def test_table_json_and_picture(bench, tiny, data, tmp_path):
    out, png = tmp_path / "fidelity.json", tmp_path / "fidelity.png"
    result = bench("fidelity", "--data", data, "-m", tiny, *FLAGS, *FED, "-p", PLAN, "--out", out, "--plot", png)
    assert (result.code, png.read_bytes()[:4]) == (0, b"\x89PNG")
    document = json.loads(out.read_text(encoding="utf-8"))
    assert (document["command"], document["complete"], document["length"]) == ("fidelity", True, 120)
    assert document.keys() >= MADE_BY
    assert len(document["records"]) == 2 * 2 * 2
    assert {each["plan"] for each in document["records"]} == {"full", PLAN}
    rows = {(row["plan"], row["domain"]): row for row in document["summary"]}
    assert set(rows) == {(plan, domain) for plan in ("full", PLAN) for domain in ("books", "peps", "all")}
    assert rows[PLAN, "all"]["total_share"] == pytest.approx((32 + 32) / 119)
    for row in rows.values():
        assert f"{row['kl']['mean']:.4f}" in result.out


def test_ctrl_c_keeps_whole_windows(bench, tiny, data, monkeypatch):
    def measure(*arguments, **options):
        yield next(iter(real(*arguments, **options)))
        raise KeyboardInterrupt

    real = command.fidelity_by_domain
    monkeypatch.setattr(command, "fidelity_by_domain", measure)
    result = bench("fidelity", "--data", data, "-m", tiny, *FLAGS, *FED, "-p", PLAN, "--json")
    assert result.code == 130
    assert (result.json["complete"], len(result.json["records"])) == (False, 2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--fed", 120), "--fed 120 must be less than --length 120"),
        ((*FED, "-p", PLAN, "--budget", 8), "--budget: is about the default plans"),
        ((*FED, "-p", PLAN, "--domain", "poems"), "no text of domain 'poems'"),
    ],
)
def test_bad_input_is_one_line(bench, tiny, data, flags, message):
    result = bench("fidelity", "--data", data, "-m", tiny, *FLAGS, *flags)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert message in result.err

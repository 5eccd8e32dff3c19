"""Figures in pages: every block is what its JSON makes of it, and what is wrong with one is said."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
pages = pytest.importorskip("recipes.pages")
from recipes.blocks import PAGES, engine, fidelity, gguf, quality, stores, tables  # noqa: E402

HELD = {path: [name for name, _ in pages.blocks(path.read_text(encoding="utf-8"))] for path in pages.pages()}


@pytest.mark.parametrize("path", [path for path, names in HELD.items() if names], ids=lambda path: path.stem)
def test_every_block_is_what_the_json_makes_of_it(path):
    assert pages.stale([path]) == []


def test_every_block_whose_json_is_there_stands_in_a_page():
    shown = {name for names in HELD.values() for name in names}
    there = {
        name for name, block in pages.BLOCKS.items() if all((pages.RESULTS / each).is_file() for each in block.files)
    }
    assert there == shown


def test_no_two_blocks_have_one_name():
    assert sum(len(page.BLOCKS) for page in PAGES) == len(pages.BLOCKS)


def test_tables_of_results_stand_in_blocks():
    for path in pages.RESULTS.glob("*.md"):
        around = pages.BLOCK.sub("", path.read_text(encoding="utf-8"))
        assert path.stem == "README" or "\n|" not in around, path.name


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page with two blocks, of a JSON file beside it."""
    (tmp_path / "some.json").write_text(json.dumps([{"plan": "full", "score": 0.5}]), encoding="utf-8")
    made = tables.Block(
        lambda rows: tables.table({"plan": tables.code("plan"), "%": tables.percent("score")}, rows), ("some.json",)
    )
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(pages, "BLOCKS", {"one": made, "two": tables.Block(lambda: "two lines,\nby hand", ())})
    pages.document.cache_clear()
    path = tmp_path / "page.md"
    begin, end = pages.BEGIN, pages.END
    path.write_text(f"# Title\n\n{begin.format('one')}\n{end}\n\nProse.\n\n{begin.format('two')}\nold\n{end}\n")
    yield path
    pages.document.cache_clear()


def test_writing_makes_the_blocks_and_leaves_what_stands_around_them(page, monkeypatch, capsys):
    monkeypatch.setattr(pages, "pages", lambda: [page])
    monkeypatch.setattr(sys, "argv", ["pages", "--check"])
    assert pages.stale([page]) == ["page.md: one", "page.md: two"]
    with pytest.raises(SystemExit) as ended:
        pages.main()
    assert ended.value.code == 1
    assert "page.md: one\npage.md: two\n" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["pages"])
    pages.main()
    text = page.read_text()
    assert "-->\n\n| plan | % |\n| --- | ---: |\n| `full` | 50.0 |\n\n<!--" in text
    assert "\n\nProse.\n\n" in text
    assert (pages.stale([page]), "old" in text) == ([], False)
    page.write_text(text.replace("50.0", "51.0"))
    assert pages.stale([page]) == ["page.md: one"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- figures: three -->\n<!-- /figures -->", "there is no block 'three'; there are one, two"),
        ("<!-- figures: one -->\n", "1 blocks begin and 0 end"),
        ("<!-- figures: one -->\n<!-- figures: two -->\n<!-- /figures -->", "2 blocks begin and 1 end"),
    ],
)
def test_what_is_wrong_with_a_block_is_said(page, text, message):
    page.write_text(text)
    with pytest.raises(ValueError, match=message):
        pages.stale([page])


def test_a_block_without_its_json_names_the_file(page):
    page.with_name("some.json").unlink()
    with pytest.raises(ValueError, match=r"docs/results/some\.json is not there"):
        pages.write([page])


def test_figures_are_aligned_to_the_right_and_memory_is_all_that_was_counted():
    rows = [{"name": "a", "share": None}, {"name": "b", "share": -0.5}]
    assert tables.table({"": tables.key("name"), "x": tables.number("share", 1)}, rows).splitlines()[1:] == [
        "| --- | ---: |", "| a |  |", "| b | -0.5 |",
    ]  # fmt: skip
    assert tables.of_memory({"peak_cache_bytes": 1, "aux_bytes": 1, "total_bytes": 2}) == "total_bytes"
    assert tables.of_memory({"peak_cache_bytes": 1, "aux_bytes": 1}) == "aux_bytes"
    with pytest.raises(ValueError, match="unpack"):
        tables.one([{"plan": "full"}, {"plan": "full"}], plan="full")


def test_the_fidelity_page_is_ordered_by_divergence():
    def row(plan, domain, kl):
        interval = {"mean": kl, "low": kl, "high": kl}
        shares = {"rows_share": 1.0, "total_share": 0.5, "units_share": 0.25}
        figures = {"kl": interval, "top1": interval, "nll_plan": interval, "nll_full": interval, "perplexity": 2.0}
        return {"plan": plan, "domain": domain, "windows": 3, **figures, **shares}

    rows = [
        row(plan, domain, kl) for domain in ("books", "all") for plan, kl in (("b", 0.5), ("full", 0.0), ("a", 0.2))
    ]
    about = {"model": "needle", "dtype": "bfloat16", "threads": 1, "seed": 0, "length": 64, "fed": 8, "versions": {}}
    text = fidelity.markdown({"summary": rows, **about})
    assert text.index("| `full` | 0.0000 | 0.0000 |") < text.index("| `a` | 0.2000") < text.index("| `b` | 0.5000")
    assert "| `b` | 0.5000 (0.500 to 0.500) | 50.0 (50 to 50) | 0.500 | 2.00 | 100.0 | 50.0 | 25.0 |" in text


def test_a_file_is_compared_with_llama_cpp_at_its_best():
    def row(arm, length, prefill, token):
        return {"arm": arm, "length": length, "prefill_s": prefill, "token_s": token, "steps": 6}

    best = {"prefill_s": {"value": 2.0}, "token_s": {"value": 0.01}}
    told = {
        "summary": [row("full", 64, 1.0, 0.02), row("llama.cpp:q4_0", 64, 2.0, 0.01)],
        "llama.cpp at its best": {"64": best}, "turns": 5, "machine": {"threads": 2, "device": "CPU"}, "commit": "abc",
    }  # fmt: skip
    text = gguf.speed(told)
    assert "| arm | prefill 64, s |" in text
    assert "| `full` | 1.00 (0.50x) |" in text
    assert "| `full` | 20.00 (2.00x) |" in text
    assert "Medians of 5 turns" in text


def test_a_page_of_the_engine_says_what_was_left_out_and_given_up():
    about = {"model": "smollm2", "machine": {"threads": 2, "device": "CPU"}, "commit": "abc", "repeats": 5, "steps": 8}
    row = {
        "setting": "max_step_s=0.030", "turns": 5, "undisturbed_s": 0.012, "longest": 3.0, "worst": 4.0, "typical": 2.5,
        "ttft_s": None, "of_alone": None,
    }  # fmt: skip
    limits = {"length": 8000, "sequences": 4, "running": 512, "slower": 2.5, "patience": 45}
    text = engine.arrival({"summary": [row], **limits, **about})
    assert "| `max_step_s=0.030` | 5 | 3.00 | 4.00 | 2.50 |  |  |" in text
    assert "given up after 45 s, `max_step_s=0.030`." in text
    figures = {"step_s": 0.02, "tokens_per_s": 400.0, "of_one": 3.0, "of_one_low": 2.0, "of_one_high": 4.0}
    told = {"summary": [{"name": "full", **figures, "floor_s": None, "of_floor": None, "of_stock": None}]}
    text = engine.together({**told, "stock_error": "RuntimeError: no", "length": 9, "sequences": 8, **about})
    assert "| full | 20.0 | 400.0 | 3.00 (2.00 to 4.00) |  |  |  |" in text
    assert "transformers is left out: RuntimeError: no" in text


def test_a_page_of_stores_has_a_table_per_length_and_one_of_answers():
    interval = {"mean": 0.5, "low": 0.25, "high": 0.75}
    held = {"kl": interval, "top1": interval, "ratio": interval, "cache_bytes": 2**20, "cache_share": 0.25}
    rows = [{"plan": "plain", "length": length, "passages": 3, **held, "total_share": 1.0} for length in (8, 16)]
    scores = [
        {"plan": "plain", "length": 8, "task": task, "score": 0.5, "low": 0.1, "high": 0.9} for task in ("kv", "number")
    ]
    told = {"summary": rows, "scores": scores, "questions": 4, "fed": 2, "skipped": {"other": "no room"}}
    text = stores.stores({**told, "model": "m", "machine": {"threads": 1, "device": "cpu"}})
    assert text.count("| `plain` | 0.5000 (0.2500 to 0.7500) | 50.0 (25.0 to 75.0) |") == 2
    assert "| 8 | `plain` | 50.0 (10 to 90) | 50.0 (10 to 90) |" in text
    assert text.endswith("Left out: `other`: no room")


def test_a_page_of_measured_arms_has_questions_only_where_some_were_asked():
    interval = {"mean": 0.5, "low": 0.25, "high": 0.75}
    costs = {"rows": 0.6, "bytes": 0.25, "held": 0.2, "units": 0.125}
    window = {
        "arm": "p",
        "domain": "all",
        "length": 4096,
        "windows": 6,
        "kl": interval,
        "ratio": interval,
        "costs": costs,
    }
    score = {"arm": "p", "task": "all", "questions": 9, "few": True, "score": 0.5, "difference": interval}
    told = {"windows": [window], "scores": [], "headers": [{"model": "m", "split": "test", "fed": 64}]}
    at_the_end = {**window, "costs": {**costs, "after": 0.15}}
    assert "| 0.60 | 0.25 | 0.15 | 0.20 |" in quality.measured({**told, "windows": [at_the_end]})
    text = quality.measured(told)
    assert "| `p` | 0.500 (0.250 to 0.750) | 0.500 (0.250 to 0.750) | 0.60 | 0.25 | 0.20 | 0.12 |" in text
    assert "points" not in text
    asked = "9 questions of `niah_single`, points: from full attention's score"
    for tasks in (["niah_single"], ["all", "niah_single", "kv"]):  # there is no row over all of a single one
        text = quality.measured({**told, "scores": [{**score, "task": task} for task in tasks]})
        assert "| `p` | 50 | +50 (+25 to +75)* | 0.500" in text
        assert "*: fewer than 100 different questions;" in text
        enough = quality.measured({**told, "scores": [{**score, "task": task, "few": False} for task in tasks]})
        assert "| `p` | 50 | +50 (+25 to +75) | 0.500" in enough
        assert asked.replace("single`,", "single`, `kv`,") in text if "kv" in tasks else asked in text
    other = quality.measured({**told, "scores": [{**score, "task": "kv", "arm": "other"}]})
    assert "| `p` |  |  | 0.500" in other  # it was asked nothing


def test_answers_that_are_right_in_part_are_not_rounded():
    cells = {("pop", task): {"score": score, "questions": 20} for task, score in {"a": 0.375, "b": 0.8125}.items()}
    assert [quality._right(cells, task)({"arm": "pop"}) for task in "ab"] == ["7.5 of 20", "16.25 of 20"]

"""The speed benchmark: what it counts, what it compares, what it prints. Never how long something took."""

import io
import json

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import winnow.bench.__main__ as cli
from winnow.bench.decode import measure_decode
from winnow.bench.prefill import attention_flops, measure_prefill
from winnow.bench.report import COLUMNS, markdown, plot, table
from winnow.bench.shapes import SHAPES, random_model, shape_named
from winnow.bench.speed import STOCK, Measurement, Rates, alternate, machine_rates, typical
from winnow.errors import InputError, MissingExtraError
from winnow.plan import Plan
from winnow.runtime.decoder import Decoder

SHAPE = SHAPES["needle-like"]
RATES = Rates(copy_gb_s=10.0, read_gb_s=20.0, gemm_gflop_s=100.0)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def decoder():
    return Decoder(random_model(SHAPE, torch.float32, CPU))


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_counts_the_weights_that_the_model_has(name):
    shape = SHAPES[name]
    with torch.device("meta"):
        model = random_model_on_meta(shape)
    matrices = sum(p.numel() for n, p in model.named_parameters() if p.dim() == 2 and "embed_tokens" not in n)
    tied = shape.head_weights if shape.tied else 0  # the head is then the embedding, counted once
    assert matrices + tied == shape.layers * shape.layer_weights + shape.head_weights


def random_model_on_meta(shape):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(shape.config())


def test_an_unknown_shape_is_refused():
    with pytest.raises(InputError, match=r"qwen9.*qwen3-0\.6b"):
        shape_named("qwen9")


def test_random_models_are_the_same_every_time():
    ids = torch.arange(9)[None]
    with torch.inference_mode():
        one, two = (random_model(SHAPE, torch.float32, CPU)(ids).logits for _ in range(2))
    assert torch.equal(one, two)
    assert one.isfinite().all()


def test_decode_counts_weights_and_units_and_both_arms_agree(decoder):
    measured, difference = measure_decode(decoder, SHAPE, [Plan()], 100, repeats=4, warmup=2)
    stock, full = measured
    assert (stock.arm, full.arm) == (STOCK, "full")
    assert max(difference) < 1e-4
    assert len(stock.seconds) == len(full.seconds) == 4
    assert min(stock.seconds + full.seconds) > 0
    weights = SHAPE.layers * SHAPE.layer_weights + SHAPE.head_weights
    units = SHAPE.layers * SHAPE.kv_heads * (102 + 107) // 2  # from the 102nd to the 107th token
    assert stock.read_bytes == full.read_bytes == 4 * weights + units * 2 * SHAPE.head_dim * 4
    assert full.flops == 2 * weights + 4 * SHAPE.head_dim * units * SHAPE.q_heads // SHAPE.kv_heads


def test_a_plan_that_reads_less_is_counted_as_such(decoder):
    plan = Plan.parse("streaming(sink=4, recent=28)")
    _, arm = measure_decode(decoder, SHAPE, [plan], 200, repeats=2, warmup=1)[0]
    weights = SHAPE.layers * SHAPE.layer_weights + SHAPE.head_weights
    assert arm.arm == str(plan)
    units = (arm.read_bytes - 4 * weights) // (2 * SHAPE.head_dim * 4)
    assert SHAPE.layers * SHAPE.kv_heads * 32 <= units <= SHAPE.layers * SHAPE.kv_heads * 33


@pytest.mark.parametrize(
    ("plan", "lower", "upper"),
    [("speed(cutoff=0.75)", 1.0, 0.0), ("pop(cutoff=0.75)", 1.0, 1.0), ("swiftkv(cutoff=0.75, share=2)", 1.0, 1.0)],
)
def test_plans_that_stop_the_prompt_find_what_prefill_would_have_left(decoder, plan, lower, upper):
    """Units read in closed form: above the cutoff SPEED reads the first token, the last one and what was decoded."""
    length, repeats, warmup = 100, 2, 1
    measured, _ = measure_decode(decoder, SHAPE, [Plan(), Plan.parse(plan)], length, repeats=repeats, warmup=warmup)
    assert [each.arm for each in measured] == [STOCK, "full", plan]
    weights = SHAPE.layers * SHAPE.layer_weights + SHAPE.head_weights
    units = (measured[2].read_bytes - 4 * weights) // (2 * SHAPE.head_dim * 4)
    cut = 3 * SHAPE.layers // 4
    steps = [length + 1 + step for step in range(1, 1 + repeats + warmup)]
    short = [2 + 1 + step for step in range(1, 1 + repeats + warmup)]
    above = sum(steps) * upper + sum(short) * (1 - upper)
    expected = SHAPE.kv_heads * (cut * sum(steps) * lower + (SHAPE.layers - cut) * above) // len(steps)
    assert units == expected


def test_prefill_counts_products_and_both_arms_agree(decoder):
    measured, difference = measure_prefill(decoder, SHAPE, [Plan()], 70, repeats=2, warmup=1, chunk=32)
    assert [each.arm for each in measured] == [STOCK, "full"]
    assert max(difference) < 1e-4
    products = 2 * SHAPE.layers * SHAPE.layer_weights * 70 + 2 * SHAPE.head_weights
    assert measured[0].flops == products + attention_flops(SHAPE, 70)
    assert attention_flops(SHAPE, 1) == 4 * SHAPE.head_dim * SHAPE.q_heads * SHAPE.layers


def test_the_model_is_stock_again_after_a_measurement(decoder):
    measure_decode(decoder, SHAPE, [Plan()], 10, repeats=2, warmup=1)
    assert decoder.config._attn_implementation == "sdpa"
    assert {type(m) for m in decoder.model.modules() if isinstance(m, torch.nn.Linear)} == {torch.nn.Linear}


def test_arms_take_turns():
    order = []
    arms = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    seconds = alternate(arms, repeats=3, warmup=1, device=CPU)
    assert order == ["a", "b"] * 4
    assert {name: len(each) for name, each in seconds.items()} == {"a": 3, "b": 3}


def test_figures_of_a_measurement():
    stock = Measurement(STOCK, 64, (4.0, 6.0, 5.0), read_bytes=40 * 10**9, flops=10**9)
    fast = Measurement("full", 64, (1.0, 1.0, 1.0), read_bytes=10**9, flops=300 * 10**9)
    record = stock.to_dict(RATES, stock)
    assert record["median_s"] == 5.0
    assert record["spread_s"] == 0.5
    assert record["ratio_to_stock"] == 1.0
    assert record["gb_s"] == 8.0
    assert record["floor_s"] == 2.0  # the bytes
    assert record["times_floor"] == 2.5
    assert fast.floor_s(RATES) == 3.0  # the products
    assert fast.to_dict(RATES, stock)["ratio_to_stock"] == 0.2


def test_machine_rates_are_positive_and_medians_are_taken():
    rates = machine_rates(torch.float32, CPU, size=1000, side=16)
    assert min(rates.copy_gb_s, rates.read_gb_s, rates.gemm_gflop_s) > 0
    assert typical([Rates(1, 5, 3), Rates(2, 4, 6), Rates(9, 3, 5)]) == Rates(2, 4, 5)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("speed") / "decode.json"
    arguments = ["decode", "--shape", "needle-like", "--lengths", "16,40", "--dtype", "float32", "--repeats", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "machine_rates", lambda *_: RATES)
        patch.setattr("sys.argv", ["winnow.bench", *arguments, "--out", "decode.json"])
        done = CliRunner().invoke(cli.app, [*arguments, "--out", str(path)])
    assert done.exit_code == 0, done.output
    return path


def test_records_say_what_was_run_where(file):
    document = json.loads(file.read_text())
    assert document["command"].startswith("python -m winnow.bench decode --shape needle-like")
    assert {"winnow-llm", "torch", "transformers", "numba", "python"} <= document["machine"]["versions"].keys()
    assert document["machine"]["threads"] == torch.get_num_threads()
    assert document["rates"]["read_gb_s"] == 20.0
    assert [(r["length"], r["arm"]) for r in document["records"]] == [
        (length, arm) for length in (16, 40) for arm in (STOCK, "full")
    ]
    assert all(len(r["seconds"]) == 2 and r["logit_difference"] < 1e-4 for r in document["records"])


def test_the_table_and_the_page_show_every_record(file):
    document = json.loads(file.read_text())
    console = Console(width=140, file=io.StringIO())
    console.print(table(document))
    text, page = console.file.getvalue(), markdown(document)
    for record in document["records"]:
        assert f"{record['median_s']:.4g}" in text
        assert f"| {record['length']} | {record['arm']} |" in page
    assert all(heading in page for heading in COLUMNS)
    assert document["command"] in page
    assert "random units" in " ".join(text.split())


def test_records_are_shown_and_drawn_again(file, tmp_path):
    pytest.importorskip("matplotlib")
    run = CliRunner().invoke
    assert "| full |" in run(cli.app, ["table", str(file), "--markdown"]).output
    png = tmp_path / "speed.png"
    assert run(cli.app, ["plot", str(file), str(file), "--out", str(png)]).exit_code == 0
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_says_what_to_install(file, monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'winnow-llm\[bench\]'"):
        plot([json.loads(file.read_text())], tmp_path / "x.png")


@pytest.mark.parametrize("text", ["", "12,x", "0,5", "-1"])
def test_lengths_that_are_not_counts_are_refused(text):
    with pytest.raises(InputError, match="lengths"):
        cli.parse_lengths(text)


def test_a_wrong_option_is_one_line_and_exit_code_2(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["winnow.bench", "decode", "--shape", "nothing"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1

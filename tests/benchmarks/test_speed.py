"""The speed benchmark: what it counts, what it compares, what it prints. Never how long something took."""

import io
import json

import pytest
import torch
from benchmarks.__main__ import app
from benchmarks.decode import measure_decode
from benchmarks.prefill import attention_flops, measure_prefill
from benchmarks.report import COLUMNS, markdown, table
from benchmarks.shapes import SHAPES, random_model, shape_named
from benchmarks.speed import STOCK, Measurement, Rates, alternate, machine_rates, typical
from rich.console import Console

from command_line import MADE_BY
from winnow import LLM, Plan
from winnow.cli.main import run_app
from winnow.errors import InputError

SHAPE = SHAPES["needle-like"]
RATES = Rates(copy_gb_s=10.0, read_gb_s=20.0, gemm_gflop_s=100.0)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def llm():
    return LLM(random_model(SHAPE, torch.float32, CPU), prefill_chunk=32)


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


def test_decode_counts_weights_and_units_and_both_arms_agree(llm):
    measured, difference = measure_decode(llm, SHAPE, [Plan()], 100, repeats=4, warmup=2)
    stock, full = measured
    assert (stock.arm, full.arm) == (STOCK, "full")
    assert max(difference) < 1e-4
    assert len(stock.seconds) == len(full.seconds) == 4
    assert min(stock.seconds + full.seconds) > 0
    weights = SHAPE.layers * SHAPE.layer_weights + SHAPE.head_weights
    units = SHAPE.layers * SHAPE.kv_heads * (102 + 107) // 2  # from the 102nd to the 107th token
    assert stock.read_bytes == full.read_bytes == 4 * weights + units * 2 * SHAPE.head_dim * 4
    assert full.flops == 2 * weights + 4 * SHAPE.head_dim * units * SHAPE.q_heads // SHAPE.kv_heads


def test_a_plan_that_reads_less_is_counted_as_such(llm):
    plan = Plan.parse("streaming(sink=4, recent=28)")
    _, arm = measure_decode(llm, SHAPE, [plan], 200, repeats=2, warmup=1)[0]
    weights = SHAPE.layers * SHAPE.layer_weights + SHAPE.head_weights
    assert arm.arm == str(plan)
    units = (arm.read_bytes - 4 * weights) // (2 * SHAPE.head_dim * 4)
    assert SHAPE.layers * SHAPE.kv_heads * 32 <= units <= SHAPE.layers * SHAPE.kv_heads * 33


@pytest.mark.parametrize(
    ("plan", "lower", "upper"),
    [("speed(cutoff=0.75)", 1.0, 0.0), ("pop(cutoff=0.75)", 1.0, 1.0), ("swiftkv(cutoff=0.75, share=2)", 1.0, 1.0)],
)
def test_plans_that_stop_the_prompt_find_what_prefill_would_have_left(llm, plan, lower, upper):
    """Units read in closed form: above the cutoff SPEED reads the first token, the last one and what was decoded."""
    length, repeats, warmup = 100, 2, 1
    measured, _ = measure_decode(llm, SHAPE, [Plan(), Plan.parse(plan)], length, repeats=repeats, warmup=warmup)
    assert [each.arm for each in measured] == [STOCK, "full", plan]
    weights = SHAPE.layers * SHAPE.layer_weights + SHAPE.head_weights
    units = (measured[2].read_bytes - 4 * weights) // (2 * SHAPE.head_dim * 4)
    cut = 3 * SHAPE.layers // 4
    steps = [length + 1 + step for step in range(1, 1 + repeats + warmup)]
    short = [2 + 1 + step for step in range(1, 1 + repeats + warmup)]
    above = sum(steps) * upper + sum(short) * (1 - upper)
    expected = SHAPE.kv_heads * (cut * sum(steps) * lower + (SHAPE.layers - cut) * above) // len(steps)
    assert units == expected


def test_prefill_counts_products_and_both_arms_agree(llm):
    measured, difference = measure_prefill(llm, SHAPE, [Plan()], 70, repeats=2, warmup=1)
    assert [each.arm for each in measured] == [STOCK, "full"]
    assert max(difference) < 1e-4
    products = 2 * SHAPE.layers * SHAPE.layer_weights * 70 + 2 * SHAPE.head_weights
    assert measured[0].flops == products + attention_flops(SHAPE, 70)
    assert attention_flops(SHAPE, 1) == 4 * SHAPE.head_dim * SHAPE.q_heads * SHAPE.layers


def test_the_model_is_stock_again_after_a_measurement(llm):
    measure_decode(llm, SHAPE, [Plan()], 10, repeats=2, warmup=1)
    assert llm.model.config._attn_implementation == "sdpa"
    assert {type(m) for m in llm.model.modules() if isinstance(m, torch.nn.Linear)} == {torch.nn.Linear}


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
    arguments = ["decode", "--shape", "needle-like", "--length", "16", "--length", "40", "--dtype", "float32"]
    arguments += ["--repeats", "2", "--out", str(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.speed_command.machine_rates", lambda *_: RATES)
        patch.setattr("sys.argv", ["benchmarks", *arguments])
        assert run_app(app, arguments) == 0
    return path


def test_records_say_what_was_run_where(file):
    document = json.loads(file.read_text())
    assert (document["command"], document["complete"]) == ("decode", True)
    assert document["typed"].startswith("python -m benchmarks decode --shape needle-like --length 16 --length 40")
    assert str(file.parent) not in document["typed"]
    assert document.keys() >= MADE_BY
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
    assert document["typed"] in page
    assert "random units" in " ".join(text.split())


def test_records_are_shown_and_drawn_again(bench, file, tmp_path):
    pytest.importorskip("matplotlib")
    assert "| full |" in bench("table", file, "--markdown").out
    png = tmp_path / "speed.png"
    assert bench("plot", file, file, "--out", png).code == 0
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_says_what_to_install(bench, file, monkeypatch, tmp_path):
    monkeypatch.setattr("winnow.cli.outputs.find_spec", lambda name: None)
    result = bench("plot", file, "--out", tmp_path / "x.png")
    assert (result.code, "install winnow with its extra 'bench'" in result.err) == (2, True)


def test_an_interrupt_keeps_whole_lengths(bench, monkeypatch, tmp_path):
    def interrupted(llm, shape, plans, length, **counts):
        if length == 40:
            raise KeyboardInterrupt
        return measure_decode(llm, shape, plans, length, **counts)

    out = tmp_path / "decode.json"
    monkeypatch.setattr("benchmarks.speed_command.machine_rates", lambda *_: RATES)
    monkeypatch.setattr("benchmarks.speed_command.measure_decode", interrupted)
    small = ("--shape", "needle-like", "--dtype", "float32", "--repeats", 2, "--length", 16)
    result = bench("decode", *small, "--length", 40, "--json", "--out", out)
    assert (result.code, result.json["complete"]) == (130, False)
    assert {record["length"] for record in result.json["records"]} == {16}
    assert json.loads(out.read_text()) == result.json


@pytest.mark.parametrize("length", ["", "12,x", "0", "-1"])
def test_lengths_that_are_not_counts_are_refused(bench, length):
    result = bench("decode", "--length", length)
    assert (result.code, "--length" in result.err, result.err.count("\n")) == (2, True, 1)


def test_a_wrong_option_is_one_line_and_exit_code_2(bench):
    result = bench("decode", "--shape", "nothing")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "shape 'nothing' is unknown" in result.err


def test_what_is_longer_than_the_shape_takes_is_refused_before_weights_are_drawn(bench, monkeypatch):
    monkeypatch.setattr("benchmarks.source.random_model", None)
    result = bench("decode", "--length", 131072)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "131,082 tokens, cached and new, are more than the 131,072 positions" in result.err

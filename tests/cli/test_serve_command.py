"""`winnow serve` before it listens: what is missing or wrong is one line."""

import shutil
import socket

import pytest
from test_errors import fails

from winnow.cli import serve
from winnow.cli.commands.serve import Serve
from winnow.server import primitives


def test_a_missing_extra(winnow, tiny, monkeypatch):
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "uvicorn" else object())
    fails(winnow("serve", tiny), "winnow serve needs uvicorn; install winnow with its extra 'serve'")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--plan", "nosuch"], ["unknown policy 'nosuch'"]),
        (["--allow-plans", "full", "--allow-plans", "streaming(sink='x')"], ["must be a whole number"]),
        (["--port", 99_999], ["port=99999", "at most 65535"]),
        (["--max-step-tokens", 0], ["max_step_tokens=0 must be at least 1"]),
        (["--max-cache-mib", "inf"], ["max_cache_mib=inf must be above 0 and below inf"]),
        (["--max-queue", 1.5], ["1.5 is no whole number"]),
        (["--served-model-name", ""], ["served_model_name is empty"]),
    ],
)
def test_bad_options(winnow, tiny, flags, words):
    fails(winnow("serve", tiny, *flags), *words)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("", "api_key is empty"),
        (" ", "api_key is empty"),
        ("caf\xe9", "printable ASCII"),
        ("key ", "begins or ends with a blank"),
    ],
)
def test_a_key_in_the_environment_is_taken_as_it_stands(winnow, tiny, monkeypatch, key, words):
    monkeypatch.setenv("WINNOW_API_KEY", key)
    fails(winnow("serve", tiny), words)


def test_a_model_in_this_directory_has_its_name(tiny, monkeypatch):
    monkeypatch.setattr(primitives, "keep_few_primitives", lambda: None)  # it changes the environment
    monkeypatch.chdir(tiny)
    assert serve.load_service(Serve(".")).name == tiny.name


def test_plans_in_files(winnow, tiny, tmp_path):
    told = tmp_path / "plan.txt"
    told.write_text("streaming(sink='x')")
    fails(winnow("serve", tiny, "--allow-plans", f"@{told}"), "must be a whole number")


def test_an_address_that_is_taken(winnow, tiny):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fails(winnow("serve", tiny, "--port", port), f"cannot listen on 127.0.0.1:{port}", "--port")


def test_a_model_that_reads_no_text(winnow, tiny, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(tiny, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    fails(winnow("serve", bare, "--port", 0), "bare has no tokenizer")

"""A tiny model that answers: in this process, and on a port."""

import threading

import pytest

from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM
from winnow.engine import background
from winnow.server.app import new_app
from winnow.server.run import Draining, address, bound, config_of
from winnow.server.service import Service
from winnow.server.settings import Settings


@pytest.fixture(scope="session")
def llm():
    return LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=16)


@pytest.fixture
def new(llm, monkeypatch):
    """`new(max_queue=1)` -> a service with these settings, and its application."""
    monkeypatch.setattr(background, "LINGER_S", 0.05)

    def made(**settings):
        service = Service(llm, Settings(**settings), "tiny")
        return service, new_app(service)

    return made


@pytest.fixture
def app(new):
    return new()[1]


@pytest.fixture(scope="module")
def live(llm):
    """A server on a real port: its address, and its service."""
    service = Service(llm, Settings(port=0, max_step_tokens=16, max_cache_mib=64, api_key=("secret",)), "tiny")
    place, ready = bound("127.0.0.1", 0), threading.Event()
    server = Draining(config_of(new_app(service)), service, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    assert ready.wait(10)
    yield address(place), service
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()

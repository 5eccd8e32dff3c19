"""What torch keeps compiled in a server is bounded, before a model is there to be computed with."""

import os

import pytest

from winnow.cli import serve
from winnow.cli.commands.serve import Serve
from winnow.errors import WinnowError
from winnow.server.primitives import CACHES, KEPT


@pytest.mark.parametrize("given", [None, "7"])
def test_a_server_bounds_what_is_kept_unless_the_environment_says(monkeypatch, tmp_path, given):
    for name in CACHES:
        monkeypatch.setenv(name, "removed again when the test ends")
        monkeypatch.delenv(name)
    if given is not None:
        monkeypatch.setenv(CACHES[0], given)
    seen = []
    monkeypatch.setattr(Serve, "load", lambda *self, **told: seen.extend(map(os.environ.get, CACHES)) or fail())
    with pytest.raises(WinnowError, match="seen enough"):
        serve.load_service(Serve(str(tmp_path)))
    assert seen == [given or str(KEPT), str(KEPT)]


def fail():
    raise WinnowError("seen enough")

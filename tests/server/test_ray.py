"""Replicas on two nodes of Ray, of which one is killed and a node is removed."""

import pytest

from command_line import tiny

pytest.importorskip("ray.serve", reason="ray is not installed: pip install 'winnow-llm[ray]'")
__all__ = ["tiny"]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


def test_streams_outlive_a_replica_and_a_node(tiny):
    from benchmarks.replicas import measure_replicas, nodes

    settings = {"max_sequences": 20}
    with nodes({"model": str(tiny), "prefill_chunk": 16, "settings": settings}) as cluster:
        undisturbed, killed, removed = measure_replicas(cluster, 20, 60, "snapkv(budget=24, window=8)")
    assert (undisturbed.complete, undisturbed.gone_on) == (20, 0)
    for row in (killed, removed):
        assert (row.complete, row.identical) == (20, 20)
        assert row.gone_on > 0


def test_settings_that_cannot_be(tiny):
    from winnow.errors import InputError
    from winnow.server.ray import Options, app

    with pytest.raises(InputError, match="max_queue=0"):
        app(Options(model=str(tiny), settings={"max_queue": 0}))
    with pytest.raises(ValueError, match="nosuch"):
        Options(nosuch=1)

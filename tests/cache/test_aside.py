"""What is set aside: who is in it, and that its bytes come back."""

import random

import torch

from winnow.cache.aside import Aside


def hidden(positions):
    return torch.tensor(positions, dtype=torch.float32)[:, None].expand(-1, 8).contiguous()


def contents(aside):
    assert torch.equal(aside.hidden[: aside.count], hidden(aside.live.tolist()))
    return set(aside.live.tolist())


def test_random_puts_and_takes_equal_a_set():
    source, aside, expected = random.Random(0), Aside(8, torch.float32, torch.device("cpu")), set()
    for step in range(60):
        new = list(range(100 * step, 100 * step + source.randint(0, 9)))
        aside.put(hidden(new), torch.tensor(new, dtype=torch.int64))
        expected |= set(new)
        wanted = torch.tensor(
            [source.random() < source.choice((0.0, 0.2, 1.0)) for _ in range(aside.count)], dtype=bool
        )
        leaving = set(aside.live[wanted].tolist())
        rows, positions = aside.take(wanted)
        assert set(positions.tolist()) == leaving
        assert torch.equal(rows, hidden(positions.tolist()))
        expected -= leaving
        assert contents(aside) == expected
        held, reserved = aside.nbytes // (8 * 4 + 8), aside.hidden.untyped_storage().nbytes() // (8 * 4)
        assert len(expected) <= held <= reserved <= 2 * len(expected) + 9  # the rest has been given back


def test_clear_frees_and_forks_are_independent():
    aside = Aside(8, torch.float32, torch.device("cpu"))
    aside.put(hidden([3, 1, 4]), torch.tensor([3, 1, 4]))
    twin = aside.fork()
    aside.clear()
    assert (aside.nbytes, aside.hidden.untyped_storage().nbytes()) == (0, 0)
    assert contents(twin) == {1, 3, 4}

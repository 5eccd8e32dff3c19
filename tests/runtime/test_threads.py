"""How many threads decode steps take beside other work, on a clock that the test keeps."""

import itertools
import threading
from contextlib import nullcontext

import numba
import pytest
import torch

from models import small_model
from winnow import LLM, SamplingParams
from winnow.kernels.launch import at_most, match_torch_threads, numba_missing, openmp, parts_of_work
from winnow.models.packed import quantize_model
from winnow.runtime.threads import SPENT, STEPS, Threads

ALONE = {1: (0.024, 1.0), 2: (0.018, 2.0)}  # seconds of a step by threads, and the cores that they got
BESIDE = {1: (0.025, 1.0), 2: (0.090, 1.4)}  # while another process is at work on one of two cores
SLEEPING = {1: (0.024, 1.0), 2: (0.018, 1.3)}  # threads that sleep where they would spin, and nobody else


class Machine:
    """A clock and the CPU time of a process whose steps take what a table says."""

    def __init__(self, steps=ALONE):
        self.now = self.spent = 0.0
        self.steps = steps
        self.threads = Threads(lambda: self.now, lambda: self.spent)

    def run(self, count, rows=1, slow=lambda number: 1):
        """So many steps; the threads that each of them took."""
        taken = []
        for number in range(count):
            with self.threads.decoding(rows):
                taken.append(self.threads.used)
                seconds, cores = self.steps[taken[-1]]
                self.now += slow(number) * seconds
                self.spent += slow(number) * seconds * cores
        return taken


pytestmark = pytest.mark.skipif(numba_missing() is not None or openmp() is None, reason="threads are not watched")


@pytest.fixture
def two():
    """Two threads, which need no cores."""
    torch.set_num_threads(2)


@pytest.fixture(autouse=True)
def told(monkeypatch, request):
    """Where the clock is the test's, torch only says that it has two threads."""
    if "two" not in request.fixturenames:
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
        monkeypatch.setattr("winnow.runtime.threads.at_most", lambda threads: nullcontext())


def test_a_quiet_machine_is_left_alone():
    machine = Machine()
    assert machine.run(2000, slow=lambda number: 1 + 4 * (number % 5 == 0)) == [2] * 2000


@pytest.mark.parametrize("every", [1, 2, 3, 24])
def test_one_thread_beside_another_process(every):
    machine = Machine(BESIDE)
    taken = machine.run(5000, slow=lambda number: 1 if number % every else 3)
    assert taken[: 3 * STEPS].count(1) >= STEPS
    whole = sum((1 if number % every else 3) * BESIDE[1][0] for number in range(5000))
    assert machine.now < 1.05 * whole


def test_all_threads_again_when_the_other_process_has_ended():
    machine = Machine()
    machine.run(50)
    machine.steps = BESIDE
    assert machine.run(500)[-1] == 1
    machine.steps, before = ALONE, machine.now
    taken = machine.run(1000)
    assert taken[-500:] == [2] * 500
    changed = before + taken.index(2) * ALONE[1][0]
    assert changed - before <= STEPS * (BESIDE[2][0] - BESIDE[1][0]) / SPENT


def test_a_trial_that_finds_nothing_better_costs_little():
    machine = Machine(SLEEPING)
    taken = machine.run(5000)
    assert taken[-1] == 2 or taken[-STEPS - 1] == 2
    assert 1 in taken
    assert machine.now < 1.03 * 5000 * SLEEPING[2][0]


def test_it_does_not_go_to_and_fro():
    machine = Machine(BESIDE)
    taken = machine.run(5000)
    assert sum(a != b for a, b in itertools.pairwise(taken)) <= 2 + 2 * machine.now / 10


def test_one_thread_is_what_was_asked_for(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    machine = Machine({0: (0.1, 0.1)})
    assert machine.run(50) == [0] * 50  # nothing was looked at


def test_another_number_of_threads_begins_anew(monkeypatch):
    machine = Machine(BESIDE)
    machine.run(100)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    machine.steps = {3: (0.012, 3.0)}
    assert machine.run(20) == [3] * 20


def test_steps_of_other_rows_are_not_compared():
    machine = Machine(BESIDE)
    taken = [used for number in range(100) for used in machine.run(1, rows=1 + number % 2)]
    assert taken == [2] * 100
    machine.run(STEPS, rows=3)
    assert machine.threads.used == 1  # a trial
    machine.run(1, rows=4)
    assert machine.threads.used == 2


@pytest.mark.parametrize(("got", "fewer"), [(15.0, 8), (12.4, 8), (7.9, 6), (2.0, 2), (0.7, 1)])
def test_threads_take_whole_pieces_of_the_work(monkeypatch, got, fewer):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    machine = Machine({16: (0.1, got), fewer: (0.02, fewer)})
    assert machine.run(20)[-1] == fewer


@pytest.mark.threads
def test_threads_are_back_whatever_is_raised(two):
    def counts():
        match_torch_threads()
        return torch.get_num_threads(), numba.get_num_threads(), parts_of_work()

    seen, elsewhere = [], []
    new = threading.Thread(target=lambda: elsewhere.append(torch.get_num_threads()))

    def interrupted():
        with at_most(1):
            seen.append(counts())
            new.start()
            new.join()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert seen == [(1, 1, 2)]
    assert elsewhere == [2]  # a thread that begins to use torch meanwhile
    assert counts() == (2, 2, 2)


def test_a_step_that_raises_is_not_counted():
    machine = Machine(BESIDE)

    def failing():
        with machine.threads.decoding(1):
            machine.now += 5
            raise ValueError("a step")

    for _ in range(10):
        with pytest.raises(ValueError, match="a step"):
            failing()
    assert machine.run(STEPS) == [2] * STEPS


class Noted(Threads):
    """Notes which steps were watched."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def decoding(self, rows):
        self.steps.append(rows)
        return super().decoding(rows)


def test_decode_steps_of_engines_and_sessions_are_watched():
    llm = LLM(small_model("qwen3"), prefill_chunk=8)
    noted = llm.decoder.threads = Noted()
    llm.generate([[5] * 20, [6] * 20], SamplingParams(max_tokens=4, ignore_eos=True), plan="full")
    assert noted.steps == [2, 2, 2] or noted.steps == [1, 1, 1]
    noted.steps.clear()
    with llm.session(max_tokens=5) as session:
        session.feed([7] * 20)
        assert noted.steps == []
        session.feed([1, 2, 3])
    assert noted.steps == [1, 1, 1]


@pytest.mark.threads
@pytest.mark.parametrize("packed", [False, True])
def test_results_do_not_depend_on_it(packed, text, two):
    model = small_model("qwen3", dtype=torch.bfloat16)
    if packed:
        quantize_model(model)
    llm = LLM(model, prefill_chunk=8)
    expected = llm.logits(text, decode_from=20)
    with at_most(1):
        assert torch.equal(llm.logits(text, decode_from=20), expected)

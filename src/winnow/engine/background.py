"""An engine stepped by a thread of its own, for callers that await their answers."""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from winnow.engine.engine import Engine
from winnow.engine.freed import give_back
from winnow.engine.request import Output, Request

SETTLE_S = 0.25  # how long nothing has to come before free memory goes back to the system
LINGER_S = 5.0  # how long the thread waits for the next request from then on, before it ends


class Answers:
    """What steps bring to some requests, in the order in which they bring it; to be closed.

    Iterating raises what `Background.end` was given, or what has ended the thread. Closing aborts what has not ended.
    """

    def __init__(self, background: "Background", requests: Sequence[Request]) -> None:
        loop = asyncio.get_running_loop()
        self._background, self._numbers = background, list[int]()
        self._arrived = asyncio.Queue[Output | BaseException]()
        self._left = sum(request.params.n for request in requests)
        try:
            for request in requests:
                number = background._add(
                    request, lambda news: loop.call_soon_threadsafe(self._arrived.put_nowait, news)
                )
                self._numbers.append(number)
        except BaseException:
            self.close()
            raise

    def __aiter__(self) -> "Answers":
        return self

    async def __anext__(self) -> Output:
        if not self._left:
            raise StopAsyncIteration
        news = await self._arrived.get()
        if isinstance(news, BaseException):
            raise news
        self._left -= news.completion is not None
        return news

    def close(self) -> None:
        """Listen no more; what has not ended is aborted, and its bytes go back before the next step."""
        self._background._leave(self._numbers, abort=self._left > 0)
        self._numbers = []

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


class Background:
    """Steps an engine while there is anything to do; the thread begins with a request and ends by itself.

    watch: told by the thread what every step has brought.
    """

    def __init__(self, engine: Engine, watch: Callable[[list[Output]], object] = lambda outputs: None) -> None:
        self._engine, self._watch = engine, watch
        self._listeners: dict[int, Callable[[Output | BaseException], object]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        _ALL.add(self)

    def answers(self, requests: Sequence[Request]) -> Answers:
        """Begin requests of `LLM.check`. Raises CapacityError as `Engine.enqueue`, and then begins none."""
        return Answers(self, requests)

    def end(self, error: BaseException) -> None:
        """Abort all that is under way; who listens gets `error`."""
        with self._changed:
            left, self._listeners = self._listeners, {}
        for number, listener in left.items():
            self._tell(number, listener, error)  # first: an engine that cannot go on may fail to abort as well
        for number in left:
            self._engine.abort(number)

    def stop(self) -> None:
        """Abort all that is under way, and wait for the thread: a step at most."""
        with self._changed:
            self._stopping, thread = True, self._thread
            self._changed.notify()
        self.end(RuntimeError("the program ends"))
        if thread is not None:
            thread.join()

    def _add(self, request: Request, listener: Callable[[Output | BaseException], object]) -> int:
        with self._changed:
            number = self._engine.enqueue(request)
            self._listeners[number] = listener
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="winnow-engine", daemon=True)
                self._thread.start()
            self._changed.notify()
        return number

    def _leave(self, numbers: Sequence[int], *, abort: bool) -> None:
        with self._changed:
            for number in numbers:
                self._listeners.pop(number, None)
        for number in numbers if abort else ():
            self._engine.abort(number)

    def _run(self) -> None:
        try:
            self._step()
        except BaseException as error:
            with self._changed:
                self._thread = None  # the next request begins another
            self.end(error)
            raise

    def _step(self) -> None:
        while True:
            if not self._wait(SETTLE_S):
                give_back()
                with self._changed:
                    if not self._wait(LINGER_S):
                        self._thread = None  # before anyone else can look
                        return
            if self._stopping:
                return
            outputs = self._engine.step()
            self._watch(outputs)
            with self._changed:
                heard = [(self._listeners.get(output.request_id), output) for output in outputs]
            for listener, output in heard:
                if listener is not None:
                    self._tell(output.request_id, listener, output)

    def _wait(self, seconds: float) -> bool:
        """Whether there is anything to do, at once or within so long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._stopping or not self._engine.idle, seconds)

    def _tell(
        self, number: int, listener: Callable[[Output | BaseException], object], news: Output | BaseException
    ) -> None:
        try:
            listener(news)
        except RuntimeError:  # its event loop is closed
            self._engine.abort(number)


_ALL = WeakSet[Background]()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ALL.clear)  # it has none of these threads, and may have their locks


@atexit.register
def _stop_all() -> None:
    """A thread that came back from a step to a Python that has gone would abort the process."""
    for each in list(_ALL):
        each.stop()

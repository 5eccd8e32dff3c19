"""An engine stepped by a thread of its own, for callers that await their answers."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable

from winnow.engine.engine import Engine
from winnow.engine.request import Output, Request

LINGER_S = 5.0  # how long the thread waits for the next request before it ends


class Background:
    """Steps an engine while there is anything to do; the thread begins with a request and ends by itself."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listeners: dict[int, Callable[[Output], object]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    async def outputs(self, request: Request) -> AsyncGenerator[Output, None]:
        """What steps bring to a request of `LLM.check`, until its samples have ended; who stops listening aborts it.

        Raises CapacityError as `Engine.enqueue`.
        """
        loop, arrived = asyncio.get_running_loop(), asyncio.Queue[Output]()
        left = request.params.n
        number = self._add(request, lambda output: loop.call_soon_threadsafe(arrived.put_nowait, output))
        try:
            while left:
                output = await arrived.get()
                left -= output.completion is not None
                yield output
        finally:
            if left:
                self._engine.abort(number)
            with self._changed:
                self._listeners.pop(number, None)

    def _add(self, request: Request, listener: Callable[[Output], object]) -> int:
        with self._changed:
            number = self._engine.enqueue(request)
            self._listeners[number] = listener
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="winnow-engine", daemon=True)
                self._thread.start()
            self._changed.notify()
        return number

    def _run(self) -> None:
        try:
            self._step()
        finally:  # whatever ended it, the next request begins another
            with self._changed:
                self._thread = None

    def _step(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: not self._engine.idle, LINGER_S):
                    self._thread = None  # before anyone else can look
                    return
            outputs = self._engine.step()
            with self._changed:
                heard = [(self._listeners.get(output.request_id), output) for output in outputs]
            for listener, output in heard:
                try:
                    if listener is not None:
                        listener(output)
                except RuntimeError:  # its event loop is closed
                    self._engine.abort(output.request_id)

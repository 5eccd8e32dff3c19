"""What a client has been sent of a stream, so that another replica can go on with it."""

import json
from collections import Counter, defaultdict
from dataclasses import replace

from winnow.server.events import DONE, END, GO_ON, STARTS, event
from winnow.server.replicas import Asked

Choice = int | None  # None: events of no choice, such as the one with the costs


class Passage:
    """Passes a stream's events on, each once. ended: whether its end has come, or an error."""

    def __init__(self, asked: Asked) -> None:
        self._asked, self.ended = asked, False
        self._sent, self._again = Counter[Choice](), Counter[Choice]()
        self._tokens: dict[int, list[int]] = defaultdict(list)
        self._about: dict[str, object] = {}  # what all events of a stream have in common, and two streams do not

    def take(self, said: bytes) -> bytes | None:
        """An event as the client gets it; None where it has had it from the replica before."""
        if said + END == DONE:
            self.ended = True
            return DONE
        data = json.loads(said.removeprefix(STARTS))
        if "error" in data:
            self.ended = True
            return event(data)
        choice = data["choices"][0] if data["choices"] else {}
        index: int | None = choice.get("index")
        tokens = choice.pop("token_ids", [])
        if self._again[index]:
            self._again[index] -= 1
            return None
        self._sent[index] += 1
        if index is not None:
            self._tokens[index] += tokens
        self._about = self._about or {name: data[name] for name in ("id", "created")}
        return event({**data, **self._about})

    def rest(self) -> Asked:
        """What to ask of another replica: the same, with the tokens that the client has seen. Its events begin anew."""
        self._again = self._sent.copy()
        given = [self._tokens[index] for index in range(max(self._tokens, default=-1) + 1)]
        body = self._asked.body
        text = body.decode(json.detect_encoding(body), "surrogatepass")  # as json.loads reads it
        told = f'{{"given": {json.dumps(given)}, "asked": {text}}}'
        return replace(self._asked, path=GO_ON + self._asked.path, body=told.encode("utf-8", "surrogatepass"))

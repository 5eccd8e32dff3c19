"""kvpress: stock transformers whose prompt a press compresses; run as a script, by a Python that has kvpress."""

import contextlib
from collections.abc import Iterable
from importlib.metadata import version
from itertools import chain
from typing import Any

from hf_worker import Transformers  # type: ignore[import-not-found]
from wire import Missing, Refused, serve  # type: ignore[import-not-found]


class Pressed(Transformers):
    """The whole prompt is compressed, once, after its forward; what is decoded stays."""

    def check(
        self, threads: int, device: str, press: str, values: list[Any], parameters: dict[str, Any]
    ) -> dict[str, str]:
        try:
            import kvpress
        except ImportError as error:
            raise Missing(
                f"{error}; kvpress needs an environment of its own: python -m venv DIR, DIR/bin/pip install kvpress, "
                "then --peer-python kvpress=DIR/bin/python"
            ) from error
        about = super().check(threads, device, cache="dynamic", parameters={})
        self.press = self._made(kvpress, press, values, parameters)
        return {"kvpress": version("kvpress"), **about}

    def _made(self, kvpress: Any, press: str, values: list[Any], parameters: dict[str, Any]) -> Any:
        """A press, and those inside it; raises Refused where there is none of the name, or it takes something else."""
        known = sorted(name for name in dir(kvpress) if name.endswith("Press") and name != "BasePress")
        if press not in known:
            raise Refused(f"there is no press {press!r} in it; it has {', '.join(known)}")
        if "Decoding" in press:
            raise Refused(f"{press} compresses while decoding; only presses that compress the prompt are compared")
        inner = {key: self._made(kvpress, **each) for key, each in _nested(enumerate(values), parameters.items())}
        given = [inner.get(place, each) for place, each in enumerate(values)]
        named = {key: inner.get(key, each) for key, each in parameters.items()}
        try:
            return getattr(kvpress, press)(*given, **named)
        except (TypeError, ValueError, AssertionError) as error:
            raise Refused(f"{press} does not take these parameters: {error or type(error).__name__}") from error

    def prefilling(self) -> contextlib.AbstractContextManager[Any]:
        return self.press(self.model)


def _nested(*given: Iterable[tuple[Any, Any]]) -> list[tuple[Any, dict[str, Any]]]:
    """Those of the values, by place or name, that are presses themselves."""
    return [(key, each) for key, each in chain(*given) if isinstance(each, dict) and "press" in each]


if __name__ == "__main__":
    serve(Pressed())

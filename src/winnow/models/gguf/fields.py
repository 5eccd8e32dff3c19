"""The keys of a GGUF header that describe its architecture, each read with its type checked."""

import math
from typing import Any, NoReturn

import numpy as np

from winnow.errors import ModelError, UnsupportedModelError
from winnow.models.gguf.header import Header

REQUIRED: Any = object()


class Fields:
    """Reads `{architecture}.*` keys by what follows the architecture. A key that nobody has read by the end may change
    the model in a way that nobody knows: `finish` refuses it by name."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.name = header.path.name
        self.prefix = header.architecture + "."
        self.unread = {key for key in header.metadata if key.startswith(self.prefix)}

    def refuse(self, what: str, way_out: str = "get another conversion of the model") -> NoReturn:
        """The file states something that is not supported."""
        raise UnsupportedModelError(f"{self.name}: {what}; {way_out}")

    def damaged(self, what: str) -> NoReturn:
        raise ModelError(f"{self.name}: {what}; the file is damaged: download it again")

    def stated(self, key: str) -> Any:
        """The value as it stands, or None where the file has no such key."""
        self.unread.discard(self.prefix + key)
        value = self.header.metadata.get(self.prefix + key)
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            return value[0].item()  # one number per layer, all the same
        return value

    def integer(self, key: str, default: Any = REQUIRED, least: int = 1) -> Any:
        value = self.stated(key)
        if value is None:
            return self._default(key, default)
        if type(value) is not int or not least <= value < 2**31:
            self._wrong(key, value, f"an integer from {least}")
        return value

    def number(self, key: str, default: Any = REQUIRED, above: float = 0.0) -> Any:
        """A finite float greater than `above`."""
        value = self.stated(key)
        if value is None:
            return self._default(key, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= above:
            self._wrong(key, value, f"a number above {above:g}")
        return _shortest(value)

    def text(self, key: str, default: Any = REQUIRED) -> Any:
        value = self.stated(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, str):
            self._wrong(key, value, "text")
        return value

    def only(self, key: str, *accepted: Any) -> None:
        """Refuse the file where it states anything but one of these values, which change nothing."""
        value = self.stated(key)
        if value is not None and (isinstance(value, str | list | np.ndarray) or value not in accepted):
            self.refuse(f"{self.prefix}{key} = {shown(value)} is not supported")

    def finish(self) -> None:
        if self.unread:
            key = min(self.unread)
            self.refuse(f"{key} = {shown(self.header.metadata[key])} is not understood")

    def _default(self, key: str, default: Any) -> Any:
        if default is REQUIRED:
            self.damaged(f"{self.prefix}{key} is missing")
        return default

    def _wrong(self, key: str, value: Any, wanted: str) -> NoReturn:
        if isinstance(value, np.ndarray):
            self.refuse(f"{self.prefix}{key} differs from layer to layer")
        self.damaged(f"{self.prefix}{key} is {shown(value)}, not {wanted}")


def shown(value: Any) -> str:
    """A value in a message: short, on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _shortest(value: float) -> float:
    """A float32 as it was written: 1e-5 is stored as 9.999999747e-06, and is 1e-5 again here."""
    single = np.float32(value)
    return float(str(single)) if isinstance(value, float) and float(single) == value else value

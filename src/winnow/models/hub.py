"""Models and adapters on the hub: a directory of their files, downloaded or from the cache; one line where neither."""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from winnow.errors import ModelError

PROBE_S = 5.0  # how long to wait for the hub to answer at all, once
MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
ELSEWHERE = ("*/*", "consolidated*")  # folders, and the weights once more under other names


def download(source: str, files: Sequence[str], probe: str) -> Path:
    """A directory with those files of a repository. probe: a file it must have, which tells whether the hub answers.

    Where the hub gives nothing what is in the cache is used. Raises ModelError, after one short attempt, where there is
    nothing.
    """
    try:
        get_hf_file_metadata(hf_hub_url(source, probe), timeout=PROBE_S)
    except HFValidationError as error:
        raise ModelError(f"{source[:80]!r} is neither a directory nor the name of a model on the hub") from error
    except EntryNotFoundError as error:
        raise ModelError(f"{source} on the hub holds no {probe}") from error
    except Exception as error:  # the hub's versions have three HTTP clients, each with errors of its own
        if (found := cached(source, files)) is not None:
            return found
        if isinstance(error, HfHubHTTPError):  # it answers, and gives nothing
            raise ModelError(f"{source} is neither a directory nor can it be downloaded: {_first(error)}") from error
        raise ModelError(
            f"{source} is neither a directory nor in the cache, and the hub cannot be reached ({_first(error)}); "
            "give a directory"
        ) from error
    try:
        return Path(snapshot_download(source, allow_patterns=list(files), ignore_patterns=list(ELSEWHERE)))
    except Exception as error:  # as above
        raise ModelError(f"{source} cannot be downloaded: {_first(error)}") from error


def in_cache(source: str, files: Sequence[str], probe: str) -> Path:
    """What `download` gives, but nothing is downloaded: raises ModelError where it has not been before."""
    if (found := cached(source, files)) is None or not (found / probe).is_file():
        raise ModelError(f"{source} is neither a directory nor in the hub's cache; give a directory, or load it once")
    return found


def cached(source: str, files: Sequence[str] = MODEL_FILES) -> Path | None:
    """The directory of what was downloaded before, None where there is none. Nothing is asked of the network."""
    try:
        return Path(snapshot_download(source, allow_patterns=list(files), local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def _first(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__

import pytest
from transformers import AutoTokenizer

import winnow.tasks.haystack as haystack


@pytest.fixture(scope="session")
def tokenizer():
    """The bundled model's tokenizer, with its chat template."""
    return AutoTokenizer.from_pretrained(haystack.resources.files("winnow").joinpath("assets/needle"))

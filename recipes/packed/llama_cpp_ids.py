"""Write llama.cpp's token ids beside the texts of a sample, for the test that Winnow's are the same.

    python recipes/packed/llama_cpp_ids.py MODEL.gguf tests/models/gguf/llama_cpp_ids.json

Needs the package llama-cpp-python. The sample is a JSON list of {"text", "ids"}; its texts stay as they are.
"""

import argparse
import json
from pathlib import Path

from llama_cpp import Llama


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file; only its vocabulary is read")
    parser.add_argument("sample", type=Path, help="the JSON file to remake")
    args = parser.parse_args()
    texts = [entry["text"] for entry in json.loads(args.sample.read_text(encoding="utf-8"))]
    model = Llama(str(args.model), vocab_only=True, verbose=False)
    ids = [model.tokenize(text.encode(), add_bos=False, special=False) for text in texts]
    lines = [json.dumps({"text": text, "ids": of}, ensure_ascii=False) for text, of in zip(texts, ids, strict=True)]
    args.sample.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()

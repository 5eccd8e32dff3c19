"""Three small tasks of lm_eval's kinds, as files: YAML beside JSON Lines, nothing to download."""

import json
from pathlib import Path

CHOICES = [
    {"question": "The ferry leaves at", "choices": ["nine", "noon", "a quarter past ten"], "answer": 0},
    {"question": "It returns in the", "choices": ["evening", "morning", "night"], "answer": 2},
    {"question": "The harbour is", "choices": ["open", "closed", "x"], "answer": 1},
]
ANSWERS = [{"question": "Say one.", "answer": "one"}, {"question": "Say two or three words.", "answer": "two"}]
TEXTS = [{"text": "The ferry leaves at nine. " * 3}, {"text": "It returns at noon."}]

CHOOSE = """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list:
  - metric: acc
"""
ANSWER = """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: answer
generation_kwargs: {until: ["\\n", "e"], max_gen_toks: 6, do_sample: false, temperature: 0.0}
metric_list:
  - metric: exact_match
"""
ROLL = """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
  - metric: bits_per_byte
"""


def write_tasks(directory: Path) -> Path:
    """`choose`, `answer` and `roll`; and `lost`, whose data is not there."""
    kinds = {"choose": (CHOOSE, CHOICES), "answer": (ANSWER, ANSWERS), "roll": (ROLL, TEXTS), "lost": (CHOOSE, [])}
    for name, (task, documents) in kinds.items():
        data = directory / f"{name}.jsonl"
        if documents:
            data.write_text("".join(json.dumps(each) + "\n" for each in documents), encoding="utf-8")
        source = {"data_files": {"test": str(data)}, "cache_dir": str(directory / "cache")}
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {json.dumps(source)}\ntest_split: test\n"
        (directory / f"{name}.yaml").write_text(head + task.lstrip(), encoding="utf-8")
    return directory

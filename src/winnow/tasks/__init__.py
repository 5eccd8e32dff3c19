"""Tasks that measure retrieval from long prompts: seeded examples of an exact length, with exact scoring.

>>> passkey = task("passkey")
>>> example = passkey.example(random.Random(0), tokens=4096, tokenizer=tokenizer, depth=0.5)
>>> ids = render(example, tokenizer)  # at most 4096 token ids, chat template included
>>> passkey.score(example, "The pass key is 12345.")
"""

from winnow.tasks.example import Example, Task, render
from winnow.tasks.haystack import Haystack
from winnow.tasks.registry import TASKS, task

__all__ = ["TASKS", "Example", "Haystack", "Task", "render", "task"]

"""Names of the tasks and how to make them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from winnow.errors import InputError
from winnow.tasks.babi import Babi
from winnow.tasks.banking77 import Banking77
from winnow.tasks.common_words import CommonWords
from winnow.tasks.covid_qa import CovidQA
from winnow.tasks.example import Task
from winnow.tasks.frequent_words import FrequentWords
from winnow.tasks.gsm8k import Gsm8k
from winnow.tasks.hotpotqa import HotpotQA
from winnow.tasks.kv import KeyValue
from winnow.tasks.kv_list import KeyValueList
from winnow.tasks.kv_retrieval import KvRetrieval
from winnow.tasks.line_retrieval import LineRetrieval
from winnow.tasks.multi_needle import MultiNeedle
from winnow.tasks.niah import Niah
from winnow.tasks.nq_multidoc import NqMultidoc
from winnow.tasks.number import Number
from winnow.tasks.passkey import Passkey
from winnow.tasks.qmsum import QMSum
from winnow.tasks.squality import Squality
from winnow.tasks.variables import Variables

TASKS: dict[str, Callable[..., Task]] = {
    "passkey": Passkey,
    "number": Number,
    "kv": KeyValue,
    "kv_list": KeyValueList,
    "multi_needle": MultiNeedle,
    "variables": Variables,
    "niah_single": Niah,
    "niah_words": partial(Niah, value="words", name="niah_words"),
    "niah_uuids": partial(Niah, value="uuids", name="niah_uuids"),
    "niah_multikey": partial(Niah, keys=4, name="niah_multikey"),
    "niah_multivalue": partial(Niah, values=4, name="niah_multivalue"),
    "niah_multiquery": partial(Niah, keys=4, queries=4, name="niah_multiquery"),
    "common_words": CommonWords,
    "frequent_words": FrequentWords,
    "kv_retrieval": KvRetrieval,
    "line_retrieval": LineRetrieval,
    "nq_multidoc": NqMultidoc,
    "hotpotqa": HotpotQA,
    "babi": Babi,
    "covid_qa": CovidQA,
    "squality": Squality,
    "qmsum": QMSum,
    "banking77": Banking77,
    "banking77_options": partial(Banking77, options=8, name="banking77_options"),
    "gsm8k": Gsm8k,
}


def task(name: str, **parameters: Any) -> Task:
    """The task called `name`, for example `task("passkey", haystack="books")` or `task("kv_retrieval", data="kv")`.

    Raises:
        InputError: no task has this name, or it does not take these parameters; the message lists what there is.
    """
    if name not in TASKS:
        raise InputError(f"no task is called {name!r}; there are {', '.join(TASKS)}")
    try:
        return TASKS[name](**parameters)
    except TypeError as error:
        raise InputError(f"task {name!r}: {error}") from error

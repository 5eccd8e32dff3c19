"""`winnow plans`: the catalogue of policies."""

import dataclasses
import inspect
from typing import Any, get_type_hints

from rich.table import Table

from winnow.cli.commands.models import Plans
from winnow.cli.tables import table_of
from winnow.cli.terminal import console, print_json
from winnow.errors import InputError
from winnow.parameters import type_name
from winnow.plan import policy_named
from winnow.policies.base import Policy
from winnow.policies.registry import POLICIES
from winnow.presses import translate


def plans(options: Plans) -> int:
    """Print the catalogue, one policy, or the plan of a press; returns the exit code."""
    if options.from_ is not None or options.length is not None:
        return _translated(options)
    wanted = list(POLICIES.values()) if options.name is None else [policy_named(options.name)]
    known = [describe(policy) for policy in wanted]
    if options.as_json:
        print_json(known if options.name is None else known[0])
    elif options.name is None:
        console().print(_catalogue(known))
    else:
        print(f"{signature(known[0])}    {known[0]['verb']}\n\n{known[0]['doc']}")
    return 0


def _translated(options: Plans) -> int:
    if options.from_ is None or options.length is None or options.name is not None:
        raise InputError('--from and --length go together, alone: --from "SnapKVPress(0.75)" --length 4096')
    found = translate(options.from_, options.length)
    if options.as_json:
        print_json({**vars(found), "plan": str(found.plan), "removed": found.prompt - found.kept})
        return 0
    print(f"{found.plan}\n\nOf {found.prompt:,} tokens {found.kept:,} units stay per KV head and layer.")
    for note in found.notes:
        print(f"Not the same: {note}.")
    return 0


def describe(policy: type[Policy]) -> dict[str, Any]:
    """Everything a policy says about itself; a parameter without a default has to be given."""
    doc, hints = inspect.getdoc(policy) or "", get_type_hints(policy, include_extras=True)
    return {
        "verb": policy.verb,
        "name": policy.name,
        "parameters": [_parameter(field, hints[field.name]) for field in dataclasses.fields(policy)],
        "summary": doc.partition("\n")[0],
        "source": policy.source,
        "identity": policy.identity,
        "doc": doc,
    }


def signature(policy: dict[str, Any]) -> str:
    """`streaming(sink=4, recent=1024)`, from what `describe` gives."""
    spelled = [p["name"] + (f"={p['default']!r}" if "default" in p else "") for p in policy["parameters"]]
    return f"{policy['name']}({', '.join(spelled)})" if spelled else policy["name"]


def _parameter(field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    known = {"name": field.name, "type": type_name(hint)}
    if field.default_factory is not dataclasses.MISSING:
        return {**known, "default": field.default_factory()}
    if field.default is dataclasses.MISSING:
        return known
    return {**known, "default": list(field.default) if isinstance(field.default, tuple) else field.default}


def _catalogue(policies: list[dict[str, Any]]) -> Table:
    names = {
        "verb": lambda policy: policy["verb"],
        "policy": signature,
        "what it does": lambda policy: policy["summary"],
        "source": lambda policy: policy["source"] or "-",
    }
    return table_of(policies, names, note='A plan joins one per verb: "a(x=1) + b". "full" is full attention.')

"""`winnow plans`: the catalogue of policies."""

import dataclasses
import difflib
import inspect
from typing import Any, get_type_hints

from rich.table import Table

from winnow.cli.commands.models import Plans
from winnow.cli.terminal import console, new_table, print_json
from winnow.errors import PlanError
from winnow.parameters import type_name
from winnow.policies.base import Policy
from winnow.policies.registry import POLICIES


def plans(options: Plans) -> int:
    """Print the catalogue, or one policy; returns the exit code."""
    name = options.name
    if name is not None and name not in POLICIES:
        close = difflib.get_close_matches(name.lower(), POLICIES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise PlanError(f"unknown policy {name!r}: {hint}known policies: {', '.join(POLICIES)}")
    if options.as_json:
        print_json(describe(POLICIES[name]) if name else [describe(policy) for policy in POLICIES.values()])
    elif name:
        _show(describe(POLICIES[name]))
    else:
        console().print(_catalogue([describe(policy) for policy in POLICIES.values()]))
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
    table = new_table(None, 'A plan joins one per verb: "a(x=1) + b". "full" is full attention.')
    for heading in ("verb", "policy", "what it does", "source"):
        table.add_column(heading, no_wrap=heading == "verb")
    for policy in policies:
        table.add_row(policy["verb"], signature(policy), policy["summary"], policy["source"] or "-")
    return table


def _show(policy: dict[str, Any]) -> None:
    print(f"{signature(policy)}    {policy['verb']}")
    print()
    print(policy["doc"])

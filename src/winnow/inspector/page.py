"""A trace as a web page: one file, with its data, style and script inside, that loads nothing from anywhere."""

import html
import json
from importlib.resources import files

from winnow.inspector.trace import Trace

# In the order in which the page loads them: cells.js reads the trace, the others draw what it says.
WEB = files("winnow.inspector") / "web"
SCRIPTS = ("cells.js", "grid.js", "kept.js", "page.js")


def render(trace: Trace) -> str:
    """The page, a complete HTML document; it works from a file, without a network."""
    page = (WEB / "page.html").read_text(encoding="utf-8")
    script, style = code()
    parts = {
        "title": html.escape(f"{trace.plan} on {trace.model}"),
        "style": style,
        "data": embedded(trace),
        "script": script,
    }
    # Cut once, so that a placeholder's spelling inside the text of a prompt stays what it is.
    pieces = page.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def code() -> tuple[str, str]:
    """The texts of the page's one script that runs and of its one style, whatever the trace."""
    script = "\n".join((WEB / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return f"\n{script}\n", f"\n{(WEB / 'page.css').read_text(encoding='utf-8')}\n"


def embedded(trace: Trace) -> str:
    """The trace's JSON as it may stand in a script element: no text of a prompt can end the element."""
    document = json.dumps(trace.to_dict(), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return document.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")

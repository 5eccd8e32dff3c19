"""The page at /: one file with its style and script inside, and a policy under which nothing else runs or is loaded."""

import base64
import hashlib
import re
from importlib.resources import files

from starlette.responses import HTMLResponse, Response

from winnow.inspector.page import code


def page() -> Response:
    """The page; it holds nothing of the server's, and asks for it as any client does."""
    html = (files("winnow.server") / "page.html").read_text(encoding="utf-8")
    # The inspector's page, which this one opens, comes under the same policy.
    scripts, styles = (" ".join(map(_digest, pair)) for pair in zip(_parts(html), code(), strict=True))
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; "
        "connect-src 'self'; img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )
    told = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    return HTMLResponse(html, headers={**told, "Cache-Control": "no-cache"})


def _parts(html: str) -> list[str]:
    """What stands in the one script and the one style of a file."""
    found = [re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL) for element in ("script", "style")]
    return [text for [text] in found]


def _digest(text: str) -> str:
    """What allows an element with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

"""The page at /: one file with its style and script inside, and a policy under which nothing else runs or is loaded."""

import base64
import hashlib
import re
from importlib.resources import files

from starlette.responses import HTMLResponse, Response


def page() -> Response:
    """The page; it holds nothing of the server's, and asks for it as any client does."""
    html = (files("winnow.server") / "page.html").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_digest('script', html)}; style-src {_digest('style', html)}; "
        "connect-src 'self'; img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )
    told = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    return HTMLResponse(html, headers={**told, "Cache-Control": "no-cache"})


def _digest(element: str, html: str) -> str:
    """What allows the one element of that name as it stands in the file."""
    [text] = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

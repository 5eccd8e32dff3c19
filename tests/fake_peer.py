"""A worker that computes nothing: it answers with token 7 and does on request what a broken peer does."""

import json
import os
import signal
import sys
from pathlib import Path

answers, options = 0, {}
for line in sys.stdin:
    request = json.loads(line)
    what = request["do"]
    if what == "check":
        options = request
        if refusal := options.get("refuse"):
            print(json.dumps({"error": refusal, "missing": options["missing"]}), flush=True)
            continue
        found = {"fake": "1.0"}
    elif what == "load":
        found = {}
    elif what == "convert":
        if options.get("stuck"):
            print(json.dumps({"error": f"no {request['kind']} of it", "missing": False}), flush=True)
            continue
        Path(request["target"]).write_text(f"{Path(request['source']).read_text()} as {request['kind']}")
        found = {}
    elif what == "follow":
        slow, after = options.get("slow", 1), len(request["ids"]) - request["prompt"]
        found = {"prefill_s": slow * request["prompt"], "seconds": [slow, *[2 * slow] * (after - 1)]}
        found |= {"cache_bytes": len(request["ids"]), "kept_units": None, "peak_bytes": None}
    else:
        if answers == options.get("until"):
            if options["how"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            print("Traceback: ...\nMemoryError: no room for 9 units", file=sys.stderr)
            sys.exit(3)
        answers += 1
        tokens = [7] * request["max_tokens"]
        found = {"token_ids": tokens, "ttft_s": 0.5, "total_s": 1.5, "cache_bytes": 64}
        found |= {"kept_units": 4, "peak_bytes": 1000 * answers}
    print(json.dumps({"ok": found}), flush=True)

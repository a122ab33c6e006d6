"""comfyui-skill-cli: a workflow becomes a skill, which runs, reports and is refused.

Its websocket has no field for a key, so its address has the key.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PROMPT = json.loads(os.environ["PROMPT"])
SKILL = Path(sys.executable).with_name("comfyui-skill")


def skill(*arguments: str, code: int = 0) -> Any:
    """Run the program and return its answer, or its events."""
    done = subprocess.run(
        [SKILL, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    lines = (done.stdout or done.stderr).splitlines()
    found = [json.loads(line) for line in lines if line.startswith(("{", "["))]
    return found if "stream-json" in arguments else found[-1]


def run_skill() -> None:
    Path("flow.json").write_text(json.dumps(PROMPT))
    skill("--json", "workflow", "import", "flow.json", "--name", "flow")
    described = skill("--json", "info", "local/flow")
    values = {
        name: "a large red circle on white" for name in described["parameters"] if "text" in name
    }
    events = skill(
        "--output-format", "stream-json", "run", "local/flow", "--args", json.dumps(values)
    )
    names = [event["event"] for event in events]
    # A short job may end before its progress is sent.
    assert {"queued", "started", "node_completed"} <= set(names), names
    assert names[-1] == "completed", events
    [output] = events[-1]["outputs"]
    shutil.copy(output["local_path"], "made.png")


def is_refused() -> None:
    broken = json.loads(json.dumps(PROMPT))
    broken["4"]["inputs"]["ckpt_name"] = "missing.safetensors"
    Path("broken.json").write_text(json.dumps(broken))
    skill("--json", "workflow", "import", "broken.json", "--name", "broken")
    values = json.dumps({"text": "x", "text_6": "x", "text_7": "x"})
    refused = skill("--json", "run", "local/broken", "--args", values, code=1)
    assert refused["error"]["code"] == "SUBMIT_FAILED", refused


def ask() -> None:
    assert skill("--json", "server", "status")["status"] == "online"
    assert skill("--json", "server", "stats")["devices"]
    assert PROMPT["4"]["inputs"]["ckpt_name"] in json.dumps(
        skill("--json", "models", "list", "checkpoints")
    )
    assert "KSampler" in json.dumps(skill("--json", "nodes", "list"))
    assert skill("--json", "upload", "made.png")
    skill("--json", "queue", "list")
    skill("--json", "logs", "show")
    skill("--json", "free")
    skill("--json", "history", "list", "local/flow")
    skill("--json", "templates", "list")


def main() -> None:
    Path("config.json").write_text('{"servers": []}')
    address = f"{os.environ['URL']}/key/{os.environ['KEY']}"
    skill("--json", "server", "add", "--id", "local", "--url", address)
    run_skill()
    is_refused()
    ask()


main()

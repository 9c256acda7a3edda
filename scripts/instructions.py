"""Instructions that the text core needs for a mebibyte, beside the recorded ones: a guard against regressions.

    python scripts/instructions.py            compare, fail where one grew by more than a tenth
    python scripts/instructions.py --record   write benches/instructions.json anew

Counted by valgrind's callgrind, so the load of the machine does not matter; another compiler may shift the figures.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benches" / "instructions.json"
PROGRAM = ROOT / "target" / "release" / "examples" / "text_cost"
TASKS = (
    "neutralize-clean",
    "neutralize-dirty",
    "restore",
    "guard-large",
    "guard-tokens",
    "capture-slots",
    "expand-slots",
    "parse-tool-calls",
    "check-arguments",
    "repair-json",
    "encode-tight",
    "decode-tight",
)


def count(task: str) -> int:
    run = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", str(PROGRAM), task],
        capture_output=True,
        text=True,
        check=True,
    )
    match = re.search(r"Collected : (\d+)", run.stderr)
    if match is None:
        raise SystemExit(f"callgrind printed no count for {task}:\n{run.stderr}")
    return int(match[1])


def main() -> None:
    build = ["cargo", "build", "--release", "--quiet", "-p", "agentkit-core", "--example", "text_cost"]
    subprocess.run(build, check=True, cwd=ROOT)
    idle = count("nothing")
    counted = {task: count(task) - idle for task in TASKS}
    if "--record" in sys.argv[1:]:
        RECORD.write_text(json.dumps(counted, indent=2) + "\n", encoding="utf-8")
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    grown = []
    for task, now in counted.items():
        before = recorded.get(task)
        if before is None:
            raise SystemExit(f"{task} is not recorded yet: run with --record")
        print(f"{task:18} {now:>12,}  {now / before:6.2f} x the recorded")
        if now > before * 1.1:
            grown.append(task)
    if grown:
        raise SystemExit(f"more instructions than recorded, by over a tenth: {', '.join(grown)}")


if __name__ == "__main__":
    main()

"""What importing the package costs: a whole interpreter with it, beside one without.

The difference of the two medians is the price of `import agentkit_fast`.
"""

import subprocess
import sys

import pytest


@pytest.mark.benchmark(group="import")
@pytest.mark.parametrize(
    "statement", ["pass", "import agentkit_fast", "import msgspec", "from agentkit_fast import Entry"]
)
def test_interpreter(benchmark, statement: str) -> None:
    benchmark.pedantic(
        lambda: subprocess.run([sys.executable, "-c", statement], check=True), rounds=15, warmup_rounds=2
    )

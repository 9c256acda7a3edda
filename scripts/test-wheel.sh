#!/usr/bin/env bash
# Builds the sdist, builds the wheel from it, installs the wheel into a clean environment outside the
# checkout and runs the tests there, so that what users get is what was tested.
#   scripts/test-wheel.sh VENV_BIN
set -euo pipefail
bin=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo ">> sdist"
"$bin/maturin" sdist --manifest-path "$root/rust/py/Cargo.toml" --out "$work/sdist"
echo ">> wheel from the sdist"
mkdir "$work/src" && tar -xzf "$work"/sdist/*.tar.gz -C "$work/src" --strip-components 1
(cd "$work/src" && CARGO_TARGET_DIR="$root/target" "$bin/maturin" build --quiet --profile dist --zig \
    --compatibility manylinux2014 --out "$work/wheels")
ls -l "$work/wheels"
echo ">> clean environment"
"$bin/python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$work"/wheels/*.whl
echo ">> the plain install imports and its command runs"
(cd "$work" && venv/bin/python -c 'import agentkit_fast as a; print(a.__version__); all(getattr(a, n) is not None for n in a.__all__)')
echo ">> tests against the installed wheel"
mkdir "$work/run" && cp -r "$work/src/tests" "$work/run/tests" && cp "$work/src/pyproject.toml" "$work/run/"
(cd "$work/run" && PIP_DISABLE_PIP_VERSION_CHECK=1 "$work/venv/bin/python" -m pip install --quiet --group test \
    "$(ls "$work"/wheels/*.whl)[http,schema]" && "$work/venv/bin/python" -m pytest -q -m "not slow and not model" --maxfail 20)

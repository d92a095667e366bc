"""Runs the program `schemathesis` over the OpenAPI document of a service.

`python -m tests.service.schemathesis PROGRAM`. The program has an environment of its own; `make test-service` makes it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from intarsia.encoder.encoder import Encoder
from tests.support.families import save_tiny
from tests.support.service import served, small_bank

# A deadline of a millisecond, which it also tries, may pass: 504.
CONFIGURATION = '[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "504"]\n'
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        base = save_tiny(Path(folder) / "base")
        bank = small_bank(Path(folder) / "bank", Encoder.load(base)).store.folder
        with served(bank, "--uploads", "--no-jobs") as process:
            url = f"{process.running.url}/openapi.json"
            configuration = Path(folder) / "schemathesis.toml"
            configuration.write_text(CONFIGURATION)
            command = [
                sys.argv[1],
                "--config-file",
                str(configuration),
                "run",
                url,
                "--checks",
                CHECKS,
                "--max-examples",
                sys.argv[2] if len(sys.argv) > 2 else "200",
                "--seed",
                "1",
            ]
            return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

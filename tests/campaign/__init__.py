"""The campaign: kills, crash points, injected errors, fuzzed inputs, threads and processes, for as long as it is told.

    make campaign              20 minutes
    make campaign MINUTES=120

It writes results/campaign.json, with the counts and seeds of all runs so far, and docs/campaign.md from it.
"""

from __future__ import annotations

import os

# Before torch is loaded: a forked child cannot use threads of its parent.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

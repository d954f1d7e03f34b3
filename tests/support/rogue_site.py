"""A site that misbehaves, by $FAULT: nan, replay, slow and raise in training, silent from the beginning.

All else is `pfedhgp client`.
"""

from __future__ import annotations

import os
import sys
import time

from pfedhgp.cli.main import main
from pfedhgp.federation.flower import site as sites
from support.reference_federation import with_nan

FAULT = os.environ["FAULT"]
honest = sites.Site.answer
first = {}


def answer(self, request):
    if FAULT == "silent":
        time.sleep(3600.0)
    if request.kind not in ("start", "round"):
        return honest(self, request)
    if FAULT == "slow" and request.kind == "round" and request.round < 3:
        self.audit.append("note", code=f"slow {request.round}")
        time.sleep(6.0)
    if FAULT == "raise":
        self.read = lambda text: 1 / 0
        self.open_runs.clear()
    reply = honest(self, request)
    kept = first.setdefault("reply", reply)
    if FAULT == "nan":
        return with_nan(reply)
    if request.kind == "round" and FAULT == "replay":
        return kept
    return reply


sites.Site.answer = answer
sys.exit(main(sys.argv[1:]))

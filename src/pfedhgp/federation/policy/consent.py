"""How a site agrees to the terms of a run: by a file that it has, or by a person who reads them.

Approved terms stay in HOME/agreed.json. From then on the site takes part on these terms without being asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.federation.agreement import Agreement, difference, same
from pfedhgp.federation.envelope import Refused
from pfedhgp.settings import config as configs
from pfedhgp.settings.config import SETTINGS

FILE = "agreed.json"
Approve = Callable[[str], bool]
"""Shows a text to a person, who says yes or no."""


@dataclass(frozen=True)
class Consent:
    """The terms that a site takes part on: `expected`, or those that were approved in this home before."""

    home: Path
    expected: str | None = None
    approve: Approve | None = None
    required: bool = True

    def agreed(self) -> str | None:
        """The terms as they were agreed, or None."""
        path = self.home / FILE
        if self.expected is not None or not path.is_file():
            return self.expected
        return path.read_text(encoding="utf-8")

    def check(self, terms: str) -> None:
        """Refuses terms that nobody here has agreed to, or can be asked about."""
        known = self.agreed()
        if known is not None and same(known, terms):
            return
        if self.expected is not None:
            raise Refused("config", difference(self.expected, terms))
        if self.approve is not None or not self.required:
            return
        if known is not None:
            raise Refused("config", f"not the approved terms: {difference(known, terms)}")
        raise Refused("config", "nobody here has agreed to any terms: give --config, or --ask")

    def ask(self, terms: str, more: str) -> None:
        """Shows the terms of a new run to a person, if there is one; keeps them if they are approved."""
        if self.approve is None:
            return
        if not self.approve(f"{words(terms)}\n{more}"):
            raise Refused("policy", "the run was not approved")
        if self.expected is None:
            write_bytes(self.home / FILE, terms.encode("utf-8"))


def terms_of_file(path: Path) -> str:
    """The terms of a settings file, as a server that has the same file sends them."""
    return Agreement.of(configs.read(path)).to_json()


def words(terms: str) -> str:
    """The terms for a person: the columns, and every setting that is not the default."""
    agreement = Agreement.from_json(terms)
    columns, tree = agreement.columns, agreement.config.tree()
    said = [
        f"  inputs   {', '.join(columns.input_names)}",
        f"  outputs  {', '.join(columns.outputs)}",
    ]
    for each in SETTINGS:
        value = tree[each.section][each.toml_key]
        usual: Any = list(each.default) if isinstance(each.default, tuple) else each.default
        if each.in_terms and value != usual and each.name not in ("inputs", "outputs"):
            said.append(f"  {each.section}.{each.toml_key} = {json.dumps(value)}")
    return "\n".join(said)

"""A site that missed the model, at the level of files: RUN, its checkpoint, and the command given again."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pfedhgp.errors import InputError
from pfedhgp.federation.flower import audit
from pfedhgp.federation.schema import DELIVER
from pfedhgp.model import files
from pfedhgp.settings import config as configs
from support.flower_processes import needs_flower
from support.reference_federation import LocalLink, agreement, rows_of, site_of

needs_flower()
from pfedhgp.federation.flower.server_process import PARTICIPATION, Coordinator  # noqa: E402

pytestmark = pytest.mark.flower
NAMES = ("north", "south", "east")
ROWS = rows_of(NAMES)


def test_who_missed_the_model_gets_it_when_the_command_is_given_again(tmp_path):
    """RUN is whole and keeps its checkpoint until every site has the model; nothing is trained twice."""
    (tmp_path / "run.toml").write_text(configs.to_toml(agreement().config), encoding="utf-8")
    (tmp_path / "sites.toml").write_text('[sites]\nnorth = ""\nsouth = ""\neast = ""\n')
    given = {"config": tmp_path / "run.toml", "sites": tmp_path / "sites.toml"}
    given |= {"out": tmp_path / "RUN", "keys": False, "timeout": 0.5}
    delivered = {}
    sites = {row.name: site_of(tmp_path / row.name, row, delivered) for row in ROWS}

    class Deaf(LocalLink):
        """South does not hear of the model."""

        def push(self, name, request, lifetime):
            return (name, request.kind) != ("south", DELIVER) and super().push(
                name, request, lifetime
            )

    first = Coordinator.of(**given).run(Deaf(sites))
    assert first["without_model"] == {"south": "no-answer"}
    assert set(delivered) == {"north", "east"}
    trained, log = files.load(tmp_path / "RUN"), (tmp_path / "RUN" / PARTICIPATION).read_bytes()

    link = LocalLink(sites)
    again = Coordinator.of(**given)
    assert again.resume
    second = again.run(link)
    assert [(name, request.kind) for name, request in link.seen] == [("south", DELIVER)]
    assert set(delivered) == set(NAMES)
    assert second == {**first, "without_model": {}}
    found = files.load(tmp_path / "RUN")
    for one, two in zip(
        jax.tree.leaves(found.shared), jax.tree.leaves(trained.shared), strict=True
    ):
        np.testing.assert_array_equal(one, two)
    assert [m["to"] for m in found.messages[len(trained.messages) :]] == ["south", "server"]
    assert (tmp_path / "RUN" / PARTICIPATION).read_bytes() == log
    assert audit.check(tmp_path / "RUN").bad_line is None
    with pytest.raises(InputError, match="already exists"):
        Coordinator.of(**given)

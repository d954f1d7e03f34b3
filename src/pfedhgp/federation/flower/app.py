"""The Flower app: a ServerApp that drives the engine over the Grid, a ClientApp that asks the site.

`pfedhgp server` and `pfedhgp client` do the same without Flower's starting them; `flwr run` runs these from
the small app that `python -m pfedhgp.federation.flower.write_app DIR` writes, with the paths of settings and
homes in Flower's own configuration.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

WAIT = 600.0
"""Seconds that a message waits for the one before, where that has not been answered yet."""
client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """For Flower's own SuperNode: the home and the data are in its `--node-config`."""
    from pfedhgp.base.compilation_cache import use_compilation_cache

    use_compilation_cache()  # each message is a process of its own
    from pfedhgp.errors import InputError
    from pfedhgp.federation.flower.answering import answer, failed
    from pfedhgp.federation.flower.participant import make_site
    from pfedhgp.federation.flower.processes import locked, private_folder
    from pfedhgp.federation.flower.site import where

    options = context.node_config
    try:
        home = Path(str(options["home"]))
        private_folder(home, "home")
        with locked(home, "message", wait=WAIT):
            site = make_site(
                home=home,
                name=str(options["name"]),
                data=[Path(str(options["data"]))],
                least_rows=int(options.get("least-rows", 5)),
            )
            return answer(message, site)
    except Exception as error:  # Flower would send its text, with paths of this machine
        said = error if isinstance(error, InputError) else where(error)
        print(f"pfedhgp: error: {said}", file=sys.stderr)
        return failed(message, str(options.get("name", "")))


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """For `flwr run`: the settings, the sites and RUN are in its `--run-config`."""
    from pfedhgp.base.compilation_cache import use_compilation_cache

    use_compilation_cache()
    from pfedhgp.federation.flower.coordinator import Coordinator
    from pfedhgp.federation.flower.grid_link import GridLink

    options = context.run_config
    coordinator = Coordinator.of(
        config=Path(str(options["config"])),
        sites=Path(str(options["sites"])),
        out=Path(str(options["out"])),
        keys=False,
        timeout=float(options["timeout"]),
        quorum=int(options["quorum"]) or None,
    )
    coordinator.run(GridLink(grid, coordinator.sites))

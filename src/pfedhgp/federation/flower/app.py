"""The Flower app: a ServerApp that trains over Flower's Grid and a ClientApp that answers for a site.

`pfedhgp server` and `pfedhgp client` do the same without being started by Flower. For Flower's own commands,

    python -m pfedhgp.federation.flower.app DIR

writes a small app into DIR, for `flwr run DIR`; paths of settings and homes are in Flower's configuration.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.errors import InputError

WAIT = 600.0
"""Seconds that a message waits until the one before it is answered."""
client_app = ClientApp()
server_app = ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """For Flower's own SuperNode: the home and the data are in its `--node-config`."""
    use_compilation_cache()  # each message is a process of its own
    from pfedhgp.federation.flower import site as sites
    from pfedhgp.federation.flower.processes import locked, private_folder
    from pfedhgp.federation.flower.refusal_codes import place_of
    from pfedhgp.federation.flower.transport import refusal_of, reply_to
    from pfedhgp.federation.policy.consent import terms_of_file
    from pfedhgp.federation.policy.settings import read

    options = context.node_config
    try:
        home = Path(str(options["home"]))
        private_folder(home, "home")
        with locked(home, "message", wait=WAIT):
            config, policy = (options.get(name) for name in ("config", "policy"))
            site = sites.site_from_files(
                home=home,
                name=str(options["name"]),
                data=[Path(str(options["data"]))],
                least_rows=int(options.get("least-rows", 5)),
                masks=_mask_keys(options),
                answers_all=bool(options.get("i-know", False)),
                expected=None if config is None else terms_of_file(Path(str(config))),
                policy=None if policy is None else read(Path(str(policy))),
            )
            reply = reply_to(message, site)
            _finish(site)
            return reply
    except Exception as error:  # Flower would send its text, with paths of this machine
        text = error if isinstance(error, InputError) else place_of(error)
        print(f"pfedhgp: error: {text}", file=sys.stderr)
        return refusal_of(message, str(options.get("name", "")))


def _finish(site: Any) -> None:
    """A private run's model. Flower sends the answer when this function is done; it does not depend on it."""
    try:
        site.finish()
    except InputError as error:
        print(f"pfedhgp: error: {error}", file=sys.stderr)


def _mask_keys(options: Mapping[str, Any]) -> Any:
    """For runs with masks, the node config names `key` and `roster`."""
    from pfedhgp.federation.flower.pinned_roster import mask_keys

    if "roster" not in options or "key" not in options:
        return None
    return mask_keys(str(options["roster"]), Path(str(options["key"])))


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """For `flwr run`: the settings, the sites and RUN are in its `--run-config`."""
    use_compilation_cache()  # before JAX is imported
    from pfedhgp.federation.flower.server_process import Coordinator
    from pfedhgp.federation.flower.transport import GridLink

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


def app_files() -> dict[str, bytes]:
    """The app's files by path. They lie in `bundle` as text, so that no tool takes them for a package."""
    folder = Path(__file__).with_name("bundle")
    return {
        path.relative_to(folder).as_posix().removesuffix(".txt"): path.read_bytes()
        for path in sorted(folder.rglob("*.txt"))
    }


def write_app(folder: Path) -> None:
    """Writes the app into a new folder. Its only code imports the two apps above."""
    if folder.exists():
        raise InputError(f"{folder} already exists: choose a new folder for the app")
    for name, content in app_files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m pfedhgp.federation.flower.app DIR")
    try:
        write_app(Path(sys.argv[1]))
    except InputError as error:
        print(f"pfedhgp: error: {error}", file=sys.stderr)
        sys.exit(2)

"""Many sites in one process: `python -m pfedhgp.federation.flower.trial.host SETTINGS.json`.

Each site has a key, a TLS connection and a node of its own, in a thread that speaks Flower's Fleet API with
Flower's own code. What a real site has besides, a process with a SuperNode, costs the site's machine and not
the server. Answers are computed one at a time.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_object_contents_from_iterable,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.flower.site import Site
from pfedhgp.federation.flower.supernode import BREATH, POLL
from pfedhgp.federation.flower.transport import LARGEST_REQUEST, from_records, to_records
from pfedhgp.federation.flower.trial.in_memory import trial_site
from pfedhgp.federation.flower.trial.population import Behaviour, Population
from pfedhgp.settings import config as configs

one_at_a_time = threading.Lock()


def answer(message: Message, site: Site, how: Behaviour) -> Message | None:
    """The reply, or None if the site has left."""
    request = from_records(message.content, most_bytes=LARGEST_REQUEST)
    if how.is_gone(request):
        return None
    with one_at_a_time:
        TaskIdentity.task_id, TaskIdentity.run_id = 1, message.metadata.run_id
        TaskIdentity.node_id = message.metadata.dst_node_id
        return Message(to_records(how.changed(site.answer(request))), reply_to=message)


def serve(site: Site, how: Behaviour, *, server: str, ca: bytes, key: Path) -> None:
    """Until the site leaves, or this process is ended."""
    private: Any = load_ssh_private_key(key.read_bytes(), None)
    keys = (private, private.public_key())
    with http_request_response(server, False, ca, keys) as connection:
        _, receive, send, _, _, pull_object, push_object, confirm = connection
        while True:
            began = time.monotonic()
            found = receive()
            if found is None:
                time.sleep(BREATH if time.monotonic() - began > POLL else POLL)
                continue
            message, tree = found
            run, number = message.metadata.run_id, message.metadata.message_id
            parts = pull_objects(
                [each.object_id for each in iterate_object_tree(tree)],
                lambda part, run=run: pull_object(run, part),
            )
            confirm(run, number)
            whole = inflate_object_from_contents(number, parts)
            whole.metadata.__dict__["_message_id"] = number
            time.sleep(how.seconds())
            reply = answer(whole, site, how)
            if reply is None:
                return
            _send(reply, send, push_object)
            site.finish()


def _send(reply: Message, send: Any, push_object: Any) -> None:
    with no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        parts = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
        wanted, session = send(reply, get_object_tree(reply), 0.0)
    push_object_contents_from_iterable(
        ((name, content) for name, content in parts.items() if name in wanted),
        lambda name, content: push_object(reply.metadata.run_id, session, name, content),
    )


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    population, folder = Population(**given["population"]), Path(given["folder"])
    ca = Path(given["ca"]).read_bytes()
    terms = Agreement.of(configs.read(Path(given["config"])))
    threads = []
    for name, key in given["keys"].items():
        site = trial_site(population, name, folder, terms)
        more = {"server": given["server"], "ca": ca, "key": Path(key)}
        threads.append(
            threading.Thread(
                target=serve, args=(site, population.behaviour(name)), kwargs=more, daemon=True
            )
        )
    for thread in threads:
        thread.start()
        time.sleep(0.02)  # two hundred handshakes at once would time out on a small machine
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()

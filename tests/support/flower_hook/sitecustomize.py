"""Notes every address that a process connects to or looks up, where $CONNECTS says."""

import os
import sys

if path := os.environ.get("CONNECTS"):

    def note(event, arguments):
        if event == "socket.connect":
            address = arguments[1]
        elif event == "socket.getaddrinfo":
            address = arguments[:2]
        else:
            return
        with open(path, "a") as file:
            file.write(f"{event} {address!r}\n")

    sys.addaudithook(note)

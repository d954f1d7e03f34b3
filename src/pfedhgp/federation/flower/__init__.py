"""The federation between machines, on Flower; needs the extra `pfedhgp[flower]`.

    site                the site's side of a message: state on its own disk, checks, audit (no Flower in it)
    engine              the server's side: who is asked, who is waited for, who is counted (no Flower in it)
    roster              what the server remembers of its sites
    wire                our messages as Flower's records, and back
    app                 the ServerApp and the ClientApp
    processes           SuperLink and SuperNode as child processes
    certs               a certificate authority, a server certificate and site keys, for a trial

Flower carries the messages between machines, with TLS and node authentication; nothing here listens or
connects by itself.
"""

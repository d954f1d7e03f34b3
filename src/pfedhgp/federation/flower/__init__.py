"""The federation between machines, on Flower; needs the extra `pfedhgp[flower]`.

Without Flower in them:

    exchange            the server's side of an exchange: asks every site, waits, counts the replies
    site                the site's side: checks a request, answers it from its own rows; its fitted model
    private_site        the same in a run with differential privacy: releases, totals_site: totals
    row_epochs          when a release is new, which the site's owner says
    kept_delivery       a private run's delivery, on disk until the site has its model
    state               what both remember on disk
    waiting             how long it waits, and what it says meanwhile
    spool               replies that wait for the others, in memory or on disk
    audit               the log of what left a machine

On Flower:

    server_process      `pfedhgp server`
    site_process        `pfedhgp client`
    transport           messages as Flower's records, and the server's link to its sites
    superlink           Flower's process at the server
    body_limits         how much of a request it reads
    reply_stream        how the server fetches replies from it, one at a time
    supernode           Flower's process at a site
    connection          its connection, which outlasts what networks do
    watchdog            sees from outside whether it is connected, stuck or failing
    server_probe        whether the server is there, and why not
    processes           child processes, locks, ports; a whole federation on one machine
    certificates        a certificate authority, a server certificate and site keys, for a trial
    app                 the ServerApp and the ClientApp, for Flower's own commands

Flower carries the messages between machines, with TLS and node authentication. Nothing here listens or
connects by itself.
"""

"""The live page of a server or a site: a state as HTML, as metrics and as JSON, behind a token."""

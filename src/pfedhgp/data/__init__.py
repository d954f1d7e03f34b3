"""Tables in, validation, and the scaling that clients agree on."""

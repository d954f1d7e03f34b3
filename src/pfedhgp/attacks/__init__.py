"""Attacks on one's own messages: what somebody who has them can learn of the rows."""

"""What a federation is doing, for people and programs that watch it: events in, a frozen state out."""

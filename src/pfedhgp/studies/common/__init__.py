"""What the studies share: results on disk, summaries, schedules, figures."""

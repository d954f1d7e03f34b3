"""Memory that is kept while we compute: it changes nothing but where freed memory stays."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.base import kept_memory as kept


class Recorder:
    """A C library that writes down what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def mallopt(self, *what: int) -> None:
        self.asked.append(what)

    def malloc_trim(self, pad: int) -> None:
        self.asked.append((pad,))


def test_the_outermost_block_gives_memory_back(monkeypatch):
    libc = Recorder()
    monkeypatch.setattr(kept, "_glibc", lambda: libc)
    with kept.kept_memory():
        with pytest.raises(ValueError, match="inside"), kept.kept_memory():
            raise ValueError("inside")
        assert (0,) not in libc.asked
        assert libc.asked[-1] == (kept.MMAP, 64 * kept.MIB)
    assert libc.asked[-3:] == [(kept.TRIM, 64 * kept.MIB), (kept.MMAP, 32 * kept.MIB), (0,)]


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(kept, "_glibc", lambda: None)
    with kept.kept_memory():
        assert np.ones(2**20).sum() == 2**20


def test_a_real_library_takes_the_settings():
    with kept.kept_memory():
        for _ in range(3):
            assert np.ones((64, 2**14)).sum() == 64 * 2**14

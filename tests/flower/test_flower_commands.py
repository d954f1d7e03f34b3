"""What the federation's commands refuse, in one line and before anything is started."""

from __future__ import annotations

import stat

import pytest

from flower_processes import needs_flower, write_rows
from reference_federation import rows_of

needs_flower()
from pfedhgp.federation.flower.certs import read_sites, site_hash  # noqa: E402

pytestmark = pytest.mark.flower
SETTINGS = '[data]\ninputs = ["x"]\noutputs = ["y"]\n'


@pytest.fixture
def there(tmp_path, monkeypatch, run):
    """Certificates, settings and rows."""
    monkeypatch.chdir(tmp_path)
    assert run("certs", "--site", "a", "--site", "b/ü", "--out", "certs").code == 0
    (tmp_path / "run.toml").write_text(SETTINGS)
    write_rows(tmp_path / "rows.parquet", rows_of(["a"])[0])
    return tmp_path


SERVER = ["server", "--config", "run.toml", "--sites", "certs/sites.toml", "--out", "RUN"]
CLIENT = [
    "client",
    "--data",
    "rows.parquet",
    "--name",
    "a",
    "--server",
    "127.0.0.1:9",
    "--home",
    "home",
]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*SERVER], "--certs is missing"),
        ([*SERVER, "--insecure"], "--insecure is for this machine alone"),
        ([*SERVER, "--certs", "elsewhere"], "ca.crt: no such file"),
        ([*SERVER, "--certs", "certs", "--listen", "9092"], "--listen must be HOST:PORT"),
        ([*SERVER, "--certs", "certs", "--quorum", "3"], "--quorum must be from 1 to 2"),
        ([*SERVER, "--certs", "certs", "--timeout", "0"], "--timeout must be positive"),
        ([*CLIENT], "--ca is missing"),
        ([*CLIENT, "--ca", "certs/ca.crt"], "--key is missing"),
        ([*CLIENT, "--ca", "certs/ca.crt", "--key", "certs/ca.crt"], "not an ECDSA private key"),
        ([*CLIENT, "--insecure", "--ca", "certs/ca.crt"], "goes without --ca"),
        (
            [*CLIENT[:5], "--server", "10.0.0.1:9", "--home", "home", "--insecure"],
            "--server must be 127.0.0.1",
        ),
        (["certs", "--site", "a", "--out", "certs"], "certs is not empty"),
        (["certs", "--site", "a", "--site", "a", "--out", "new"], "'a' is named twice"),
        (["certs", "--out", "new"], "--site is missing"),
        (
            ["certs", "--site", "a", "--host", "bad host\u2028", "--out", "new"],
            "neither an address",
        ),
    ],
)
def test_wrong_use_is_one_line(there, run, arguments, words):
    assert words in run(*arguments).complaint
    assert not (there / "RUN" / "checkpoint" / "flower").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sites]\n", "expected one table"),
        ('[sites]\n"a" = "{a}"\n"a" = "{b}"\n', "a site is named twice"),
        ('[sites]\n"a" = "{a}"\n"b" = "{a}"\n', "'a' and 'b' have the same key"),
        ('[sites]\n"a" = "ssh-ed25519 AAAA"\n', "site 'a': not an ECDSA public key"),
        ('[sites]\n"a" = 3\n', "the public key is not a string"),
        ("sites = 3", "expected one table"),
        ("[sites", "not TOML"),
    ],
)
def test_a_wrong_list_of_sites_is_refused(there, run, text, words):
    keys = list(read_sites(there / "certs" / "sites.toml").values())
    (there / "wrong.toml").write_text(text.replace("{a}", keys[0]).replace("{b}", keys[1]))
    wrong = ["wrong.toml" if word == "certs/sites.toml" else word for word in SERVER]
    assert words in run(*wrong, "--certs", "certs").complaint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[data]\noutputs = ["y"]\n', "`inputs` in [data] is missing"),
        (SETTINGS + 'datetimes = ["z"]\n', "'z' is not an input"),
        ('[data]\ninputs = ["x"]\noutputs = ["x"]\n', "column 'x' is used twice"),
        (SETTINGS + '[model]\nlayers = ["deviation"]\n', "the global layer, which is missing"),
        (SETTINGS + "[modle]\n", "did you mean `model`?"),
    ],
)
def test_wrong_settings_are_refused(there, run, text, words):
    (there / "run.toml").write_text(text)
    assert words in run(*SERVER, "--certs", "certs").complaint


def test_keys_are_their_owners_alone_and_names_are_in_no_path(there):
    for path in (*(there / "certs").rglob("*.key"),):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {p.stem for p in (there / "certs" / "sites").iterdir()} == {
        site_hash("a"),
        site_hash("b/ü"),
    }
    assert list(read_sites(there / "certs" / "sites.toml")) == ["a", "b/ü"]


def test_a_site_makes_its_own_key_and_prints_its_line(there, run):
    result = run("certs", "--key-only", "--site", "a", "--out", "own.key")
    (there / "own.toml").write_text("[sites]\n" + result.out)
    assert list(read_sites(there / "own.toml")) == ["a"]
    assert (
        "already exists" in run("certs", "--key-only", "--site", "a", "--out", "own.key").complaint
    )


def test_a_home_is_one_sites(there, run):
    from pfedhgp.federation.flower.participant import make_site

    make_site(home=there / "home", name="b", data=[there / "rows.parquet"])
    key = there / "certs" / "sites" / f"{site_hash('a')}.key"
    result = run(*CLIENT, "--ca", "certs/ca.crt", "--key", key)
    assert "the home of another site" in result.complaint

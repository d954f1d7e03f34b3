"""What the federation's commands refuse, in one line and before anything is started."""

from __future__ import annotations

import datetime
import socket
import stat
import tomllib
import warnings
from types import SimpleNamespace

import pytest

from pfedhgp.cli import federate as federating
from pfedhgp.cli.fit_from_files import FitJob
from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.federation.agreement import difference
from pfedhgp.federation.envelope import Envelope
from pfedhgp.federation.flower.site import site_from_files
from pfedhgp.settings import config as configs
from pfedhgp.settings.for_columns import Kernels
from support.flower_processes import needs_flower, write_rows
from support.reference_federation import agreement, rows_of

needs_flower()
from pfedhgp.federation.flower import certificates  # noqa: E402
from pfedhgp.federation.flower.certificates import make_certificates, read_sites  # noqa: E402
from pfedhgp.federation.flower.processes import private_folder  # noqa: E402
from pfedhgp.federation.flower.server_process import Coordinator  # noqa: E402
from pfedhgp.federation.flower.state import site_hash  # noqa: E402

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
RENEW = ["certs", "--renew", "--out", "certs"]
NOBODY = SimpleNamespace(training=[])
ELSEWHERE = ["sites.toml" if word == "certs/sites.toml" else word for word in SERVER]
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
        (
            [*SERVER, "--listen", "127.0.0.2:9092"],
            "server.crt is not for 127.0.0.2",
        ),  # those beside sites.toml
        ([*ELSEWHERE], "--certs is missing, and there is no ca.crt beside sites.toml"),
        ([*SERVER, "--insecure"], "--insecure is for this machine alone"),
        ([*SERVER, "--certs", "elsewhere"], "ca.crt: no such file"),
        ([*SERVER, "--certs", "certs", "--listen", "9092"], "--listen must be HOST:PORT"),
        ([*SERVER, "--certs", "certs", "--quorum", "3"], "--quorum must be from 1 to 2"),
        ([*SERVER, "--certs", "certs", "--timeout", "0"], "--timeout must be positive"),
        ([*SERVER, "--certs", "certs", "--zones", "3"], "--zones must be from 1 to 2, the number"),
        ([*CLIENT], "--ca is missing"),
        ([*CLIENT, "--ca", "certs/ca.crt"], "--key is missing"),
        ([*CLIENT, "--ca", "certs/ca.crt", "--key", "certs/ca.crt"], "not an ECDSA private key"),
        ([*CLIENT, "--insecure", "--ca", "certs/ca.crt"], "cannot be combined with --ca"),
        ([*CLIENT, "--insecure"], "--config is missing: the settings that the sites agreed on"),
        ([*CLIENT, "--insecure", "--ask"], "--ask needs a terminal"),
        (
            [*CLIENT, "--insecure", "--config", "run.toml", "--policy", "run.toml"],
            "run.toml: `data` is no line of a policy",
        ),
        (
            [*CLIENT[:5], "--server", "10.0.0.1:9", "--home", "home", "--insecure"],
            "--server must be 127.0.0.1",
        ),
        (["certs", "--site", "a", "--out", "certs"], "certs is not empty"),
        (["certs", "--site", "a", "--site", "a", "--out", "new"], "'a' is named twice"),
        (["certs", "--out", "new"], "--site is missing"),
        (
            ["certs", "--authority", "--site", "a", "--out", "new"],
            "--authority makes no site's key",
        ),
        (["certs", "--site", "a", "--out", "run.toml"], "run.toml is a file"),
        (["certs", "--site", "a", "--out", "run.toml/new"], "nothing can be written there"),
        (["certs", "--site", "a", "--out", "new", "--days", "3000000"], "--days"),
        (
            ["certs", "--site", "a", "--out", "run.toml/a.key", "--key-only"],
            "nothing can be written there",
        ),
        ([*SERVER[:-1], "run.toml/RUN", "--certs", "certs"], "nothing can be written there"),
        (
            [*SERVER, "--certs", "certs", "--listen", "203.0.113.77:9092"],
            "--listen 203.0.113.77:9092: not an address of this machine",
        ),
        (
            [*SERVER, "--certs", "certs", "--listen", "127.0.0.2:9092"],
            "server.crt is not for 127.0.0.2",
        ),
        (
            ["certs", "--site", "a", "--host", "bad host\u2028", "--out", "new"],
            "neither an address",
        ),
    ],
)
def test_wrong_use_is_one_line(there, run, arguments, words):
    assert words in run(*arguments).complaint
    assert not (there / "RUN" / "checkpoint" / "flower").exists()


def test_an_authority_without_sites_and_keys_made_elsewhere(tmp_path, monkeypatch, run):
    """As in production: the server's side, each site's key by itself, and its line in sites.toml."""
    monkeypatch.chdir(tmp_path)
    assert run("certs", "--authority", "--host", "127.0.0.1", "--out", "certs").code == 0
    made = sorted(path.name for path in (tmp_path / "certs").iterdir())
    assert made == ["ca.crt", "ca.key", "server.crt", "server.key", "sites.toml"]
    (tmp_path / "run.toml").write_text(SETTINGS)
    assert "expected one table" in run(*SERVER).complaint
    lines = [run("certs", "--key-only", "--site", n, "--out", f"{n}.key").out for n in ("a", "b")]
    with open(tmp_path / "certs" / "sites.toml", "a") as file:
        file.writelines(lines)
    assert list(read_sites(tmp_path / "certs" / "sites.toml")) == ["a", "b"]
    certificates.check_server_certificate(tmp_path / "certs", "127.0.0.1")


def test_a_busy_port_is_said_so(there, run):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        for more in (["--certs", "certs"], ["--insecure"]):
            words = run(*SERVER, *more, "--listen", f"127.0.0.1:{port}").complaint
            assert f"port {port} is in use by another program" in words


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("server.key", None, "cannot be used: KEY_VALUES_MISMATCH"),
        ("server.crt", "no certificate", "ca.crt, server.crt and server.key cannot be used"),
        ("ca.crt", "no certificate", "ca.crt, server.crt and server.key cannot be used"),
    ],
)
def test_certificates_that_do_not_belong_together_are_said_so(there, run, name, content, words):
    other = make_certificates(there / "other", ["a"], ["localhost"]) and there / "other" / name
    (there / "certs" / name).write_text(other.read_text() if content is None else content)
    assert words in run(*SERVER, "--certs", "certs").complaint


def test_a_certificate_out_of_its_dates_is_said_with_the_clock(there):
    class Later(datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.datetime(2200, 1, 1, tzinfo=zone)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates.datetime, "datetime", Later)
        with pytest.raises(InputError, match="by this machine's clock it is 2200-01-01"):
            certificates.check_server_certificate(there / "certs", "127.0.0.1")
    certificates.check_server_certificate(there / "certs", "127.0.0.1")


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
        (
            SETTINGS + "[federation]\nmasks = true\n",
            "grouping sites (zones) needs numbers of single",
        ),
        (
            SETTINGS + '[run]\nprivacy = "local"\nepsilon = 1.0\n',
            "zones have no private form: each site would send a sketch",
        ),
    ],
)
def test_wrong_settings_are_refused(there, run, text, words):
    (there / "run.toml").write_text(text)
    assert words in run(*SERVER, "--certs", "certs", "--zones", "2").complaint


def test_settings_that_a_federation_does_not_use_are_named_in_one_line(there):
    """What `fit --write-config` writes has files and a client column; the usual values say nothing."""
    given = {"config": there / "run.toml", "sites": there / "certs" / "sites.toml"}
    config = configs.check(
        {
            "data": {"files": ["d.csv"], "client": "site", "inputs": ["x"], "outputs": ["y"]},
            "inference": {"batch": False, "rounds": 2},
            "run": {"out": "RUN", "holdout": "rows:0.2", "seed": 3},
        }
    )
    (there / "run.toml").write_text(configs.to_toml(config))
    with pytest.warns(PFedHGPWarning) as told:
        Coordinator.of(**given, out=there / "RUN")
    (line,) = (str(each.message) for each in told)
    assert line.endswith(
        "each site has files of its own: `files` in [data], `client` in [data], "
        "`batch` in [inference], `out` in [run], `holdout` in [run]"
    )
    (there / "run.toml").write_text(configs.to_toml(configs.check(tomllib.loads(SETTINGS))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Coordinator.of(**given, out=there / "RUN")


def test_names_with_unseen_characters_come_back_and_reach_no_terminal(tmp_path, run):
    """DEL, escape sequences and separators of lines are escaped; what is no text is refused."""
    names = ["a\x7f", "b\x1b[31m", "c\u2028\x85", "d\n", 'e"\\', "f\U000e0001"]
    options = [word for name in names for word in ("--site", name)]
    done = run("certs", *options, "--out", tmp_path / "certs")
    assert done.code == 0
    text = (tmp_path / "certs" / "sites.toml").read_text(encoding="utf-8")
    for shown in (done.out + done.err, text):
        assert all(letter.isprintable() or letter == "\n" for letter in shown)
    assert list(read_sites(tmp_path / "certs" / "sites.toml")) == names
    line = run("certs", "--key-only", "--site", names[0], "--out", tmp_path / "a.key").out
    assert line.startswith('"a\\u007f" = ')
    assert "is UTF-8" in run("certs", "--site", "a\udcff", "--out", tmp_path / "new").complaint


def test_keys_are_their_owners_alone_and_names_are_in_no_path(there):
    keys = [*(there / "certs").rglob("*.key")]
    assert len(keys) == 4
    for path in keys:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (there / "certs", there / "certs" / "sites"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {p.stem for p in (there / "certs" / "sites").iterdir()} == {
        site_hash("a"),
        site_hash("b/ü"),
    }
    assert list(read_sites(there / "certs" / "sites.toml")) == ["a", "b/ü"]


def test_a_server_certificate_is_renewed_with_the_authoritys_key(there, run):
    """For the names and the key that it had; the authority outlives it, and sites keep ca.crt."""
    folder = there / "certs"
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    old, ca = (certificates.read_certificate(folder / n) for n in ("server.crt", "ca.crt"))
    assert (ca.not_valid_after_utc - old.not_valid_after_utc).days >= 3649
    done = run("certs", "--renew", "--days", "730", "--out", "certs")
    assert done.code == 0, done.err
    new = certificates.read_certificate(folder / "server.crt")
    assert 364 <= (new.not_valid_after_utc - old.not_valid_after_utc).days <= 365
    assert f"valid until {new.not_valid_after_utc:%Y-%m-%d}" in done.err
    assert certificates.host_names(new) == certificates.host_names(old)
    new.verify_directly_issued_by(ca)
    certificates.check_server_certificate(folder, "127.0.0.1")
    for name, content in before.items():
        assert ((folder / name).read_bytes() == content) == (name != "server.crt")
    assert "ca.crt is valid until" in run(*RENEW, "--days", "9000").complaint
    assert "without --site" in run(*RENEW, "--site", "a").complaint
    (folder / "ca.key").write_bytes(before["server.key"])
    assert "ca.key is not the key of ca.crt" in run(*RENEW).complaint
    (folder / "ca.key").unlink()
    assert "ca.key: cannot be read" in run(*RENEW).complaint
    assert certificates.read_certificate(folder / "server.crt") == new


def test_the_authoritys_key_is_named_with_what_to_do(there, run):
    made = run("certs", "--site", "a", "--out", "others")
    assert "others/ca.key: keep it offline" in made.err


def test_federate_refuses_a_gpu_and_says_that_one_by_one_is_what_it_is(there, run, monkeypatch):
    table = ["rows.parquet", "--client", "y", "--input", "x", "--output", "y", "--out", "RUN"]
    assert "compute on the CPU" in run("federate", *table, "--device", "gpu").complaint
    assert not (there / "RUN").exists()

    class Begun(Exception):
        pass

    def begin(note):
        raise Begun

    def start():
        settings = {**tomllib.loads(SETTINGS), "inference": {"batch": False}}
        config = configs.check(settings)
        job = FitJob(config, Kernels.of(config), NOBODY, there / "RUN" / "checkpoint", False, True)
        with pytest.raises(Begun):
            federating.train(job, None)

    monkeypatch.setattr(federating, "_remove_left_over", begin)
    with pytest.warns(PFedHGPWarning, match="--one-by-one changes nothing here"):
        start()


def test_a_site_makes_its_own_key_and_prints_its_line(there, run):
    result = run("certs", "--key-only", "--site", "a", "--out", "own.key")
    (there / "own.toml").write_text("[sites]\n" + result.out)
    assert list(read_sites(there / "own.toml")) == ["a"]
    assert (
        "already exists" in run("certs", "--key-only", "--site", "a", "--out", "own.key").complaint
    )


def test_a_home_is_one_sites_and_for_its_owner_alone(there, run):
    key = there / "certs" / "sites" / f"{site_hash('a')}.key"
    client = [
        *CLIENT,
        "--config",
        "run.toml",
        "--ca",
        "certs/ca.crt",
        "--key",
        key,
        "--wait",
        "0.1",
    ]
    home = there / "home"
    home.mkdir(mode=0o755)
    (home / "site.json").write_text('{"name": "b"}')
    assert "the home of another site" in run(*client).complaint
    (home / "site.json").write_text('{"name": "a"}')
    alone = run(*client)
    assert alone.code == 1
    assert "waiting for the server at 127.0.0.1:9: the connection was refused" in alone.err
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    folder = there / "mine"
    folder.mkdir(mode=0o755)
    (folder / "notes.txt").touch()
    with pytest.warns(PFedHGPWarning, match="can be read by other users"):
        private_folder(folder, "--home")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    elsewhere = [word if word != "home" else "run.toml/home" for word in client]
    assert "nothing can be written there" in run(*elsewhere).complaint


@pytest.mark.parametrize("mark", ["site.json", "flower/supernode.log", "lock"])
def test_a_home_without_a_model_is_said_so(there, run, mark):
    """Also where no message ever reached it."""
    home = there / "home"
    (home / mark).parent.mkdir(parents=True)
    (home / mark).write_text('{"name": "a"}')
    words = run("predict", home, "rows.parquet", "--out", "p.csv").complaint
    assert "this site has no model yet" in words


@pytest.mark.parametrize(
    ("table", "data", "words"),
    [
        ({"inputs": ["t"]}, "x,y\n1,2\n", "no column 't', which the server's settings name"),
        ({"outputs": ["z"]}, "7.5,8.5\n1,2\n", "no column 'x'"),
        ({}, "7.5,7.5\n1,2\n", "two columns of the header have the same name"),
        ({}, "x,y,x\n7.5,2,1\n", "column 'x' is there 2 times: rename or remove one"),
        ({"datetimes": ["x"]}, "x,y\n1,2\n", "column 'x' is not a datetime, as `datetimes` in"),
        (
            {},
            "x,y\n2026-01-01,2\n",
            """a number but a date: [data] of the server's run.toml lacks `datetimes = ["x"]`""",
        ),
        ({}, "x,y\n1,2\n7.5,word\n", "row 2 (line 3), column 'y': text instead of a number"),
        ({}, "x;y\n1;2\n", "add --delimiter ';'"),
        ({}, "x,y\n1,2\n", "1 rows with an observed output: fewer than 5"),
        ({"domain": ["0..1"]}, "x,y\n" + "7.5,2\n" * 9, "column 'x': there are rows outside"),
    ],
)
def test_a_site_is_told_which_column_does_not_fit(tmp_path, caplog, table, data, words):
    """On its own terminal: the server gets a code. No value of a row is in either."""
    domain = {"model": {"domain": table.pop("domain")}} if "domain" in table else {}
    terms = agreement(data=table, **domain)
    (tmp_path / "rows.csv").write_text(data)
    home, data, expected = tmp_path / "home", [tmp_path / "rows.csv"], terms.to_json()
    site = site_from_files(home=home, name="a", data=data, expected=expected)
    reply = site.answer(_asked(expected))
    assert (reply.code, dict(reply.arrays)) == ("data", {})
    assert words in caplog.text
    assert not any(value in caplog.text for value in ("7.5", "8.5", "word"))


def test_a_site_is_told_which_setting_is_not_the_agreed_one(tmp_path, caplog):
    mine = agreement(inference={"rounds": 9}).to_json()
    site = site_from_files(home=tmp_path, name="a", data=[tmp_path / "rows.csv"], expected=mine)
    assert site.answer(_asked(agreement().to_json())).code == "config"
    assert "`inference.rounds` is 9 here and 2 at the server" in caplog.text
    other = agreement(data={"outputs": ["pm10"]}).to_json()
    assert '`columns.outputs` is ["y"] here and ["pm10"] at' in difference(mine, other)


def _asked(terms):
    return Envelope(
        run="ab" * 16, exchange=1, kind="census", round=0, sender="server", agreement=terms
    )

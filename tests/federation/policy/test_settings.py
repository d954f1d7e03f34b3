"""policy.toml, and how a site agrees to terms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pfedhgp.errors import InputError
from pfedhgp.federation.envelope import Envelope, Refused
from pfedhgp.federation.flower.site import site_from_files
from pfedhgp.federation.messages import hash_arrays
from pfedhgp.federation.policy import settings
from pfedhgp.federation.policy.book import Book
from pfedhgp.federation.policy.consent import FILE, Consent, words
from support.flower_processes import write_rows
from support.reference_federation import agreement, rows_of

LOOSE = settings.Policy(runs=7, shortest=0.02, reveal=0.6, ask=True)


@pytest.mark.parametrize("policy", [settings.Policy(), LOOSE], ids=["strict", "loose"])
def test_a_policy_is_written_with_comments_and_read_back(tmp_path, policy):
    text = settings.to_toml(policy)
    (tmp_path / "policy.toml").write_text(text, "utf-8")
    assert settings.read(tmp_path / "policy.toml") == policy
    for line in settings.LINES.values():
        assert all(f"# {part}" in text for part in line.meaning.split("\n"))


def test_lines_that_are_missing_are_strict(tmp_path):
    (tmp_path / "policy.toml").write_text("runs = 9\n")
    assert settings.read(tmp_path / "policy.toml") == replace(settings.Policy(), runs=9)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("runs = -1", "`runs` must be a whole number of at least 0, got -1"),
        ("reveal = 1.5", "`reveal` must be a number from 0 to 1, got 1.5"),
        ("ask = 1", "`ask` must be True or False, got 1"),
        ('shortest = "x"', "`shortest` must be a number of at least 0, got 'x'"),
        ("rounds = nan", "`rounds` must be a whole number of at least 0, got nan"),
        ("run = 3", "`run` is no line of a policy; known: agreed_terms, ask"),
        ("runs = ", "not TOML"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_bad_policies_are_refused_in_one_line(tmp_path, run, text, says):
    path = tmp_path / "policy.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        settings.read(path)
    assert says in str(caught.value)
    assert says in run("policy", path, "--check").complaint


def test_the_command_writes_a_policy_once_and_checks_it(tmp_path, run):
    path = tmp_path / "new" / "policy.toml"
    assert run("policy", path).code == 0
    assert settings.read(path) == settings.Policy()
    assert run("policy", path, "--check").out.strip() == "the strict policy"
    assert "already exists" in run("policy", path).complaint
    path.write_text("runs = 9\nreveal = 0.5\n")
    assert run("policy", path, "--check").out.split("\n")[:2] == ["runs = 9", "reveal = 0.5"]


def test_a_book_that_is_no_book_is_refused(tmp_path):
    (tmp_path / "policy.json").write_text('{"ab": {"runs": 3}}')
    with pytest.raises(InputError, match="restore it from a backup"):
        Book(tmp_path).counts("ab")


def test_terms_are_agreed_by_a_file_by_a_person_or_not_at_all(tmp_path):
    terms, other = (agreement(inference={"rounds": n}).to_json() for n in (2, 3))
    Consent(tmp_path, expected=terms).check(terms)
    with pytest.raises(Refused) as caught:
        Consent(tmp_path, expected=terms).check(other)
    assert "`inference.rounds` is 2 here and 3 at the server" in caught.value.why
    with pytest.raises(Refused) as caught:
        Consent(tmp_path).check(terms)
    assert "nobody here has agreed" in caught.value.why
    Consent(tmp_path, required=False).check(terms)
    asked = []

    def approve(answer):
        return lambda text: asked.append(text) or answer

    with pytest.raises(Refused, match="policy"):
        Consent(tmp_path, approve=approve(False)).ask(terms, "run 1")
    assert not (tmp_path / FILE).exists()
    Consent(tmp_path, approve=approve(True)).ask(terms, "run 1")
    assert "inference.rounds = 2" in asked[1]
    assert asked[1].endswith("run 1")
    Consent(tmp_path).check(terms)  # from now on, without a person
    with pytest.raises(Refused) as caught:
        Consent(tmp_path).check(other)
    assert "not the approved terms: `inference.rounds`" in caught.value.why


def test_a_person_sees_columns_and_settings_that_are_not_the_usual_ones():
    text = words(agreement(data={"inputs": ["time"], "outputs": ["salary"]}).to_json())
    assert text.split("\n")[:2] == ["  inputs   time", "  outputs  salary"]
    assert "  model.inducing = 5" in text.split("\n")
    assert "tolerance" not in text


def test_a_person_is_asked_once_for_each_run(tmp_path, caplog):
    terms, row = agreement(), rows_of(["a"])[0]
    write_rows(tmp_path / "rows.parquet", row)
    asked, answers = [], [True, False, True]

    def approve(text):
        asked.append(text)
        return answers[len(asked) - 1]

    def answer(number):
        site = site_from_files(
            home=tmp_path / "home",
            name="a",
            data=[tmp_path / "rows.parquet"],
            approve=approve,
            answers_all=True,
        )
        census = Envelope(f"{number:032x}", 1, "census", 0, "server", block=hash_arrays({}))
        return site.answer(replace(census, agreement=terms.to_json())).code

    assert [answer(n) for n in (1, 1, 2, 2)] == ["", "", "policy", ""]
    assert len(asked) == 3
    assert "16 rows of a, run 2 of at most 3 on these rows" in asked[1]
    assert "the run was not approved" in caplog.text

"""The study's page: what stands between its marks comes from results, and nothing else changes."""

from __future__ import annotations

import json

from pfedhgp.studies.common.document import main
from pfedhgp.studies.common.provenance import lines

PAGE = "# Title\n\nprose\n\n<!-- synthetic -->\nold\n<!-- end synthetic -->\n\nmore prose\n"


def study(folder):
    made = {"dates": ["2026-01-02"] * 2, "cores": 2, "machine": "x86_64", "pfedhgp": "1"}
    made |= {"python": "3.11", "numpy": "2", "scipy": "1", "jax": "0.9", "device": "cpu", "runs": 9}
    config = {"runs": 3, "device": "cpu", "made": [made]}
    told = lines([made])[0]
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"config": config}))
    (folder / "tables.md").write_text(
        f"# A title\n\n{told}\n\na note\n\n## Results\n\n| a |\n|---|\n| 1 |\n"
    )
    (folder / "robustness.svg").write_text("<svg/>")
    return folder


def test_the_page_is_filled_twice_to_the_same_text(tmp_path):
    page, folder = tmp_path / "study.md", study(tmp_path / "results")
    page.write_text(PAGE)
    assert main([str(page), f"synthetic={folder}"]) == 0
    first = page.read_text()
    assert first.startswith(
        "# Title\n\nprose\n\n<!-- synthetic -->\n9 records: 2026-01-02, cpu, 2 cores"
    )
    assert first.endswith("<!-- end synthetic -->\n\nmore prose\n")
    assert "![RMSE, NLL, CRPS and CovErr" in first
    assert "](study/robustness.svg)" in first
    assert "calibration.svg" not in first  # there is none
    assert "### Results\n\n| a |" in first
    assert "old" not in first
    assert first.count("2026-01-02") == 1
    assert (tmp_path / "study" / "robustness.svg").read_text() == "<svg/>"
    assert main([str(page), f"synthetic={folder}"]) == 0
    assert page.read_text() == first


def test_what_is_missing_is_said_and_the_page_is_kept(tmp_path, capsys):
    page = tmp_path / "study.md"
    page.write_text(PAGE)
    folder = study(tmp_path / "results")
    for arguments, says in (
        ([f"synthetic={tmp_path / 'none'}"], "holds no finished study"),
        ([f"other={folder}"], "no marks <!-- other -->"),
        (["synthetic"], "usage: "),
    ):
        assert main([str(page), *arguments]) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
        assert page.read_text() == PAGE
    assert main([str(tmp_path / "absent.md"), f"synthetic={folder}"]) == 2

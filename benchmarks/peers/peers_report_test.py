"""Figures become tables and a picture: each value is in its place, and missing ones cause no error."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

import peers_report
from figures import Figures

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def figures() -> Figures:
    made = Figures("2 cores", rounds=3)
    narrow = made.comparison("dlrm-16", "training", "width 16", "samples/s")
    narrow.of("TensorFlow, no communication").values += [20_000, 10_000, 30_000]
    narrow.of("Lockstep").values += [40_000, 41_000, 39_000]
    narrow.of("Lockstep").peak_gib += [1.25, 1.5, 1.125]
    narrow.of("Lockstep").auc = 0.75
    wide = made.comparison("dlrm-64", "training", "width 64", "samples/s")
    wide.of("Lockstep").values += [512.4]
    allreduce = made.comparison("allreduce", "collectives", "allreduce 4 B", "ms", less_is_better=True)
    allreduce.of("Lockstep").values += [0.5]
    allreduce.of("Horovod").values += [2.0]
    return made


def test_a_file_of_figures_is_read_as_it_was_written(figures, tmp_path):
    figures.save(tmp_path / "new" / "figures.json")
    assert Figures.load(tmp_path / "new" / "figures.json") == figures


def test_the_table_has_medians_with_the_lowest_and_the_highest_value(figures):
    assert peers_report.all_tables(figures)["training"].splitlines() == [
        "|  | width 16 | width 64 |",
        "| --- | --- | --- |",
        "| TensorFlow, no communication | 20,000 (10,000–30,000) | – |",
        "| **Lockstep** | 40,000 (39,000–41,000) | 512 |",
    ]


def test_parts_have_a_row_each(figures):
    assert peers_report.all_tables(figures)["collectives"].splitlines()[0::2] == [
        "| ms | **Lockstep** | Horovod |",
        "| allreduce 4 B | 0.5 | 2 |",
    ]


def test_memory_and_accuracy_have_only_what_was_measured(figures):
    tables = peers_report.all_tables(figures)
    assert tables["memory"].splitlines()[2:] == ["| **Lockstep** | 1.50 | – |"]
    assert tables["auc"].splitlines()[0::2] == ["|  | width 16 |", "| **Lockstep** | 0.7500 |"]


def test_the_sentence_on_the_run_says_what_disturbed_it(figures):
    assert peers_report.machine(figures) == "Measured on 2 cores: medians of 3 rounds (lowest–highest)."
    figures.is_trial = True
    figures.comparisons["dlrm-16"].of("Lockstep").busy_elsewhere += [0.5, 0.25, 0]
    sentence = "Measured on 2 cores: a trial with few steps. Other programs used 0.25 cores meanwhile (median)."
    assert peers_report.machine(figures) == sentence


def test_ratios_say_how_much_better_we_are(figures):
    training = peers_report.of_group(figures, "training")
    assert peers_report.ratios(training).splitlines()[2:] == ["| TensorFlow, no communication | 2.00 | – |"]
    collectives = peers_report.of_group(figures, "collectives")
    assert peers_report.ratios(collectives).splitlines()[2:] == ["| Horovod | 4.00 |"]


def test_the_sentence_compares_libraries_that_train_one_model():
    figures = Figures("2 cores", rounds=1)
    for workload, ours, other in (("one", 30, 20), ("two", 36, 10)):
        comparison = figures.comparison(workload, "training", workload, "samples/s")
        speeds = {"Lockstep": ours, "Horovod": other, "FBGEMM, no communication": 5, "parameter server": 6}
        for system, speed in speeds.items():
            comparison.of(system).values.append(speed)
    sentence = peers_report.sentence(peers_report.of_group(figures, "training")).replace("\n", " ")
    assert sentence == (
        "Lockstep trains the models of the picture 1.5 to 3.6 times as fast as Horovod "
        "and 5.0 to 6.0 times as fast as a parameter server."
    )


def test_the_sentence_of_the_readme_has_the_ratios_of_the_page():
    readme, page = (path.read_text() for path in peers_report.PAGES)
    [sentence] = [text for text, name, _ in _regions(readme) if name == "sentence"]
    [ratios] = [text for text, name, _ in _regions(page) if name == "ratios"]
    for system in ("Horovod", "TorchRec", "parameter server"):
        [row] = [line for line in ratios.splitlines() if line.startswith(f"| {system} |")]
        numbers = sorted(float(cell) for cell in row.split("|")[2:-1] if cell.strip() != "–")
        said = f"{numbers[0]:.1f} to {numbers[-1]:.1f} times as fast as "
        assert re.search(said + f"(a )?{system}", sentence.replace("\n", " ")), system


def _regions(page: str) -> list[tuple[str, str, str]]:
    return [(match[0], match[2], match[3]) for match in peers_report.FIGURES.finditer(page)]


def test_a_page_gets_tables_where_it_names_them():
    end = "<!-- end of figures -->\n"
    page = f"a\n<!-- figures: one -->\nold\n{end}b\n<!-- figures: two -->\nkept\n{end}"
    expected = page.replace("old", "\n| new |\n")
    assert peers_report.filled(page, {"one": "| new |"}) == expected


def test_every_table_of_a_page_is_made(figures):
    for group in ("dynamic-tables", "parquet"):
        figures.comparison(group, group, group, "rows/s").of("Lockstep").values.append(1)
    tables = {*peers_report.all_tables(figures), "machine", "sentence"}
    for page in peers_report.PAGES:
        named = peers_report.FIGURES.findall(page.read_text())
        assert named, page
        assert {name for _, name, _ in named} <= tables


def test_bars_are_as_long_as_their_medians(figures):
    root = ElementTree.fromstring(peers_report.picture(peers_report.of_group(figures, "training")))
    _, apart, lockstep, alone = (float(rect.get("width")) for rect in root.iter(f"{SVG}rect"))
    assert lockstep / apart == pytest.approx(2, abs=0.01)
    # The highest value of a comparison has the whole width.
    assert alone / lockstep == pytest.approx(41_000 / 40_000, abs=0.001)
    text = "".join(root.itertext())
    assert "width 16" in text and "40,000" in text and "no communication" in text


def test_a_picture_without_figures_is_empty():
    assert ElementTree.fromstring(peers_report.picture([])) is not None

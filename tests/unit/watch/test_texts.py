"""What else is made of runs: logs, differences of jobs, figures for Prometheus, pictures."""

import pytest

from phalanx.watch.differences import job_differences
from phalanx.watch.log_text import log_names, log_text
from phalanx.watch.plot import plot, short_number
from phalanx.watch.prometheus import render_metrics
from phalanx.watch.report import report
from phalanx.watch.series import Point
from phalanx.watch.summary import summarise
from phalanx.watch.watched_run import WatchedRun
from phalanx.watch.web.charts import Line, curve_chart, heat_chart, smoothed, thin
from phalanx.watch.web.library import Library, run_id
from phalanx.watch.web.run_figures import Settings, make_figures, media_file
from tests.unit.watch.run_folder import Run, whole_run


def watched(made):
    one = WatchedRun(made.run, is_kept=False)
    one.reader.read_all()
    return one


def test_logs_by_rank_their_end_and_the_lines_with_a_word(tmp_path):
    made = Run(tmp_path)
    made.log(10, "ten\n")
    made.log(2, "first\nsecond \x1b[31mRed\x07 alert\rthird\nno such\n")
    (made.run.logs / "command.log").write_text("x")
    assert log_names(made.run) == ["rank-2.log", "rank-10.log", "command.log"]
    assert log_text(made.run, "rank-2.log").splitlines()[:2] == ["first", "third"]
    assert log_text(made.run, "rank-2.log", "RED") == "2: second  [31mRed  alert third"
    assert log_text(made.run, "rank-2.log", "nowhere") == ""
    made.log(3, "line\n" * 100_000)
    assert len(log_text(made.run, "rank-3.log", lines=50).splitlines()) == 49


@pytest.mark.parametrize(
    "name", ["../plan.json", "/etc/passwd", "rank-0.log/../../plan.json", "", "link.log", "\x00"]
)
def test_logs_of_other_places_are_not_read(tmp_path, name):
    made = Run(tmp_path)
    made.log(0, "fine\n")
    (made.run.logs / "link.log").symlink_to("/etc/passwd")
    assert log_text(made.run, name) == ""


def test_jobs_differ_in_these_keys_and_no_others(tmp_path):
    one = Run(tmp_path, "a", job="recipe: d\nname: a\noptimizer:\n  lr: 0.1\n  name: sgd\n")
    two = Run(
        tmp_path, "b", job="recipe: d\nname: b\noptimizer:\n  lr: 0.2\n  name: sgd\nseed: 3\n"
    )
    found = dict(job_differences([watched(one), watched(two)]))
    assert found == {"optimizer.lr": ["0.1", "0.2"], "seed": ["", "3"]}
    two.run.job_file.write_text("!!python/object/apply:os.system ['true']")
    assert "recipe" in dict(job_differences([watched(one), watched(two)]))


def test_prometheus_text_is_escaped_and_finite(tmp_path):
    made = whole_run(tmp_path, 'we"ird\nname\\')
    made.evaluate(200, float("nan"))
    text = render_metrics([summarise(made.run)], [watched(made)])
    assert 'phalanx_run_step{run="we\\"ird\\nname\\\\"} 200\n' in text
    assert 'phalanx_rank_gpu_percent{run="we\\"ird\\nname\\\\",rank="1"} 89\n' in text
    assert "nan" not in text
    for line in text.splitlines():
        assert line.startswith(("# ", "phalanx_")), line


def test_braille_curves_have_their_scale_and_their_width():
    points = [Point(n, n, n / 10, n / 10, n / 10) for n in range(100)]
    lines = plot(points, width=40, height=5)
    assert {len(line) for line in lines} == {40}
    assert (lines[0].split()[0], lines[-1].split()[0]) == ("9.90", "0")
    assert plot([], width=10, height=2) == [" " * 10] * 2
    assert plot(points[:1], width=20, height=3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2.314, "2.31"),
        (0.01424, "0.014"),
        (3.2e-5, "3.2e-05"),
        (12_345, "12,345"),
        (99.96, "100.0"),
        (float("nan"), "nan"),
        (-0.5, "-0.500"),
        (5e9, "5.0e+09"),
    ],
)
def test_short_numbers(value, text):
    assert short_number(value) == text


def test_smoothing_begins_at_the_first_value_and_ends_near_the_mean():
    assert smoothed([1.0, 2.0], 0.0) == [1.0, 2.0]
    assert smoothed([4.0, 4.0, 4.0], 0.9) == pytest.approx([4.0, 4.0, 4.0])
    assert smoothed([0.0, 1.0], 0.5)[1] == pytest.approx(2 / 3)


def test_a_chart_has_a_bounded_number_of_points_and_its_newest():
    points = [Point(n, n, n, n, n) for n in range(10_000)]
    assert len(thin(points)) <= 601
    options = curve_chart([Line("loss", points)], smoothing=0.5, marks=[(5.0, "restart")])
    assert options["series"][-1]["data"][-1][0] == 9999
    assert options["series"][-1]["markLine"]["data"][0]["xAxis"] == 5.0
    timed = curve_chart([Line("loss", points, is_by_time=True)])
    assert timed["xAxis"]["axisLabel"]["formatter"] == "{value} min"


def test_the_heat_map_shows_the_straggler(tmp_path):
    heat = watched(whole_run(tmp_path)).state.ranks.heat
    cells = heat_chart(heat, [0, 1])["series"][0]["data"]
    assert all(cell[2] > 0.5 for cell in cells if cell[1] == 1)
    assert all(cell[2] < 0 for cell in cells if cell[1] == 0)


def media_run(tmp_path):
    made = whole_run(tmp_path)
    folder = made.run.path / "media" / "step-10"
    folder.mkdir(parents=True)
    (folder / "a.png").write_bytes(b"\x89PNG")
    (folder / "page.html").write_text("<script>alert(1)</script>")
    (folder / "out.png").symlink_to("/etc/passwd")
    return made


@pytest.mark.parametrize(
    ("file", "is_served"),
    [
        ("media/step-10/a.png", True),
        ("media/../media/step-10/a.png", False),
        ("media/step-10/page.html", False),
        ("media/step-10/out.png", False),
        ("plan.json", False),
        ("../first/plan.json", False),
        ("/etc/passwd", False),
        ("media/step-10", False),
        ("media/\x00.png", False),
    ],
)
def test_only_pictures_below_media_are_served(tmp_path, file, is_served):
    made = media_run(tmp_path)
    made.write("media", 5.0, "rank-0", step=10, name="n", file=file, caption="c")
    found = media_file(watched(made), 0)
    assert (found is not None) == is_served
    assert media_file(watched(made), 1) is None
    assert media_file(watched(made), -1) is None


def test_figures_of_a_page_are_plain_data(tmp_path):
    figures = make_figures(watched(whole_run(tmp_path)), Settings(smoothing=0.5, is_by_time=True))
    assert figures.tiles["progress"] == ("100.0%", "200 / 200 steps")
    assert list(figures.curves)[:2] == ["loss", "test accuracy"]
    assert "GPU memory, GiB" in figures.system
    rows = {row["what"]: row for row in figures.predicted}
    assert rows["memory of a rank"] == {
        "what": "memory of a rank",
        "planned": "3.0 GiB",
        "actual": "2.0 GiB",
    }
    assert figures.ranks[1]["mark"] == "SLOW"


def test_runs_are_found_by_an_id_that_holds_nothing_of_their_name(tmp_path):
    made = whole_run(tmp_path, "a b<script>")
    (tmp_path / "no-run").mkdir()
    (tmp_path / "latest").symlink_to(made.run.path)
    library = Library([tmp_path], [])
    assert list(library.runs()) == [run_id(made.run.path)]
    assert library.open(run_id(made.run.path)).watched.name == "a b<script>"
    for wrong in ("..", "a b<script>", "../../etc", ""):
        assert library.open(wrong) is None
    assert [one.name for one in library.summaries()[0]] == ["a b<script>"]


def test_a_list_in_a_hurry_has_every_name_and_then_every_figure(tmp_path):
    for number in range(5):
        whole_run(tmp_path, f"r{number}")
    library = Library([tmp_path], [])
    rough, is_whole = library.summaries(budget_s=-1.0)
    assert (len(rough), is_whole, {one.status for one in rough}) == (5, False, {""})
    whole, is_whole = library.summaries()
    assert (is_whole, {one.status for one in whole}) == (True, {"finished"})
    again, _ = library.summaries(budget_s=-1.0)
    assert {one.step for one in again} == {200}


def test_only_so_many_runs_stay_open(tmp_path):
    for number in range(30):
        Run(tmp_path, f"r{number}")
    library = Library([tmp_path], [])
    for identifier in list(library.runs()):
        library.open(identifier)
    assert len(library._open) == 24


def test_what_was_evaluated_is_on_the_page_in_prometheus_and_in_json(tmp_path):
    made = whole_run(tmp_path)
    made.evaluated(40.0, 0.5)
    made.evaluated(41.0, 0.75)
    file = made.film(100, "evaluate", 42.0)
    one = watched(made)
    figures = make_figures(one, Settings())
    assert figures.tiles["test split accuracy"][0] == "0.750"
    assert [media.file for media in figures.media] == [file]
    assert media_file(one, 0)[1] == "video/mp4"
    names = {series.get("name") for series in figures.timeline["series"]}
    assert "evaluate" in names
    text = render_metrics([summarise(made.run)], [one])
    assert 'phalanx_run_evaluated{run="first",on="test split",metric="accuracy"} 0.75\n' in text
    told = report(one)
    assert [found["metrics"] for found in told["evaluations"]] == [
        {"accuracy": 0.5},
        {"accuracy": 0.75},
    ]
    assert [media["file"] for media in told["media"]] == [file]

"""Line charts: points are inside the image, axes have round numbers, names are escaped."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.pipeline.reports.line_chart import line_chart, tick_step

points = st.lists(st.tuples(st.floats(-1e5, 1e5), st.floats(0, 1e6)), min_size=1, max_size=12)


@given(st.dictionaries(st.text("ab<&", min_size=1, max_size=4), points, min_size=1, max_size=4))
def test_all_points_lie_inside_the_picture(series: dict[str, list[tuple[float, float]]]) -> None:
    chart = ElementTree.fromstring(line_chart(series, "K", "tokens/s"))
    svg = chart.find("svg")
    assert svg is not None
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    circles = svg.findall(".//circle")
    assert len(circles) == sum(map(len, series.values()))
    for circle in circles:
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height
    assert [span.text for span in chart.findall(".//span")] == [*series]


@given(st.floats(1e-6, 1e9))
def test_steps_of_an_axis_are_round_and_few(most: float) -> None:
    step = tick_step(most)
    assert math.ceil(most / step - 1e-6) <= 5
    assert re.fullmatch(r"[1-9](\.0+)?e[+-]\d+", f"{step:.6e}")
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6) in (1, 2, 5)


def test_higher_values_are_drawn_higher_and_whole_numbers_below_the_axis() -> None:
    chart = line_chart({"a": [(1, 10.0), (2, 20.0), (4, 5.0)]}, "K", "tokens/s")
    heights = [float(text) for text in re.findall(r'cy="([\d.]+)"', chart)]
    assert heights[1] < heights[0] < heights[2]
    assert re.findall(r'text-anchor="middle">([^<]+)<', chart) == ["1", "2", "4"]


def test_sixteen_lines_look_different() -> None:
    chart = line_chart({f"line {at}": [(at, 1.0)] for at in range(16)}, "K", "tokens/s")
    for tag in ("span", "g"):
        classes = re.findall(rf'<{tag} class="([^"]+)"', chart)
        assert len({*classes}) == len(classes) == 16


def test_a_line_has_the_same_colour_in_every_chart_of_a_page() -> None:
    names = ["plain", "K = 2", "K = 4"]
    classes = [
        re.findall(
            r'<g class="([^"]+)"', line_chart({name: [(1, 1.0)] for name in shown}, "K", "tokens/s", names=names)
        )
        for shown in (names, names[1:], names[2:])
    ]
    assert classes == [["c0", "c1", "c2"], ["c1", "c2"], ["c2"]]


def test_values_that_are_not_numbers_are_left_out() -> None:
    assert line_chart({}, "x", "y") == line_chart({"a": [(1, math.nan)]}, "x", "y") == ""
    assert line_chart({"a": [(1, math.inf), (2, 3.0)]}, "x", "y").count("<circle") == 1
    assert line_chart({"a": [(1.0, 0.0)]}, "x", "y").count("<circle") == 1

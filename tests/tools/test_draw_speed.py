"""The speed chart shows the committed figures, which are those of docs/performance.md."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import draw_speed
import pytest
from draw_speed import FIGURES, PICTURE, draw, read_panels

CONTENT: dict[str, Any] = json.loads(FIGURES.read_text())
PANELS = read_panels(CONTENT)


def test_the_picture_is_up_to_date() -> None:
    assert PICTURE.read_text() == draw(CONTENT), f"run {draw_speed.COMMAND}"


def test_the_picture_is_well_formed_and_shows_every_bar() -> None:
    root = ElementTree.fromstring(draw(CONTENT))
    shown = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {figure.label for panel in PANELS for figure in panel.figures} <= shown
    assert {panel.command for panel in PANELS} <= shown


def words(text: str) -> set[str]:
    """The words of a line, whatever the table that it belongs to looks like."""
    return set(re.findall(r"[\w.-]+", text.lower()))


def test_every_figure_is_in_its_source() -> None:
    page = (FIGURES.parents[2] / CONTENT["source"]).read_text()
    for figure in (figure for panel in PANELS for figure in panel.figures):
        low, high = figure.quartiles
        numbers = rf"\b{figure.tokens_per_second:g}[ |]+{low:g} to {high:g}\b.*\b{figure.x_plain:.2f}\b"
        lines = [line for line in page.splitlines() if re.search(numbers, line)]
        assert any(words(figure.row) <= words(line) for line in lines), figure
        assert figure.command in page


def test_a_panel_of_two_runs_is_refused() -> None:
    one, *rest = PANELS[0].figures
    with pytest.raises(ValueError, match="mixes runs"):
        _ = replace(PANELS[0], figures=(replace(one, command="make bench"), *rest)).command

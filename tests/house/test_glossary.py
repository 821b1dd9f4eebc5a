"""The project speaks the field's English: retired words stay out of names, messages and docs.

The glossary of CONTRIBUTING.md has the words that are used instead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.house.tree import ROOT, nodes_of, package_files, parsed, require, write_tree

# Retired names, and the ones that took their place.
NAMES: Mapping[str, str] = {
    "Asked": "Options",
    "BackendAsked": "BackendOptions",
    "Beginnings": "Prefixes",
    "CalibrationAsked": "CalibrationOptions",
    "Courier": "ResponseSender",
    "DraftSpellings": "DraftMethodNames",
    "DraftsAsked": "NumSpeculativeTokens",
    "Entry": "VerbOption",
    "HeldColumns": "PendingColumns",
    "Letter": "PendingRequest",
    "OfOne": "UnaryOp",
    "OfTwo": "BinaryOp",
    "Ours": "CustomOp",
    "PlanAsked": "PlanOptions",
    "PrecisionAsked": "PrecisionOptions",
    "RoundedHere": "OnTheFlyQuantizer",
    "Said": "MappedOptions",
    "SpeculationSaid": "SpeculationSettings",
    "Spelled": "EncodedStep",
    "Spoken": "MappedOption",
    "Stretch": "FusedRegion",
    "TooLittleRoom": "InsufficientResources",
    "TooMuchError": "TemplateLimitExceeded",
    "Voice": "Verbosity",
    "Workshop": "UnpublishedPairs",
    "as_asked": "lowering_with_experts",
    "asking": "send_request",
    "drafts_asked": "requested_drafts",
    "experts_form": "expert_lowering",
    "foreseen_refusal": "expected_refusal",
    "foretold": "expected_warnings",
    "given_text": "input_text",
    "half_made": "remove_on_exit",
    "heard": "consume_signal",
    "held_columns": "pending_columns",
    "is_theirs": "is_foreign_config",
    "last_words": "on_forced_exit",
    "multiplied_share": "quantized_compute",
    "neighbours": "compat",
    "ours": "kill_on_exit",
    "scale_and_least": "scale_and_min",
    "seldom_experts": "rarely_used_experts",
    "speaks": "with_verbosity",
    "stretch": "fused_region",
    "stretches": "fused_regions",
    "suited": "select_expert_lowering",
    "taken": "override_handler",
    "weights_rounded_here": "on_the_fly_quantizer",
    "WidthOfTheInput": "InputWidth",
    "RowsOfTensor": "TensorRows",
    "cure_link": "repair_link",
    "reader_has_gone": "is_reader_closed",
    "go_on_at": "resume_at",
    "in_a_line": "one_line",
    "made_aside": "temporary_path",
    "round_apart": "quantize_separately",
    "says_parallel": "declares_parallel_drafting",
    "said": "describe",
    "of_those_that_run": "running_strategy",
    "colours_wanted": "use_colours",
    "Attained": "AttainedRate",
    "BlockScalesAndLeast": "BlockScalesAndMin",
    "DraftAsked": "NumDrafts",
    "HeadSays": "HeadOverrides",
    "Held": "ProgramTensor",
    "Kept": "CalibrationFolder",
    "MadeFor": "StageOrigin",
    "StepsAndLeast": "StepsAndMin",
    "StepsOfHalves": "HalfBlockSteps",
    "Written": "WrittenModels",
    "_death": "_died",
    "_furnish": "_copy_side_files",
    "_kept": "_reusable_blocks",
    "_most": "_max_divergence",
    "_said": "_error_text",
    "_spelled": "_expand_dims",
    "_strange": "_foreign_paths",
    "_suited": "_select_lowering",
    "_taken": "_converted",
    "_told": "_visible_text",
    "_turned": "_transposed_stack",
    "_unforeseen": "_unexpected_error",
    "_unwhole": "_damaged",
    "_weigh": "_rewrite_weighted_sum",
    "_who": "_weights_by_role",
    "as_built": "with_built_types",
    "complaint": "unsupported_reason",
    "furnish": "place_side_files",
    "give_away": "leaving_store",
    "halves_in_turn": "interleave_halves",
    "hollow": "placeholder_weight",
    "lacks": "why_unsupported",
    "least_columns": "min_columns",
    "made_for": "stage_origin",
    "model_half": "component",
    "most_drafts": "max_drafts",
    "most_emitted": "max_emitted",
    "most_held": "max_held",
    "note_face": "resolve_face",
    "rising": "isotonic",
    "spelled": "encode",
    "spelled_attention": "decompose_attention",
    "take_back": "remove_question",
    "turned_of": "transposed_of",
    "twice_rounded": "requantization_notes",
    "unblocked": "indivisible_weights",
    "ways_out": "suggested_fixes",
}
# Retired names of parameters, fields, attributes and local variables, and examples of what to write.
VARIABLES: Mapping[str, str] = {
    "asked": "options, requested",
    "at_once": "concurrency",
    "brought": "expected",
    "heard": "observed",
    "lacking": "missing",
    "mine": "own",
    "spelled": "text",
    "stated": "declared",
    "strange": "foreign",
    "told": "warnings",
    "wides": "wide_types",
    "woken": "received",
}
# The same, in the package only.
PACKAGE_VARIABLES: Mapping[str, str] = VARIABLES | {
    "able": "supported",
    "is_ours": "is_owner",
    "lacks": "missing",
    "least": "minimum",
    "turned": "transposed",
    "LEAST": "MIN",
    "MOST": "MAX",
    "_LEAST": "_MIN",
    "_MOST": "_MAX",
    "bent": "cubic_gate",
    "kept_as": "cache_type",
    "stranger": "other_user",
    "theirs": "expected",
    "to_come": "remaining",
    "whys": "reasons",
}
SCRIPTS = ("tools", "benchmarks")
# Retired phrases of messages, help texts and pages, and what to write.
PHRASES: Mapping[str, str] = {
    "is no JSON": "is not valid JSON",
    "has no place for": "overflow",
    "does not do what it promises": "verification failed",
    "says nothing with": "has no effect with",
    "are no layers": "invalid layer ids",
    "would be spoilt": "refusing to append",
    "leave it out": "remove it",
    "is no illness": "is healthy",
    "aimed at": "target",
    "within a turn": "paired per prompt",
    "fault in peagle-compile": "internal error",
    "multiplied wide": "computed in BF16 or FP32",
    "foretell": "estimate",
    "those of plain decoding": "exactly the tokens that plain decoding produces",
}
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md")))


def defined(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of every class and function."""
    for node in nodes_of(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def variables(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of every parameter, and of everything that is assigned: local variables, fields and attributes."""
    for node in nodes_of(tree):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of every string literal, parts of f-strings and docstrings included."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def retired_names(root: Path, paths: list[Path]) -> list[str]:
    """Every definition and file that has a retired name, as ``path:line: old -> new``."""
    found = [f"{path.relative_to(root)}: {path.stem} -> {NAMES[path.stem]}" for path in paths if path.stem in NAMES]
    for path in paths:
        found += [
            f"{path.relative_to(root)}:{line}: {name} -> {NAMES[name]}"
            for line, name in defined(parsed(path))
            if name in NAMES
        ]
    return found


def retired_variables(root: Path, paths: list[Path], retired: Mapping[str, str]) -> list[str]:
    """Every variable that has a retired name, as ``path:line: old -> new``."""
    return [
        f"{path.relative_to(root)}:{line}: {name} -> {retired[name]}"
        for path in paths
        for line, name in variables(parsed(path))
        if name in retired
    ]


def retired_phrases(where: str, text: str) -> list[str]:
    """Every retired phrase in a text, across the ends of its lines."""
    flat = re.sub(r"\s+", " ", text)
    return [f"{where}: {old!r} -> {new!r}" for old, new in PHRASES.items() if old in flat]


def question_docstrings(root: Path, paths: list[Path]) -> list[str]:
    """``path:line`` of every docstring that begins with What, Whether or How."""
    found = []
    for path in paths:
        for node in nodes_of(parsed(path)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if re.match(r"(What|Whether|How)\b", text):
                    found.append(f"{path.relative_to(root)}:{getattr(node, 'lineno', 1)}")
    return found


def test_no_name_is_a_retired_word() -> None:
    require(retired_names(ROOT, [ROOT / path for path in package_files()]))


def test_no_variable_of_the_package_is_a_retired_word() -> None:
    require(retired_variables(ROOT, [ROOT / path for path in package_files()], PACKAGE_VARIABLES))


@pytest.mark.parametrize("folder", SCRIPTS)
def test_no_variable_of_a_script_is_a_retired_word(folder: str) -> None:
    require(retired_variables(ROOT, sorted((ROOT / folder).rglob("*.py")), VARIABLES))


def test_no_text_of_the_package_has_a_retired_phrase() -> None:
    require(
        [
            problem
            for path in package_files()
            for line, text in literals(parsed(ROOT / path))
            for problem in retired_phrases(f"{path}:{line}", text)
        ]
    )


@pytest.mark.parametrize("page", PAGES)
def test_no_page_has_a_retired_phrase(page: str) -> None:
    require(retired_phrases(page, (ROOT / page).read_text()))


def test_docstrings_begin_with_their_subject() -> None:
    require(question_docstrings(ROOT, [ROOT / path for path in package_files()]))


def test_retired_words_are_found_where_they_are_used(tmp_path: Path) -> None:
    write_tree(tmp_path, {"ours.py": '"""Whether."""\n\n\nclass Ours:\n    text = "this is no\\n JSON"\n'})
    paths = [tmp_path / "ours.py"]
    variables_of = (
        "class A:\n    told: str\n\n    def f(self, asked, *, mine=0):\n"
        "        self.heard = [stated for stated in asked]\n"
    )
    write_tree(tmp_path, {"variables.py": variables_of})
    found = retired_variables(tmp_path, [tmp_path / "variables.py"], VARIABLES)
    assert sorted(each.split(": ")[1].split()[0] for each in found) == ["asked", "heard", "mine", "stated", "told"]
    assert len(retired_names(tmp_path, paths)) == 2
    assert question_docstrings(tmp_path, paths) == ["ours.py:1"]
    assert retired_phrases("here", "this is no\n JSON") == ["here: 'is no JSON' -> 'is not valid JSON'"]

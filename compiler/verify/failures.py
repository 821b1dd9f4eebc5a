"""The error for an engine that did not pass: what failed or could not be checked, and what to do about it."""

from __future__ import annotations

from pathlib import Path

from ...plugins.errors import EnvironmentProblem, PeagleError, VerificationError
from .verify_engine import FILE_NAME, PARTS, Verification


def require_passed(verification: Verification, engine: Path) -> None:
    """Raise ``VerificationError`` if a part failed, ``EnvironmentProblem`` if one could not be checked."""
    if error := failure_of(verification, engine):
        raise error


def failure_of(verification: Verification, engine: Path) -> PeagleError | None:
    """Return the error that says why the engine in the folder ``engine`` did not pass; None if it passed."""
    if verification.status == "failed":
        fix = _fix(verification, engine / FILE_NAME)
        return VerificationError("verification failed", why="; ".join(_failures(verification)), fix=fix)
    return None if verification.passed else _not_checked(verification)


def _failures(verification: Verification) -> list[str]:
    lossless, precision = verification.losslessness, verification.precision
    reasons = []
    if lossless is not None and not lossless.passed:
        differ = f"{lossless.tokens_differing} of {lossless.tokens_compared} tokens differ"
        if not lossless.finite:
            differ = "the target's logits are not numbers: its weights overflow in this precision"
        reasons.append(differ if lossless.tokens_compared else "no token was compared")
    reasons += [f"{check.name}: {check.detail}" for check in verification.text if check.status == "failed"]
    reasons += [
        f"{check.name} differ by {check.largest_difference}"
        for check in verification.parity
        if check.status == "failed"
    ]
    if precision is not None:
        reasons += precision.failures()
    return reasons + [f"{part} was not checked: {why}" for part, why in verification.not_checked.items()]


def _not_checked(verification: Verification) -> EnvironmentProblem:
    """Say what could not be checked, and how to ask for the rest alone."""
    parts = verification.not_checked
    rest = [part for part in PARTS if verification.state(part) in ("passed", "lossy")]
    alone = f"; `--only {','.join(rest)}` checks the rest alone" if rest else ""
    return EnvironmentProblem(
        f"not checked: {', '.join(parts)}",
        why="; ".join(f"{part}: {why}" for part, why in parts.items()),
        fix=f"put the checkpoints back where the engine was built from, and verify where the engine runs{alone}",
    )


def _fix(verification: Verification, path: Path) -> str:
    precision = verification.precision
    if verification.state("text") == "failed":
        return f"build again from the checkpoint, if that is the one you trust; {path} has the details"
    if precision is None or precision.status != "failed":
        return f"{path} has the details; a rebuild with `--lowering std` tells graph from kernel"
    if precision.bisection is None:
        return f"`verify --bisect` finds the layers that cost most and what to --exclude; {path} has the details"
    return f"build again with what the bisection excludes, or in another precision; {path} has the details"

"""Errors for engines that did not pass: the failed or unchecked parts, and the fix."""

from __future__ import annotations

from pathlib import Path

from ...plugins.errors import EnvironmentProblem, PeagleError, VerificationError
from .verify_engine import FILE_NAME, PARTS, Verification


def require_passed(verification: Verification, engine: Path) -> None:
    """Raise ``VerificationError`` if a part failed, ``EnvironmentProblem`` if one could not be checked."""
    if error := failure_of(verification, engine):
        raise error


def failure_of(verification: Verification, engine: Path) -> PeagleError | None:
    """Return the error for an engine in the folder ``engine`` that did not pass; None if it passed."""
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
            differ = "the target's logits are NaN or infinite: its weights overflow in this precision"
        reasons.append(differ if lossless.tokens_compared else "no tokens were compared")
    reasons += [f"{check.name}: {check.detail}" for check in verification.text if check.status == "failed"]
    reasons += [
        f"{check.name} differ by up to {check.largest_difference} of the largest logit"
        for check in verification.parity
        if check.status == "failed"
    ]
    if precision is not None:
        reasons += precision.failures()
    return reasons + [f"{part} was not checked: {why}" for part, why in verification.not_checked.items()]


def _not_checked(verification: Verification) -> EnvironmentProblem:
    """Name the unchecked parts, and the flag that runs only the others."""
    parts = verification.not_checked
    rest = [part for part in PARTS if verification.state(part) in ("passed", "lossy")]
    alone = f"; --only {','.join(rest)} runs only the other parts" if rest else ""
    return EnvironmentProblem(
        f"not checked: {', '.join(parts)}",
        why="; ".join(f"{part}: {why}" for part, why in parts.items()),
        fix=f"restore the checkpoints at their paths, and verify on a machine that can run the engine{alone}",
    )


def _fix(verification: Verification, path: Path) -> str:
    precision = verification.precision
    if verification.state("text") == "failed":
        return f"if you trust the checkpoint, rebuild the engine from it; see {path} for details"
    if precision is None or precision.status != "failed":
        return (
            f"see {path} for details; rebuild with --lowering std to find out whether a kernel or the graph is "
            "the cause"
        )
    if precision.bisection is None:
        return f"run verify --bisect to find the layers to --exclude; see {path} for details"
    return f"rebuild with the command that --bisect printed, or in another precision; see {path} for details"

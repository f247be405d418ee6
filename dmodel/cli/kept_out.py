"""Groups of rows that a fit does not see, to judge it by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dmodel.cli.output import Document, say

if TYPE_CHECKING:
    import numpy as np

    from calibration.traces import Cases
    from dmodel.profiles import Profile


def kept_out(
    cases: Cases, base: Profile, share: float, seed: int
) -> tuple[np.ndarray | None, Document | None]:
    """Rows to keep out of the fit, `[rows]` bool, and what is to be said of them. `{share, rows,
    groups, rows_behind_base, message}`, the message on stderr too; None for both where none are
    asked for."""
    import numpy as np

    from calibration.evaluate import fitted_rows
    from calibration.traces import split

    if not share:
        return None, None
    held_out = split(cases, share, seed)
    groups, sizes = np.unique(cases.labels.group, return_counts=True)
    held_groups = len(np.unique(cases.labels.group[held_out]))
    known = int((held_out & fitted_rows(cases, base.fitted_rows)).sum())
    message = (
        f"{held_out.sum()} of {len(cases)} rows held out, {held_groups} of {len(groups)} groups"
    )
    if not held_out.any():
        message = (
            "nothing is held out, so nothing judges the fit: whole groups (rows of one model, "
            "accelerator and number of devices) are "
            f"held out, each only where that comes nearer to {share:g} of the rows than leaving "
            f"it; of the {len(groups)} groups, the "
            f"smallest with {sizes.min()} of {len(cases)} rows, none does. Give a larger share, "
            "or rows of more groups"
        )
    elif known:
        message += (
            f"; the base {base.name} was fitted on {known} of them, which count as fitted and "
            "judge nothing (another --profile may)"
        )
    say(f"--hold-out {share:g}: {message}")
    document = {
        "share": share,
        "rows": int(held_out.sum()),
        "groups": held_groups,
        "rows_behind_base": known,
        "message": message,
    }
    return held_out, document

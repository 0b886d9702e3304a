"""Numbers, names and options as people read them."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable

import numpy as np

from fedpersonal.errors import escaped

_LONGEST = 60
_UNITS = ("bytes", "kB", "MB", "GB", "TB")
# Pages are shared: where one's files and machines are is nobody's business.
_PATHS, _ADDRESSES = ("_dir", "_file", "_path"), ("_address",)
_ACRONYMS = {"rmse", "mse", "mae", "auc", "hr", "ndcg", "mrr", "oov", "eos"}


def rounded(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Returns numbers of so many significant digits for JSON, None for those not finite."""
    return [
        float(f"{float(v):.{digits}g}") if math.isfinite(v) else None
        for v in np.asarray(list(values), np.float64)
    ]


def plain(value: float | None, digits: int = 3) -> str:
    """Returns a number of so many significant digits, such as 0.914, 1,234 or 1.2e-05."""
    if value is None or not math.isfinite(value):
        return "none" if value is None or math.isnan(value) else str(value)
    if value and not 1e-4 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    text = f"{value:,.{max(0, digits - 1 - magnitude)}f}"
    return text.replace("-", "−")


def signed(value: float, digits: int = 3) -> str:
    """Returns the same with its sign."""
    return ("+" if value > 0 else "") + plain(value, digits)


def percent(share: float) -> str:
    """Returns a share in per cent."""
    is_near_an_end = 0 < share < 0.01 or 0.99 < share < 1
    return f"{100 * share:.{int(is_near_an_end)}f} %"


def size(num_bytes: float | None) -> str:
    """Returns a number of bytes with its unit."""
    if num_bytes is None:
        return "unknown size"
    unit = 0
    while num_bytes >= 1000 and unit < len(_UNITS) - 1:
        num_bytes, unit = num_bytes / 1000, unit + 1
    return f"{num_bytes:,.0f} {_UNITS[unit]}" if not unit else f"{plain(num_bytes)} {_UNITS[unit]}"


def label(metric: str) -> str:
    """Returns what people call a metric, such as `RMSE` or `accuracy without OOV`."""
    words = shown(metric).replace("_", " ").split(" ")
    return " ".join(w.upper() if w.partition("@")[0] in _ACRONYMS else w for w in words)


def shown(text: object, longest: int = _LONGEST) -> str:
    """Returns somebody else's text in so few characters that a page can show it."""
    text = str(text)
    return escaped(text[:longest]) + "…" * (len(text) > longest)


def option_text(name: str, value: object) -> str:
    """Returns the value of an option as a page shows it: short, and without folders."""
    if isinstance(value, (list, tuple)):
        return ",".join(option_text(name, one) for one in value)
    if isinstance(value, str) and name.endswith(_ADDRESSES):
        return "host:port"
    if isinstance(value, str):
        is_path = name.endswith(_PATHS) or pathlib.PurePath(value).is_absolute()
        return shown(f"path/to/{pathlib.PurePath(value).name}" if is_path else value)
    return shown(value)

"""Columns of tables, as arrays of numbers or of str: those of pandas, Polars and Arrow."""

from __future__ import annotations

import decimal
import numbers
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.data.sources import one_line
from fedpersonal.errors import UserError, counted, kind_of, listed, quoted

_TEXTS = ("string", "bytes", "empty")


def as_frame(name: str, table: object) -> pd.DataFrame:
    """Returns a table as a pandas one.

    Args:
        name: Its name, for messages.
        table: A table of pandas or Polars, or anything with `__arrow_c_stream__`, such as a table
            of pyarrow or a relation of DuckDB.

    Raises:
        UserError: If it is none, or pyarrow is needed and not installed.
    """
    if isinstance(table, pd.DataFrame):
        return table
    if type(table).__module__.partition(".")[0] == "polars":
        collected: Any = table.collect() if hasattr(table, "collect") else table
        # Its own conversion needs pyarrow.
        if hasattr(collected, "get_columns"):
            columns = {column.name: _of_polars(column) for column in collected.get_columns()}
            return pd.DataFrame(columns)
    with one_line(f"{name}, a {kind_of(table)}, cannot be read", "give a table of pandas"):
        if hasattr(table, "to_pandas"):
            table = table.to_pandas()
        elif hasattr(table, "__arrow_c_stream__"):
            table = _import_pyarrow().RecordBatchReader.from_stream(table).read_all().to_pandas()
    if not isinstance(table, pd.DataFrame):
        raise UserError(
            f"{name} must be a table of pandas, Polars or Arrow, not {kind_of(table)}; "
            "pd.DataFrame(...) makes one."
        )
    return table


def _import_pyarrow() -> Any:
    try:
        import pyarrow  # type: ignore[import-not-found]
    except ImportError:
        raise UserError("pip install pyarrow, which reads it") from None
    return pyarrow


def _of_polars(column: Any) -> Any:
    values = column.to_numpy()
    # Polars makes floats of whole numbers, and objects of bools, where some are missing.
    return [*values] if values.ndim > 1 else values


def list_columns(features: object) -> dict[str, Any]:
    """Returns the columns that are chosen for each input: a name, or a list of names.

    Raises:
        UserError: If they are no mapping to such, or a list has no name.
    """
    if not isinstance(features, Mapping):
        raise UserError(
            "features must map inputs of the model to columns, such as {'x': ['height', 'age']}, "
            f"not be {kind_of(features)}"
        )
    chosen = {k: [*v] if isinstance(v, (list, tuple)) else v for k, v in features.items()}
    for name, columns in chosen.items():
        if not isinstance(columns, list):
            check_is_name(f"features[{name!r}]", columns, ", or a list of names")
        elif not columns:
            raise UserError(f"features[{name!r}] names no column")
    return chosen


def check_is_name(name: str, value: object, advice: str = "") -> None:
    """Raises a UserError if a column's name is a list, a set or an array of names."""
    if not isinstance(value, Hashable):
        raise UserError(f"{name} must be the name of one column{advice}, not {value!r:.60}")


def find_columns(table: pd.DataFrame, wanted: Sequence[Hashable]) -> pd.DataFrame:
    """Returns a table in which columns are found by name, those of its index too.

    Raises:
        UserError: If a column is missing, or there twice.
    """
    levels = [n for n in table.index.names if n in wanted and n not in table.columns]
    if levels:
        table = table.reset_index(level=levels)
    missing = list(dict.fromkeys(str(n) for n in wanted if n not in table.columns))
    if missing:
        raise UserError(
            f"the table has no column {', '.join(map(repr, missing))}; it has "
            f"{listed([*map(str, table.columns)])}"
        )
    twice = [name for name in table.columns[table.columns.duplicated()] if name in wanted]
    if twice:
        raise UserError(f"the table has two columns called {quoted(str(twice[0]))}")
    return table


def check_is_complete(table: pd.DataFrame, wanted: Sequence[Hashable]) -> None:
    """Raises a UserError if a value of some columns is missing or NaN: it names all columns."""
    names = list(dict.fromkeys(wanted))
    is_missing = table[names].isna()
    counts = is_missing.sum()
    counts = counts[counts > 0]
    if counts.empty:
        return
    columns = listed([f"{n!r} ({counted(int(count), 'rows')})" for n, count in counts.items()])
    first = int(np.argmax(is_missing.any(axis=1).to_numpy())) + 1
    raise UserError(
        f"values are missing or NaN in {columns}, first in row {first} of {len(table):,}: leave "
        f"these rows out by table.dropna(subset={[*counts.index]}), or fill them by "
        "table.fillna(...)"
    )


def column_values(name: str, column: pd.Series) -> np.ndarray:
    """Returns a column of a table as an array of numbers, bools or str, or of rows of numbers.

    Nullable types become NumPy's, categories their values, `Decimal` and other objects of numbers
    floats or whole numbers, and lists of one length rows.

    Raises:
        UserError: If it holds anything else.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    dtype = column.dtype
    if dtype.kind in "Mm" or isinstance(dtype, pd.PeriodDtype):
        raise UserError(
            f"{name} holds times ({dtype}): make numbers of them, such as hours by .dt.hour, or "
            "days by (column - pd.Timestamp('2000-01-01')) / pd.Timedelta('1D')"
        )
    plain = getattr(dtype, "numpy_dtype", dtype)  # Of a nullable type.
    if isinstance(plain, np.dtype) and plain.kind in "biuf" and plain != dtype:
        if column.isna().any():
            return column.to_numpy(np.float64, na_value=np.nan)
        return column.to_numpy(plain)
    return as_column(name, column.to_numpy())


def stack_columns(name: str, columns: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Returns columns of numbers, or of texts, as (n, columns).

    Args:
        name: What they make, for messages.
        columns: Each (n,).
        names: Those of the columns.

    Raises:
        UserError: If some are numbers and some texts, or one has rows.
    """
    for column, own in zip(columns, names):
        if column.ndim != 1:
            raise UserError(f"{name}: column {own!r} holds lists, which must be an input alone")
    is_text = [column.dtype.kind not in "biufc" for column in columns]
    if any(is_text) and not all(is_text):
        raise UserError(
            f"{name} is made of texts ({names[is_text.index(True)]!r}) and of numbers "
            f"({names[is_text.index(False)]!r}); make numbers of the texts"
        )
    return np.stack(columns, axis=1)


def as_column(name: str, values: object) -> np.ndarray:
    """Returns an array of numbers or of str; anything else is a UserError that names it."""
    if isinstance(values, pd.Series):
        return column_values(name, values)
    if isinstance(values, pd.api.extensions.ExtensionArray):
        return column_values(name, pd.Series(values))
    if isinstance(values, pd.DataFrame):
        parts = [column_values(f"{name}, {own!r}", part) for own, part in values.items()]
        return stack_columns(name, parts, [*map(str, values.columns)])
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise UserError(
            f"{name} has {counted(int(np.ma.count_masked(values)), 'masked values')}: leave their "
            "rows out, or fill them by .filled(...)"
        )
    try:
        column = np.asarray(values)
    except ValueError:  # Of lists of unequal lengths.
        raise UserError(f"{name} must have rows of one shape; pad shorter ones") from None
    if column.dtype != object:
        return column
    if pd.api.types.infer_dtype(column, skipna=False) in _TEXTS:
        return column
    kinds = {*map(type, column.flat)}
    if all(issubclass(kind, (numbers.Real, decimal.Decimal, np.bool_)) for kind in kinds):
        is_exact = all(issubclass(kind, (numbers.Integral, np.bool_)) for kind in kinds)
        made = np.array(column.tolist()) if is_exact else column.astype(np.float64)
        if made.dtype != object:
            return made
    first = column.flat[0] if column.size else None
    if isinstance(first, _ROWS):
        return _stack_rows(name, column)
    example = next(value for value in column.flat if not isinstance(value, str))
    raise UserError(
        f"{name} must be an array of numbers or of str, got objects such as"
        f" {quoted(str(example))} of type {type(example).__name__}"
    )


_ROWS = (list, tuple, np.ndarray)


def _stack_rows(name: str, column: np.ndarray) -> np.ndarray:
    """Returns cells that are lists of numbers as rows."""
    others = [value for value in column.flat if not isinstance(value, _ROWS)]
    if others:
        raise UserError(
            f"{name} holds lists, and other values such as {quoted(str(others[0]))} of type "
            f"{type(others[0]).__name__}"
        )
    rows = as_column(name, column.tolist())
    if rows.dtype.kind == "f" and np.isnan(rows).any():
        count = counted(int(np.isnan(rows).reshape(len(rows), -1).any(axis=1).sum()), "rows")
        raise UserError(f"{name} holds lists with NaN, in {count}: leave these out, or fill them")
    return rows

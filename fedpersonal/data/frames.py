"""Conversion of columns of pandas, Polars and Arrow to arrays of numbers or of str."""

from __future__ import annotations

import decimal
import numbers
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.data.sources import shorten_errors
from fedpersonal.errors import UserError, join_words, quoted, type_name, with_count

_TEXTS = ("string", "bytes", "empty")


def as_frame(name: str, table: object) -> pd.DataFrame:
    """Returns a table as a pandas DataFrame.

    Args:
        name: The table's name, for messages.
        table: A table of pandas or Polars, or anything with `__arrow_c_stream__`, such as a table
            of pyarrow or a relation of DuckDB.

    Raises:
        UserError: If it is no table, or pyarrow is needed and not installed.
    """
    if isinstance(table, pd.DataFrame):
        return table
    if type(table).__module__.partition(".")[0] == "polars":
        collected: Any = table.collect() if hasattr(table, "collect") else table
        # The conversion by Polars needs pyarrow.
        if hasattr(collected, "get_columns"):
            columns = {column.name: _polars_values(column) for column in collected.get_columns()}
            return pd.DataFrame(columns)
    with shorten_errors(f"{name}, a {type_name(table)}, cannot be read", "give a table of pandas"):
        if hasattr(table, "to_pandas"):
            table = table.to_pandas()
        elif hasattr(table, "__arrow_c_stream__"):
            table = _import_pyarrow().RecordBatchReader.from_stream(table).read_all().to_pandas()
    if not isinstance(table, pd.DataFrame):
        raise UserError(
            f"{name} must be a table of pandas, Polars or Arrow, not {type_name(table)}; "
            "pd.DataFrame(...) makes one."
        )
    return table


def _import_pyarrow() -> Any:
    try:
        import pyarrow  # type: ignore[import-not-found]
    except ImportError:
        raise UserError("pip install pyarrow, which reads it") from None
    return pyarrow


def _polars_values(column: Any) -> Any:
    values = column.to_numpy()
    # If values are missing, Polars makes floats of whole numbers and objects of bools.
    return [*values] if values.ndim > 1 else values


def list_columns(features: object) -> dict[str, Any]:
    """Returns the columns of each input: a name, or a list of names.

    Raises:
        UserError: If `features` is no such mapping, or a list is empty.
    """
    if not isinstance(features, Mapping):
        raise UserError(
            "features must map inputs of the model to columns, such as {'x': ['height', 'age']}, "
            f"not be {type_name(features)}"
        )
    chosen = {k: [*v] if isinstance(v, (list, tuple)) else v for k, v in features.items()}
    for name, columns in chosen.items():
        if not isinstance(columns, list):
            check_is_name(f"features[{name!r}]", columns, ", or a list of names")
        elif not columns:
            raise UserError(f"features[{name!r}] names no column")
    return chosen


def check_is_name(name: str, value: object, advice: str = "") -> None:
    """Raises a UserError if a column's name is a list, a set or an array."""
    if not isinstance(value, Hashable):
        raise UserError(f"{name} must be the name of one column{advice}, not {value!r:.60}")


def find_columns(table: pd.DataFrame, columns: Sequence[Hashable]) -> pd.DataFrame:
    """Returns a table with the named levels of its index as columns.

    Raises:
        UserError: If a column is missing or duplicated.
    """
    levels = [n for n in table.index.names if n in columns and n not in table.columns]
    if levels:
        table = table.reset_index(level=levels)
    missing = list(dict.fromkeys(str(n) for n in columns if n not in table.columns))
    if missing:
        raise UserError(
            f"the table has no column {', '.join(map(repr, missing))}; it has "
            f"{join_words([*map(str, table.columns)])}"
        )
    duplicates = [name for name in table.columns[table.columns.duplicated()] if name in columns]
    if duplicates:
        raise UserError(f"the table has two columns called {quoted(str(duplicates[0]))}")
    return table


def check_is_complete(table: pd.DataFrame, columns: Sequence[Hashable]) -> None:
    """Raises a UserError that names all columns with missing or NaN values, if any."""
    names = list(dict.fromkeys(columns))
    is_missing = table[names].isna()
    counts = is_missing.sum()
    counts = counts[counts > 0]
    if counts.empty:
        return
    incomplete = join_words(
        [f"{n!r} ({with_count(int(count), 'rows')})" for n, count in counts.items()]
    )
    first = int(np.argmax(is_missing.any(axis=1).to_numpy())) + 1
    raise UserError(
        f"values are missing or NaN in {incomplete}, first in row {first} of {len(table):,}: leave "
        f"these rows out by table.dropna(subset={[*counts.index]}), or fill them by "
        "table.fillna(...)"
    )


def column_values(name: str, column: pd.Series) -> np.ndarray:
    """Returns a column of a table as an array of numbers, bools or str, or of rows of numbers.

    Nullable types become NumPy's, categories their values, `Decimal` and other objects of numbers
    floats or whole numbers, and lists of one length rows.

    Raises:
        UserError: If the column holds anything else.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    dtype = column.dtype
    if dtype.kind in "Mm" or isinstance(dtype, pd.PeriodDtype):
        raise UserError(
            f"{name} holds times ({dtype}): make numbers of them, such as hours by .dt.hour, or "
            "days by (column - pd.Timestamp('2000-01-01')) / pd.Timedelta('1D')"
        )
    plain = getattr(dtype, "numpy_dtype", dtype)  # The type within a nullable type.
    if isinstance(plain, np.dtype) and plain.kind in "biuf" and plain != dtype:
        if column.isna().any():
            return column.to_numpy(np.float64, na_value=np.nan)
        return column.to_numpy(plain)
    return as_column(name, column.to_numpy())


def stack_columns(name: str, columns: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Stacks columns of numbers, or of texts, into (n, columns).

    Args:
        name: The name of the result, for messages.
        columns: Each (n,).
        names: The columns' names.

    Raises:
        UserError: If numbers and texts are mixed, or a column holds rows.
    """
    for column, column_name in zip(columns, names):
        if column.ndim != 1:
            raise UserError(
                f"{name}: column {column_name!r} holds lists, which must be an input alone"
            )
    is_text = [column.dtype.kind not in "biufc" for column in columns]
    if any(is_text) and not all(is_text):
        raise UserError(
            f"{name} is made of texts ({names[is_text.index(True)]!r}) and of numbers "
            f"({names[is_text.index(False)]!r}); make numbers of the texts"
        )
    return np.stack(columns, axis=1)


def as_column(name: str, values: object) -> np.ndarray:
    """Returns an array of numbers or of str; anything else raises a UserError with `name`."""
    if isinstance(values, pd.Series):
        return column_values(name, values)
    if isinstance(values, pd.api.extensions.ExtensionArray):
        return column_values(name, pd.Series(values))
    if isinstance(values, pd.DataFrame):
        parts = [column_values(f"{name}, {key!r}", part) for key, part in values.items()]
        return stack_columns(name, parts, [*map(str, values.columns)])
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise UserError(
            f"{name} has {with_count(int(np.ma.count_masked(values)), 'masked values')}: leave "
            "their rows out, or fill them by .filled(...)"
        )
    try:
        column = np.asarray(values)
    except ValueError:  # Lists have unequal lengths.
        raise UserError(f"{name} must have rows of one shape; pad shorter ones") from None
    if column.dtype != object:
        return column
    if pd.api.types.infer_dtype(column, skipna=False) in _TEXTS:
        return column
    kinds = {*map(type, column.flat)}
    if all(issubclass(kind, (numbers.Real, decimal.Decimal, np.bool_)) for kind in kinds):
        is_exact = all(issubclass(kind, (numbers.Integral, np.bool_)) for kind in kinds)
        converted = np.array(column.tolist()) if is_exact else column.astype(np.float64)
        if converted.dtype != object:
            return converted
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
    """Stacks cells that are lists of numbers into rows."""
    others = [value for value in column.flat if not isinstance(value, _ROWS)]
    if others:
        raise UserError(
            f"{name} holds lists, and other values such as {quoted(str(others[0]))} of type "
            f"{type(others[0]).__name__}"
        )
    rows = as_column(name, column.tolist())
    if rows.dtype.kind == "f" and np.isnan(rows).any():
        count = with_count(int(np.isnan(rows).reshape(len(rows), -1).any(axis=1).sum()), "rows")
        raise UserError(f"{name} holds lists with NaN, in {count}: leave these out, or fill them")
    return rows

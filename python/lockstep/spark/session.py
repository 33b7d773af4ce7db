"""Helpers for pyspark that several modules use."""

from __future__ import annotations

from typing import Any

_MOST_CHARACTERS = 500


def active_context() -> Any:
    """Returns the SparkContext of this program. Raises RuntimeError if there is none, or no pyspark."""
    try:
        from pyspark import SparkContext
    except ImportError as error:
        raise RuntimeError(f"no pyspark here: {error}; pip install pyspark") from None
    context = SparkContext._active_spark_context
    if context is None:
        raise RuntimeError("no SparkContext: make one first, with SparkSession.builder.getOrCreate()")
    return context


def error_text(error: Exception) -> str:
    """Returns the first line of an error that a call of Spark raised; the other lines are Spark's stack traces."""
    if type(error).__module__.startswith("py4j") and not hasattr(error, "java_exception"):
        # The error comes from the bridge to Java, and its text does not say that the Java process has ended.
        return f"its Java process is gone ({type(error).__name__})"
    lines = [line.strip() for line in str(getattr(error, "java_exception", None) or error).splitlines()]
    said = next((line for line in lines if line), type(error).__name__)
    return said[:_MOST_CHARACTERS]

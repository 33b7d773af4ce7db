"""What is asked of pyspark in more than one place."""

from __future__ import annotations

from typing import Any

_MOST_CHARACTERS = 500


def active_context() -> Any:
    """The SparkContext of this program. RuntimeError: there is none, or no pyspark."""
    try:
        from pyspark import SparkContext
    except ImportError as error:
        raise RuntimeError(f"no pyspark here: {error}; pip install pyspark") from None
    context = SparkContext._active_spark_context
    if context is None:
        raise RuntimeError("no SparkContext: make one first, by SparkSession.builder.getOrCreate()")
    return context


def told_by(error: Exception) -> str:
    """What an error that Spark's call raised says, in a line; Spark adds its traces to it."""
    if type(error).__module__.startswith("py4j") and not hasattr(error, "java_exception"):
        # Of the bridge, which has no words for the end of the other side.
        return f"its Java process is gone ({type(error).__name__})"
    lines = [line.strip() for line in str(getattr(error, "java_exception", None) or error).splitlines()]
    said = next((line for line in lines if line), type(error).__name__)
    return said[:_MOST_CHARACTERS]

"""The report at the end of a run of train.py: a table for people, and the same figures as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import reader

_SMALLEST = 1e-7  # the least distance of probabilities from 0 and 1 in logarithms


def compare(labels: np.ndarray, trained: np.ndarray, served: np.ndarray) -> dict:
    """Returns figures of the same rows [N], scored by the trained and by the served model."""
    clipped = np.clip(trained.astype(np.float64), _SMALLEST, 1 - _SMALLEST)
    losses = -np.where(labels > 0.5, np.log(clipped), np.log1p(-clipped))
    return {
        "compared_rows": len(labels),
        "compared_loss": float(losses.mean()),
        "compared_auc": reader.exact_auc(labels, trained),
        "served_auc": reader.exact_auc(labels, served),
        "max_score_difference": float(np.abs(served - trained).max()),
    }


def save(figures: dict, folder: Path) -> None:
    """Writes the figures as report.json into the folder; missing measurements are null."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {name: None if _is_missing(value) else value for name, value in figures.items()}
    (folder / "report.json").write_text(json.dumps(figures, indent=1) + "\n")


def _is_missing(value: object) -> bool:
    return isinstance(value, float) and np.isnan(value)


def table(figures: dict) -> str:
    """Returns the figures as lines for people."""
    f = figures
    resumed = f", resumed at step {f['first_step']}" if f["first_step"] else ""
    accuracy = f"accuracy {f['held_out_accuracy']:.4f}"
    loss = "" if _is_missing(f["training_loss"]) else f", loss {f['training_loss']:.4f}"
    speed = f"{f['samples_per_s']:,.0f} samples/s, median step {f['step_ms']:.1f} ms"
    rows = [
        ("Model", f"{f['model']} on {f['data']}, {f['workers']} workers{resumed}"),
        ("Training", f"{f['steps']} steps of {f['batch_size']} samples{loss}"),
        *([] if _is_missing(f["samples_per_s"]) else [("Speed", speed)]),
        ("Held out", f"AUC {f['held_out_auc']:.4f}, {accuracy} ({f['held_out_rows']:,} rows)"),
        ("Compared", f"AUC {f['compared_auc']:.4f}, loss {f['compared_loss']:.4f} ({f['compared_rows']:,} rows)"),
        ("Served", f"AUC {f['served_auc']:.4f}, scores differ by at most {f['max_score_difference']:.1e}"),
        ("Checkpoint", f["checkpoint"]),
        ("Export", f["export"]),
        ("Picture", f["picture"]),
    ]
    rule = "-" * (12 + max(len(text) for _, text in rows))
    return "\n".join([rule, *(f"{name:<11} {text}" for name, text in rows), rule])

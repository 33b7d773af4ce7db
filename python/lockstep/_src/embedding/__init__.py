"""Dynamic tables: embeddings for keys without a vocabulary."""

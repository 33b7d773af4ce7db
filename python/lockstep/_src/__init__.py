"""The implementation behind the public modules. Nothing here is public."""

"""What happens to optimizers, gradients and sessions in a scope."""

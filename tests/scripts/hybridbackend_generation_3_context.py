"""Section 1 of HybridBackend's documentation, third generation: the context, as it is written there."""

import hybridbackend.tensorflow as hb

print("1.3 environment", hb.context.options.grad_nbuckets, flush=True)
print(f"{hb.context.rank}-of-{hb.context.world_size}", flush=True)

hb.context.options.batch_size = 16
print("1.3 batch_size", hb.context.options.batch_size, flush=True)

"""One micro-batch: what a `train_step` computes, captured so that it assigns nothing."""

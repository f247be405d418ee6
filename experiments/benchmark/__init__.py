"""A public benchmark of tools that predict step times and memory of distributed training."""

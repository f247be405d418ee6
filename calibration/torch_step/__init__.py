"""Training steps of a decoder in PyTorch on one device, measured by the kernels that they run.

What a step takes says little of what its parts take: rows of one length cannot part attention from
elementwise kernels. So the device's own time of each kernel is kept, by name (`measure`), and
summed by what kernels do (`kinds`). The decoder is written as the trainers that publish rows write
theirs. It needs PyTorch, which the rest of the package does not: `python -m calibration.torch_step
--out FILE`.
"""

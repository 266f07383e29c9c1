"""The memory that a training run needs in each phase, computed before anything is loaded, and settings that need less.

Activations are measured on tensors without data (`FakeTensorMode`); everything else follows from the shapes of the
model. No weights are read, and no GPU is needed.
"""

"""From measurements to coefficients: traces, micro-benchmarks, the fit and its uncertainty. The
library never imports it."""

"""GPU kernels for what XLA leaves in many pieces, each with its own gradient and a plain twin.

They are written in Pallas for Triton. Elsewhere the plain forms run (:mod:`icql.nn.backend`
chooses); tests hold the kernels' code against these in Pallas' interpreter.
"""

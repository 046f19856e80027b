"""A policy and its alarm as one ONNX file that needs nothing of this package to run."""

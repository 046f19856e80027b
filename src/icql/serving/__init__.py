"""An exported policy over HTTP; onnxruntime runs it, JAX is not needed."""

"""Values and comparisons on the retrieval graph: a local critic that is solved, not learned."""

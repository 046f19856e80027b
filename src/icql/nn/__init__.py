"""Networks: features, policies, critics and in-context modules."""

"""The paper's tables: suites, their runner and report; what an update costs on this machine."""

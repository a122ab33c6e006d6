"""Support for tests of the engine: tiny models, workflows, comparisons."""

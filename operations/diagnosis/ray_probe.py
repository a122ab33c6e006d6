"""Prints the resources of the Ray at the given address as JSON.

This module runs in a separate process, because Ray blocks and may end its process if it gets no
answer.
"""

from __future__ import annotations

import json
import logging
import sys


def main(address: str) -> None:
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
    sys.stdout.write(json.dumps({"nodes": nodes, "free": ray.available_resources()}))
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])

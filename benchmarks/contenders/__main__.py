"""``python -m benchmarks.contenders MODULE IMAGES ROUNDS RESULT OPTIONS``: one contender, in a process of its own."""

import importlib
import json
import sys
from pathlib import Path

if __name__ == "__main__":
    module, images, rounds, result, options = sys.argv[1:]
    contender = importlib.import_module(f"benchmarks.contenders.{module}")
    ends = contender.run(Path(images), int(rounds), **json.loads(options))
    Path(result).write_text(json.dumps(ends))

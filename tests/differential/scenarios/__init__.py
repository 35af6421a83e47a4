"""All scenarios, by name: every public function of the modules in this folder plays one.

A scenario is a script: `def scenario(play)` says what a client does, step by step, and asserts nothing. What
both servers answer is compared by `test_differential.py`.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable


def all_scenarios() -> dict[str, Callable[..., None]]:
    """`{"queue.purging_counts_what_was_ready": <function>, …}`"""
    found = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                found[f"{module_info.name}.{name}"] = function
    return found

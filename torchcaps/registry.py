"""Things of one kind by name: data sets, models, routings, tasks, metrics, figures."""

from collections.abc import Callable
from typing import TypeVar

from torchcaps import plugins
from torchcaps.errors import UsageError, nearest

T = TypeVar("T")


class Registry(dict[str, T]):
    """A dict whose `find` looks into plug-ins, too, and suggests a name for an unknown one."""

    def __init__(self, kind: str, listed: str = ""):
        """kind: what an error calls the things; listed: the argument of `torchcaps list`"""
        super().__init__()
        self.kind, self.listed = kind, listed

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that stores a class or function under a name."""

        def add(thing: T) -> T:
            self[name] = thing
            return thing

        return add

    def find(self, name: object) -> T:
        known = isinstance(name, str)  # a config.json may hold anything, even what has no hash
        if known and name not in self:
            plugins.load_installed()
        if not known or name not in self:
            hint = nearest(str(name), list(self), most=12)
            see = f"See torchcaps list {self.listed}." if self.listed else ""
            raise UsageError(f"Unknown {self.kind} {name!r}. {hint} {see}".replace("  ", " "))
        return self[name]

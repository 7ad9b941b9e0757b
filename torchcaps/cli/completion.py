"""Completion for bash and zsh: commands, recipes and their fields, models, data sets."""

import dataclasses

from torchcaps.data.registry import entries
from torchcaps.experiments import get_recipe, recipes
from torchcaps.models.registry import list_models

_SCRIPT = """\
# torchcaps completion {shell} >> ~/.{shell}rc
{prelude}_torchcaps() {{
  local words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "${{COMP_WORDS[1]}}" in
      train) if [ "$COMP_CWORD" -eq 2 ]; then words="{recipes}"; else words="{fields}"; fi ;;
      tour) if [ "$COMP_CWORD" -eq 2 ]; then words="{models}"; else words="{data}"; fi ;;
      data) if [ "$COMP_CWORD" -eq 2 ]; then words="get check show"; else words="{data}"; fi ;;
      list) words="all models data recipes --json" ;;
      table) words="{papers}" ;;
      resume|eval|report) COMPREPLY=($(compgen -d -- "${{COMP_WORDS[COMP_CWORD]}}")); return ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -F _torchcaps torchcaps
"""


def _fields(value: object, prefix: str = "--") -> list[str]:
    found = []
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        inner = getattr(value, field.name)
        name = prefix + field.name.replace("_", "-")
        found += _fields(inner, f"{name}.") if dataclasses.is_dataclass(inner) else [name]
    return found


def completion_script(shell: str, commands: list[str]) -> str:
    names = list(recipes())
    fields = {f: None for name in names for f in _fields(get_recipe(name))}
    return _SCRIPT.format(
        shell=shell,
        prelude="autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "",
        commands=" ".join(commands),
        recipes=" ".join(names),
        fields=" ".join(fields),
        models=" ".join(list_models()),
        data=" ".join(e.name for e in entries()),
        papers=" ".join(sorted({n.split("/")[0] for n in names if get_recipe(n).paper})),
    )

"""Completion for bash and zsh: commands, recipes and their fields, models, data sets."""

from torchcaps.cli.catalog import read

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
      list) words="all models data recipes tasks routings measures runs --json" ;;
      table) words="{papers}" ;;
      resume|eval|measure|report|record|curves|traverse)
        COMPREPLY=($(compgen -d -- "${{COMP_WORDS[COMP_CWORD]}}")); return ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -F _torchcaps torchcaps
"""


def completion_script(shell: str, commands: list[str]) -> str:
    known = read()
    return _SCRIPT.format(
        shell=shell,
        prelude="autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "",
        commands=" ".join(commands),
        **{name: " ".join(known[name]) for name in ("recipes", "fields", "models", "data")},
        papers=" ".join(known["papers"]),
    )

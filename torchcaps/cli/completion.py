"""Completion for bash, zsh and fish: commands, recipes and their fields, models, data sets."""

from torchcaps.cli.catalog import read

RUNS = "resume eval predict embed export explore report".split()
"""Commands whose words are files and folders."""
KINDS = "all models data tasks routings metrics figures"
_SCRIPT = """\
# torchcaps completion {shell} >> ~/.{shell}rc
{prelude}_torchcaps() {{
  local words="" second=0
  [ "$COMP_CWORD" -eq 2 ] && second=1
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "${{COMP_WORDS[1]}}-$second" in
{cases}
      {runs}) COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}")); return ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -F _torchcaps torchcaps
"""
_FISH = """\
# torchcaps completion fish > ~/.config/fish/completions/torchcaps.fish
function __torchcaps_at
    set -l words (commandline -opc)
    test (count $words) -ge 2; and contains -- $words[2] $argv[2..]; or return 1
    test $argv[1] = any; or test (count $words) -eq $argv[1]
end
complete -c torchcaps -f
complete -c torchcaps -n "test (count (commandline -opc)) -eq 1" -a "{commands}"
{cases}
complete -c torchcaps -n "__torchcaps_at any {runs}" -F
"""


def _words() -> dict[tuple[str, bool], str]:
    """A command, and whether its first word is meant -> what may stand there."""
    known = {kind: " ".join(names) for kind, names in read().items()}
    return {
        ("train", True): f"{known['recipes']} {known['models']}",
        ("train", False): known["fields"],
        ("tour", True): known["models"],
        ("tour", False): known["data"],
        ("data", True): "get check show",
        ("data", False): known["data"],
        ("list", True): KINDS,
        ("plot", True): known["figures"],
        ("runs", True): "list clean",
        ("paper", True): "list run table record amend benchmarks",
        ("paper", False): known["papers"],
        ("completion", True): "bash zsh fish",
    }


def completion_script(shell: str, commands: list[str]) -> str:
    every = " ".join(commands)
    if shell == "fish":
        cases = "\n".join(
            f'complete -c torchcaps -n "__torchcaps_at {2 if first else "any"} {name}" -a "{words}"'
            for (name, first), words in _words().items()
        )
        return _FISH.format(commands=every, cases=cases, runs=" ".join(RUNS))
    cases = "\n".join(
        f'      {name}-{int(first)}) words="{words}" ;;'
        for (name, first), words in _words().items()
    )
    return _SCRIPT.format(
        shell=shell,
        prelude="autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "",
        commands=every,
        cases=cases,
        runs="|".join(f"{name}-*" for name in RUNS),
    )

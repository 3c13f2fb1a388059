"""Commands of several actions, such as `keepthread facts add`; the first one is the default."""

from collections.abc import Callable, Mapping
from inspect import cleandoc
from typing import Any, NamedTuple

from typer.core import TyperGroup

from keepthread.errors import InvalidInput


class Actions(NamedTuple):
    """A command's purpose, and the function of each of its actions."""

    about: str
    functions: Mapping[str, Callable[..., Any]]

    def group(self, name: str, command: Callable[[str, Callable[..., Any]], Any]) -> "ActionGroup":
        """Return the command; `command` makes an action of a function."""
        first = next(iter(self.functions))
        return ActionGroup(
            name=name,
            help=cleandoc(self.about),
            epilog=f"Without an action, {first} runs."
            f" `keepthread {name} ACTION --help` shows what an action takes.",
            commands={action: command(action, run) for action, run in self.functions.items()},
            options_metavar="[ACTION]",
            subcommand_metavar="[ARGUMENTS]...",
            rich_markup_mode=None,
        )


class ActionGroup(TyperGroup):
    """A command of several actions."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the action; without one the first is meant, and options may come before it."""
        if args[:1] and args[0] in ctx.help_option_names:
            return super().parse_args(ctx, args)
        return super().parse_args(ctx, self._with_action_first(args))

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's
        """Write what each action does."""
        with formatter.section("Actions"):
            formatter.write_dl(
                [
                    (name, (each.help or "").partition("\n")[0])
                    for name, each in self.commands.items()
                ]
            )

    def _with_action_first(self, args: list[str]) -> list[str]:
        valued = {
            name
            for command in self.commands.values()
            for each in command.params
            if each.param_type_name == "option" and not getattr(each, "is_flag", False)
            for name in each.opts
        }
        before = ""
        for at, word in enumerate(args):
            if word == "--":
                break
            if not word.startswith("-") and before not in valued:
                if word not in self.commands:
                    known = ", ".join(self.commands)
                    raise InvalidInput(f"there is no action {word!r}; there are {known}")
                return [word, *args[:at], *args[at + 1 :]]
            before = word
        return [next(iter(self.commands)), *args]

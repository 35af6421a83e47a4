"""`leveret users`: who there is, and what they may do; made, changed and deleted.

Parses, asks the broker's HTTP API, prints. A password is asked for, or read from a file: on a command line
others could see it. What a name, a tag or a right may be is the broker's to say. Only `recover` works without
the broker, on its files.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, Yes, make_sure, spoken
from leveret.cli.options import AsJson
from leveret.cli.screen import Screen
from leveret.cli.tables import Page, show_json

users = typer.Typer(help="Make users, and say what they may do.", no_args_is_help=True)

Name: TypeAlias = Annotated[str, typer.Argument(help="The user's name.")]
PasswordFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="A file whose first line is the password; - is stdin. Without it: asked for."),
]

_RIGHTS: Final = ("configure", "write", "read")


@users.command(name="list")
def list_users(http: Http = DEFAULT_HTTP, vhost: Vhost = "/", as_json: AsJson = False) -> None:
    """List all users, with what they may do in the virtual host."""
    with spoken(Screen(as_json=as_json)):
        api = Api(http, vhost=vhost)
        rights = {each["user"]: each for each in api.get("permissions")}
        found = [{**each, "permissions": rights.get(each["name"])} for each in api.get("users")]
    if as_json:
        show_json(found)
        return
    rows = []
    for each in found:
        may = each["permissions"] or dict.fromkeys(_RIGHTS, "")
        rows.append([each["name"], ", ".join(each["tags"]), *(may[right] for right in _RIGHTS)])
    Page().table(("user", "tags", *_RIGHTS), rows)


@users.command()
def create(
    name: Name,
    password_file: PasswordFile = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="administrator, monitoring, management; may be repeated.", show_default=False),
    ] = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Make a user, or give one a new password and these tags. What it may do is said with `permit`.

    leveret users create spark --password-file spark.password
    """
    screen = Screen(as_json=as_json)
    body = {"password": _password(password_file), "tags": tag or []}
    with spoken(screen):
        Api(http, vhost="/").put("users", name, body=body)
    screen.result({"user": name, "tags": body["tags"]}, f"user '{name}' can log in with this password")


@users.command()
def permit(
    name: Name,
    configure: Annotated[str, typer.Option(help="What it may declare and delete.")] = "",
    write: Annotated[str, typer.Option(help="What it may publish to.")] = "",
    read: Annotated[str, typer.Option(help="What it may consume, look into and purge.")] = "",
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Say what a user may do in a virtual host: three regular expressions over names; '' is nothing.

    leveret users permit spark --read '^orders$' --write '^results$'
    """
    rights = {"configure": configure, "write": write, "read": read}
    screen = Screen(as_json=as_json)
    with spoken(screen):
        Api(http, vhost=vhost).put("permissions", name, body=rights)
    screen.result({"user": name, "vhost": vhost, **rights}, f"user '{name}' may enter vhost '{vhost}'")


@users.command()
def delete(name: Name, yes: Yes = False, http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """Delete a user, and close its connections."""
    make_sure(f"Delete user '{name}'?", yes=yes)
    screen = Screen(as_json=as_json)
    with spoken(screen):
        Api(http, vhost="/").delete("users", name)
    screen.result({"deleted": name}, f"user '{name}' is deleted")


@users.command()
def recover(
    name: Name,
    data_dir: Annotated[Path, typer.Option(help="The data directory of a broker that is stopped.")] = Path(
        "leveret-data"
    ),
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Make an administrator in a data directory that has none. The broker must be stopped.

    leveret users recover admin --data-dir leveret-data
    """
    from leveret.cli.admin_recovery import NoDataDirectory, make_administrator
    from leveret.storage.errors import StorageError

    screen = Screen(as_json=as_json)
    password = _password(password_file).encode("utf-8", "surrogateescape")
    if not name or not password:
        raise typer.BadParameter("a name and a password have at least one character")
    try:
        vhosts = make_administrator(data_dir, name, password)
    except (NoDataDirectory, StorageError) as error:
        screen.say(str(error))
        raise typer.Exit(1) from error
    result = {"user": name, "tags": ["administrator"], "vhosts": vhosts}
    screen.result(result, f"user '{name}' is an administrator of {data_dir}: start the broker")


def _password(file: Path | None) -> str:
    if file is None:
        if not sys.stdin.isatty():
            raise typer.BadParameter("nobody is there to be asked for a password: --password-file")
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"the password can't be read: {error}") from error
    return text.partition("\n")[0].rstrip("\r")

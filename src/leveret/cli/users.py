"""`leveret users`: list, create, delete and recover users.

Parses, calls the broker's HTTP API, prints. A password is prompted for or read from a file, because others
could see it on a command line. The broker decides which names and tags are valid. Only `recover`
works without the broker, on its files.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, Yes, confirm, exit_on_error
from leveret.cli.options import AsJson
from leveret.cli.screen import Screen
from leveret.cli.tables import Page, show_json

users = typer.Typer(help="Manage users; `leveret permissions` says what they may do.", no_args_is_help=True)

Name: TypeAlias = Annotated[str, typer.Argument(help="The user's name.")]
PasswordFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="File whose first line is the password; - is stdin. Without it, the command asks."),
]

_PERMISSIONS: Final = ("configure", "write", "read")


@users.command(name="list")
def list_users(http: Http = DEFAULT_HTTP, vhost: Vhost = "/", as_json: AsJson = False) -> None:
    """List all users, with their permissions in the virtual host."""
    with exit_on_error(as_json=as_json):
        api = Api(http, vhost=vhost)
        permissions = {row["user"]: row for row in api.get("vhosts", vhost, "permissions")}
        # Password hashes, which the API shows too, are left out.
        users_json = [
            {"name": user["name"], "tags": user["tags"], "permissions": permissions.get(user["name"])}
            for user in api.get("users")
        ]
    if as_json:
        show_json(users_json)
        return
    rows = []
    for user in users_json:
        patterns = user["permissions"] or dict.fromkeys(_PERMISSIONS, "")
        rows.append([user["name"], ", ".join(user["tags"]), *(patterns[name] for name in _PERMISSIONS)])
    Page().table(("user", "tags", *_PERMISSIONS), rows)


@users.command()
def create(
    name: Name,
    password_file: PasswordFile = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            help="administrator, monitoring, policymaker, management or impersonator; repeatable.",
            show_default=False,
        ),
    ] = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Create a user, or replace the password and tags of one. Grant permissions with `permissions set`.

    leveret users create spark --password-file spark.password
    """
    body = {"password": _password(password_file), "tags": tag or []}
    with exit_on_error(as_json=as_json) as screen:
        Api(http, vhost="/").put("users", name, body=body)
    screen.result({"user": name, "tags": body["tags"]}, f"user '{name}' can log in with this password")


@users.command()
def delete(name: Name, yes: Yes = False, http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """Delete a user and close its connections."""
    confirm(f"Delete user '{name}'?", yes=yes)
    with exit_on_error(as_json=as_json) as screen:
        Api(http, vhost="/").delete("users", name)
    screen.result({"deleted": name}, f"user '{name}' is deleted")


@users.command()
def recover(
    name: Name,
    data_dir: Annotated[Path, typer.Option(help="Data directory of a stopped broker.")] = Path(
        "leveret-data"
    ),
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Create an administrator in a data directory that has none. Stop the broker first.

    leveret users recover admin --data-dir leveret-data
    """
    from leveret.cli.admin_recovery import NoDataDirectory, make_administrator
    from leveret.cli.offline_changes import note_offline_change
    from leveret.storage.errors import StorageError

    screen = Screen(as_json=as_json)
    password = _password(password_file).encode("utf-8", "surrogateescape")
    if not name or not password:
        raise typer.BadParameter("name and password must not be empty")
    try:
        vhosts = make_administrator(data_dir, name, password)
    except (NoDataDirectory, StorageError) as error:
        screen.fail(str(error))
    note_offline_change(data_dir, "users recover", {"name": name}, screen)
    result = {"user": name, "tags": ["administrator"], "vhosts": vhosts}
    screen.result(result, f"user '{name}' is an administrator of {data_dir}: start the broker")


def _password(file: Path | None) -> str:
    if file is None:
        if not sys.stdin.isatty():
            raise typer.BadParameter(
                "can't ask for a password, because stdin is not a terminal: use --password-file"
            )
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"the password can't be read: {error}") from error
    return text.partition("\n")[0].rstrip("\r")

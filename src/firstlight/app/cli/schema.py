"""`firstlight schema KIND`: the JSON Schema of a document."""

import click


@click.command("schema", short_help="JSON Schema of a kind")
@click.argument("kind", required=False)
def command(kind: str | None) -> int:
    """Prints the JSON Schema of KIND (Checkpoint, PlanSet, Verdict, …), or the list of kinds."""
    import msgspec

    from firstlight.core.errors import UsageError
    from firstlight.core.schema import KINDS, SCHEMA

    if kind is None:
        click.echo("\n".join(sorted(KINDS)))
        return 0
    if kind not in KINDS:
        raise UsageError("unknown-kind", f"no document is called {kind!r}", evidence=(", ".join(sorted(KINDS)),))
    schema = msgspec.json.schema(KINDS[kind])
    schema["$comment"] = f"documents carry `schema`: {SCHEMA!r} and `kind`: {kind!r} besides these fields"
    click.echo(msgspec.json.format(msgspec.json.encode(schema)).decode())
    return 0

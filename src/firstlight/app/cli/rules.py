"""`firstlight rules list|test`: the diagnosis rules, and their hit and miss logs."""

from pathlib import Path

import click

from firstlight.app.output import glyphs


@click.group("rules", short_help="diagnosis rules: list and test")
def command() -> None:
    """Rules are TOML: one is added without Python. `rules test` runs every rule against the logs that belong to it."""


@command.command("list", short_help="every rule: code, role, engines, title")
@click.option("--file", "files", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Your own rule file.")
def list_rules(files: tuple[Path, ...]) -> int:
    """Prints code, role, engines and title of every rule."""
    from firstlight.app.rule_logs import all_rules
    from firstlight.catalog.rules import titled

    seen: set[str] = set()
    for rule in sorted(all_rules(files), key=lambda r: r.code):
        if rule.code not in seen:
            seen.add(rule.code)
            click.echo(f"{rule.code:34} {rule.role:12} {'|'.join(rule.engines) or 'any':14} {titled(rule.title, {})}")
    return 0


@command.command("test", short_help="rules against their hit and miss logs")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("tests/rules"))
@click.option("--file", "files", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Your own rule file.")
@click.option("--code", help="Only this code.")
def test_rules(folder: Path, files: tuple[Path, ...], code: str | None) -> int:
    """Diagnoses FOLDER/CODE/hit-*.log and miss-*.log (FOLDER: tests/rules): every hit must give its code, no miss may."""
    from firstlight.app.rule_logs import all_rules, run_rule_logs

    marks = glyphs()
    results = run_rule_logs(folder, all_rules(files), code)
    wrong = [r for r in results if not r.right]
    for result in wrong:
        click.echo(f"{marks.fail} {result.path}: expected {result.expected}, found {result.found}")
    missing = sorted({r.code for r in all_rules(files)} - {r.code for r in results}) if code is None else []
    for name in missing:
        click.echo(f"{marks.warn} {name}: no hit and miss logs in {folder / name}")
    click.echo(f"{len(results) - len(wrong)} of {len(results)} logs right, {len(missing)} codes without logs")
    return 1 if wrong or missing else 0

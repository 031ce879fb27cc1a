"""What the browser gets: vendored files as published, nothing inline, states and words complete."""

import gettext
import hashlib
import json
import re
from pathlib import Path

import pytest
from django.template.loader import get_template
from django.utils.translation.template import templatize

from kernel.web import states
from runs.states import EFFECT_MOVES, GATE_MOVES, RUN_MOVES, STEP_MOVES

ROOT = Path(__file__).resolve().parents[2]
UI = ROOT / "platform/kernel/static/ui"
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
CATALOGUE = ROOT / "templates/locale/hi/LC_MESSAGES"
PYTHON = [path for folder in ("platform", "runs") for path in (ROOT / folder).rglob("*.py")]


@pytest.mark.parametrize("manifest", [UI / "vendor/manifest.json", ROOT / "tests/browser/vendor/manifest.json"])
def test_vendored_files_are_the_published_ones(manifest: Path) -> None:
    entries = json.loads(manifest.read_text())
    listed = set(entries) | {"manifest.json"}
    assert {path.name for path in manifest.parent.iterdir() if path.suffix != ".LICENSE"} == listed
    for name, entry in entries.items():
        assert hashlib.sha256((manifest.parent / name).read_bytes()).hexdigest() == entry["sha256"], name


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_templates_have_nothing_inline(template: Path) -> None:
    source = template.read_text()
    get_template(str(template.relative_to(ROOT / "templates")))
    # E-mails have no style sheet files, and no policy of ours governs them.
    styles = "" if template.parent.name == "email" else r"<style|\sstyle=|"
    assert not re.search(styles + r"\son[a-z]+=|javascript:|hx-on|\bjs:", source), "the policy forbids it"
    assert not re.search(r"<script(?![^>]*\ssrc=)", source), "scripts are files"
    assert "|safe" not in source, "nothing in a template is trusted as markup"
    assert not re.search(r'(href|src|action)="(https?:)?//', source), "pages use no other server"


@pytest.mark.parametrize("module", sorted((UI / "js").glob("*.js")), ids=lambda path: path.stem)
def test_modules_are_small_and_plain(module: Path) -> None:
    source = module.read_text()
    assert len(source.splitlines()) < 150
    assert not re.search(r"innerHTML|eval\(|new Function|\.style\b", source)


def test_every_state_has_an_icon_a_word_and_a_tone() -> None:
    sprite = set(re.findall(r'symbol id="([a-z]+)"', (UI / "sprite.svg").read_text()))
    toned = set(re.findall(r'data-state="([a-z_]+)"', (UI / "tokens.css").read_text()))
    grey = {"pending", "blocked", "skipped", "cancelled", "expired", "released", "reserved", "compensated"}
    grey |= {"lapsed", "withdrawn", "disabled"}
    for state in {*RUN_MOVES, *STEP_MOVES, *EFFECT_MOVES, *GATE_MOVES, *states.STATES}:
        look = states.look(state)
        assert look.icon in sprite, state
        assert state in states.STATES, f"{state} has no word"
        assert states.tone(state) in toned | grey, f"{state} has no tone"


def test_icons_used_are_in_the_sprite() -> None:
    sprite = set(re.findall(r'symbol id="([a-z]+)"', (UI / "sprite.svg").read_text()))
    for template in TEMPLATES:
        for name in re.findall(r'{% icon "([a-z]+)"', template.read_text()):
            assert name in sprite, f"{template.name}: {name}"


# The calls in which words stand, in Python and in what a template becomes for xgettext.
_CALL = re.compile(
    r"""(?<![\w.])(?P<call>_|n?gettext(?:_lazy|_noop)?|pgettext|n?pgettext)\(\s*u?(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"""(?:\s*,\s*u?(?P<second>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'))?"""
)


def _words() -> set[str]:
    sources = [templatize(path.read_text(), origin=str(path)) for path in TEMPLATES]
    sources += [path.read_text() for path in PYTHON if "gettext" in path.read_text()]
    found = set()
    for source in sources:
        for match in _CALL.finditer(source):
            text = _plain(match["text"])
            if match["call"].startswith("pgettext"):
                text = f"{text}\x04{_plain(match['second'])}"
            found.add(text)
    return found


def _plain(literal: str) -> str:
    return literal[1:-1].replace('\\"', '"').replace("\\'", "'").replace("\\n", "\n")


def test_every_word_is_in_the_hindi_catalogue() -> None:
    with (CATALOGUE / "django.mo").open("rb") as file:
        translations = gettext.GNUTranslations(file)
    catalogue = {key[0] if isinstance(key, tuple) else key for key in translations._catalog}  # type: ignore[attr-defined]
    missing = {word for word in _words() if word and word not in catalogue}
    assert not missing, f"run makemessages, translate and compilemessages: {sorted(missing)}"


def test_the_compiled_catalogue_is_that_of_the_source() -> None:
    source = (CATALOGUE / "django.po").read_text()
    with (CATALOGUE / "django.mo").open("rb") as file:
        translations = gettext.GNUTranslations(file)
    for message in re.finditer(r'^msgid "(.+)"\nmsgstr "(.+)"$', source, re.MULTILINE):
        before = source[: message.start()].rsplit("\n", 2)[-2]
        if not before.startswith("msgctxt"):
            assert translations.gettext(_plain(f'"{message[1]}"')) == _plain(f'"{message[2]}"'), "run compilemessages"
    assert ", fuzzy" not in source


def test_placeholders_survive_translation() -> None:
    source = (CATALOGUE / "django.po").read_text()
    for english, hindi in re.findall(r'^msgid "(.+)"\nmsgstr "(.+)"$', source, re.MULTILINE):
        assert sorted(re.findall(r"%\(\w+\)s", english)) == sorted(re.findall(r"%\(\w+\)s", hindi)), english

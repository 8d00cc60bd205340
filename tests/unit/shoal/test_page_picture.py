"""The picture beside a link."""

from __future__ import annotations

import io

import msgspec
import pytest
from PIL import Image, ImageFont

from host.files.home import Home
from shoal.page import picture
from tests.support import pages


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    opened = pages.project(Home(tmp_path_factory.mktemp("home")))
    return pages.facts(opened, pages.syncer(opened))


def drawn(facts) -> Image.Image:
    image = Image.open(io.BytesIO(picture.png(facts)))
    assert (image.format, image.size) == ("PNG", (picture.WIDTH, picture.HEIGHT))
    return image


def test_it_is_of_the_size_that_previews_take_and_no_heavy_file(facts):
    assert len(picture.png(facts)) < 200_000
    assert drawn(facts).getpixel((5, 5)) == (14, 111, 120)


def test_progress_and_curve_are_in_it(facts):
    begun = msgspec.structs.replace(
        facts, run=msgspec.structs.replace(facts.run, permille=0, curve=[], best=None)
    )
    done = msgspec.structs.replace(facts, run=msgspec.structs.replace(facts.run, permille=1000))
    place = (picture.WIDTH - 100, 589)
    assert drawn(done).getpixel(place) == (14, 111, 120) != drawn(begun).getpixel(place)
    assert picture.png(facts) != picture.png(begun)


@pytest.mark.parametrize("name", ["x" * 64, "鯡の群れ", "\u202e", "Å" * 40, ""])
def test_a_name_that_does_not_fit_is_no_trouble(facts, name):
    project = msgspec.structs.replace(facts.project, name=name)
    drawn(msgspec.structs.replace(facts, project=project))


@pytest.mark.parametrize(
    ("name", "shown"), [("Plain", "Plain"), ("鯡", "A project"), ("鯡 fish", "fish")]
)
def test_a_name_is_written_as_far_as_there_are_letters_for_it(name, shown):
    written, font = picture.named(name, ImageFont.load_default(68))
    assert written in (name, shown)
    assert font.getmask(written).getbbox() is not None


def test_accents_go_before_letters_do(monkeypatch):
    monkeypatch.setattr(picture, "_FACES", ())
    assert picture.named("Märchen für Łódź", ImageFont.load_default(68))[0] == "Marchen fur odz"

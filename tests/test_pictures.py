"""The pictures in the docs show what the program shows."""

from scripts.screenshots import FOLDER, pictures


def test_the_pictures_are_those_that_the_program_gives_today() -> None:
    taken = pictures()
    assert {path.stem for path in FOLDER.glob("*.svg")} == taken.keys()
    for name, picture in taken.items():
        assert (FOLDER / f"{name}.svg").read_text() == picture, "run scripts/screenshots, and look"

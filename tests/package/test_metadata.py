"""What stands between this repository and a stranger's `pip install`: files that no other test reads."""

import re
from pathlib import Path

import pytest
import yaml

tomllib = pytest.importorskip("tomllib")  # Python 3.10 has none

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def rendered(recipe):
    """A recipe without its Jinja: every expression by its name."""
    text = re.sub(r"\{%.*?%\}", "", recipe.read_text(encoding="utf-8"))
    return yaml.safe_load(re.sub(r"\{\{ *(\w+) *\}\}", r"\1", text))


def plain(requirements):
    return sorted(re.sub(r"\s", "", one) for one in requirements)


def test_the_recipe_needs_what_the_package_needs():
    """conda and pip install the same: the recipe's dependencies are pyproject.toml's, to the version."""
    needs = rendered(ROOT / "recipe" / "meta.yaml")["requirements"]
    python = f"python{PROJECT['requires-python']}"
    assert plain(needs["run"]) == plain([python, *PROJECT["dependencies"]])
    assert plain(needs["host"]) == plain([python, "pip", *PYPROJECT["build-system"]["requires"]])


def test_the_recipe_describes_this_package():
    """Name, summary, licence and command of the recipe are pyproject.toml's."""
    recipe = rendered(ROOT / "recipe" / "meta.yaml")
    about = recipe["about"]
    assert (recipe["package"]["name"], about["summary"]) == (PROJECT["name"], PROJECT["description"])
    assert (about["license"], about["home"]) == (PROJECT["license"], PROJECT["urls"]["Repository"])
    commands = [f"{name} = {place}" for name, place in PROJECT["scripts"].items()]
    assert recipe["build"]["entry_points"] == commands


def test_the_citation():
    """CITATION.cff has what its schema requires, and says the same as pyproject.toml."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert (cited["cff-version"], cited["type"]) == ("1.2.0", "software")
    assert (cited["title"], cited["license"]) == (PROJECT["name"], PROJECT["license"])
    assert cited["abstract"] == PROJECT["description"]
    assert (cited["authors"], cited["keywords"]) == (PROJECT["authors"], PROJECT["keywords"])
    assert cited["repository-code"] == PROJECT["urls"]["Repository"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned(path):
    """A workflow runs the commit of an action that was reviewed, whatever its tag becomes."""
    used = re.findall(r"uses: *(.*)", path.read_text(encoding="utf-8"))
    for one in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one), one


def test_a_release_publishes_what_was_tested():
    """One job builds and tests; another one publishes its files, and it alone may ask for an identity."""
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    build, publish = release["jobs"]["build"], release["jobs"]["publish"]
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML's `on`
    assert (release["permissions"], set(release["jobs"])) == ({}, {"build", "publish"})
    assert build["permissions"] == {"contents": "read"}
    assert publish["permissions"] == {"id-token": "write"}
    assert (publish["needs"], publish["environment"]) == ("build", "pypi")
    assert {"run": "nox -s package"} in build["steps"]
    assert not [step for step in publish["steps"] if "run" in step or "checkout" in step["uses"]]

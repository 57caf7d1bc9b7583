"""Writes the generated pages, or compares them with the files; see scripts/gen-docs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import yaml
from scripts.reference import chart, fields, figures, meanings, models, series
from scripts.reference.text import FOLDER, ROOT

from bamboo_devcluster.kube import schemas
from bamboo_sim.programs import results_file
from bamboo_sim.watching.definitions import files

TROUBLESHOOTING = Path("docs/troubleshooting.md")
MODELS = Path("docs/models.md")


def pages() -> dict[Path, str]:
    """Every generated page by its path from the root."""
    definition = yaml.safe_load((ROOT / "crds/bamboojobs.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    example = yaml.safe_load((ROOT / fields.EVERY_FIELD).read_text())
    jsons = schemas.of_definition(definition)
    return {
        **{FOLDER / name: json.dumps(found, indent=1) + "\n" for name, found in jsons.items()},
        FOLDER / "spec.md": fields.spec_page(schema, example),
        FOLDER / "status.md": meanings.status_page(),
        FOLDER / "metrics.md": series.metrics_page(),
        FOLDER / "figures.md": figures.figures_page(results_file.RESULTS),
        MODELS: models.models_page(),
        chart.CHART / "README.md": chart.chart_page(),
        TROUBLESHOOTING: meanings.with_meanings((ROOT / TROUBLESHOOTING).read_text()),
        **files.files(),
    }


def main() -> None:
    """Write the pages, or with --check only compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a page differs"
    )
    is_check = parser.parse_args().check
    stale = list[str]()
    for path, text in pages().items():
        file = ROOT / path
        if is_check and (not file.exists() or file.read_text() != text):
            stale.append(str(path))
        elif not is_check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    if stale:
        sys.exit(f"{', '.join(stale)}: not what the code says; run scripts/gen-docs")


if __name__ == "__main__":
    main()

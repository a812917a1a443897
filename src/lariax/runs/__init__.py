"""A run as a folder of plain files, readable without Lariax.

| file | holds |
|---|---|
| `run.json` | how the run ended and what it cost; written last, so a folder that has it is complete |
| `history.jsonl` | one line of JSON a record |
| `answer.npz`, `answer.json` | the arrays of x and the multipliers, and what each array is |
| `certificate.json` | intervals for stationarity, feasibility, complementarity, each constraint; the same held out |
| `inference.json` | error bars of x, the multipliers, the objective and the constraints, where they were asked for |
| `settings.json`, `versions.json` | what was asked for, and with which software on which device |
| `pictures.json` | pictures of the problem itself, as arrays |

Numbers that JSON lacks are the texts "NaN", "Infinity" and "-Infinity". A vector of more than 16 entries is in the
history as its least entry, its largest entry and its length.

>>> import tempfile, jax.numpy as jnp, lariax as lx
>>> from lariax import runs
>>> problem = lx.Problem(lambda x: jnp.sum((x - 1) ** 2), constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None)})
>>> result = lx.solve(problem, jnp.zeros(2), lx.QuadraticPenalty(step_size=0.2), iterations=100)
>>> with tempfile.TemporaryDirectory() as parent:
...     folder = runs.save(result, f"{parent}/first")
...     runs.load(folder).status
'budget'
"""

from lariax.runs._inference import inference_to_json
from lariax.runs._json import RunFolderError, certificate_to_json, dumps, plain
from lariax.runs._read import is_unfinished, load, load_settings
from lariax.runs._saved import SavedInference, SavedRun, leaves_of, lines_of, saved, versions
from lariax.runs._write import ClaimedFolder, claim, claim_next, keep_certificate, keep_inference, save

__all__ = [
    "ClaimedFolder",
    "RunFolderError",
    "SavedInference",
    "SavedRun",
    "certificate_to_json",
    "claim",
    "claim_next",
    "dumps",
    "inference_to_json",
    "is_unfinished",
    "keep_certificate",
    "keep_inference",
    "leaves_of",
    "lines_of",
    "load",
    "load_settings",
    "plain",
    "save",
    "saved",
    "versions",
]

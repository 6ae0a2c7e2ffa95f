"""What the files of this folder that fetch models ask for."""
from hub_fixtures import alone, hub, store  # noqa: F401

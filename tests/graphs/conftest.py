from tests.graphs.traced import CACHE as CACHE
from tests.graphs.traced import Traced as Traced

from tests.fixtures.commands import Run as Run

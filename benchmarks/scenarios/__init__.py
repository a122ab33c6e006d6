"""The parts of the suite, which run on one service. Each module makes one group of tables."""
